"""Word lists of the rules backend, all English; other languages simply match none of them.

Holds closed word classes and cue words, nothing that looks at a text.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STOP_WORDS = _words(
    """a about above after again all also although am among an and another any are as at be because been before being
    below between both but by can could did do does doing down during each either even ever every few for from further
    had has have having he her here hers herself him himself his how however i if in into is it its itself just may me
    might more most much must my myself neither no nor not now of off on once one only onto or other our ours out over
    own per same shall she should since so some still such than that the their theirs them themselves then there
    therefore these they this those though through thus to too toward towards under until unto up upon us very was we
    were what when where whereas whether which while who whom whose why will with within without would yet you your
    according besides despite earlier furthermore hence instead later like many meanwhile moreover nevertheless
    nonetheless perhaps several similar today unlike various"""
)
"""Function words: they neither name anything nor help a search."""

JOINING_WORDS = _words("a an and are as at by for from in is it of on or that the to was were which with")
"""Lower-case words that table cells seldom hold and running prose always does."""

GENERIC_HEADINGS = _words(
    """abstract acknowledgements acknowledgments appendix background bibliography conclusion conclusions contents
    discussion general home index introduction limitations main method methods notes overview page preface references
    related results section summary work"""
)
"""A heading made of these words alone says where a sentence stands, not what it is about."""

PRONOUNS = _words("he she it they this these those his her its their him them")
"""An atom that begins with one of these needs the name of what it refers to."""

CALENDAR_WORDS = _words(
    """january february march april may june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday"""
)
"""Capitalised in English, yet no names worth an index entry."""

QUANTITY_UNITS = _words(
    """% percent percentage degrees kg kilograms grams g mg tonnes tons lb lbs pounds ounces km kilometres kilometers m
    metres meters cm mm miles feet ft inches yards acres hectares litres liters gallons ml seconds minutes hours days
    weeks months years decades centuries hz khz mhz ghz kb mb gb tb bytes bits w kw mw gw watts volts amps joules kwh
    mph kph people inhabitants residents students employees members dollars euros usd eur gbp yen million billion
    trillion thousand hundred copies points goals seats votes pages layers parameters tokens"""
)
"""Words that make a measure of the number before them."""

CHANGE_VERBS = _words(
    """abolished accepted achieved acquired adopted agreed announced appointed approved arrested arrived assassinated
    attacked attended awarded banned became began beat bought broke built captured ceased changed closed collapsed
    commissioned completed conquered constructed created crossed crowned declared defeated demolished departed
    deployed designed destroyed developed died discovered dissolved divided dropped elected emerged ended enrolled
    entered erupted established executed expanded expelled exploded fell finished fled formed fought founded gained
    graduated happened held hired hosted imprisoned inaugurated increased independence installed introduced invaded
    invented issued joined killed launched led left lost married merged met moved murdered named nominated occurred
    opened ordered organised organized passed performed played presented produced promoted published purchased ratified
    reached rebuilt received recorded reduced released relocated removed renamed replaced resigned retired returned
    revolted rose sank selected sent separated signed sold split started stopped succeeded surrendered took transferred
    unified visited voted went withdrew won wrote born"""
)
"""Past forms of verbs that tell that something happened."""

STEP_VERBS = _words(
    """add adjust allow apply assemble attach boil build call change check choose clean click close combine complete
    compute configure connect copy create cut define delete determine disconnect dissolve drain draw drill ensure enter
    fill find fold follow gather heat hold insert inspect install keep lift load locate loosen lower make measure mix
    move open paste place plug pour preheat prepare press pull push put raise read rebuild record release remove repeat
    replace reset restart rinse rotate run save scroll select send set slide sort start stir stop store submit switch
    take test tighten turn type unplug unscrew update upload use verify visit wait wash weigh wipe wire write"""
)
"""Imperatives that open a step of a procedure."""

STEP_OBJECTS = _words(
    """a all an another any away back both down each every from in into it its off on one out over the them this three
    to two until up with your"""
)
"""What follows the verb of a step, as in `press the button`, and tells it from `press reports`."""

EXPLETIVES = _words("here that there these this those what which")
"""`There is a ...` says that something exists, not what something is."""

STEP_OPENERS = _words("first firstly second secondly third thirdly next then finally lastly afterwards")

ABSTRACT_SECTIONS = _words("abstract conclusion conclusions introduction overview preface summary")

ABSTRACT_CUES = _words("broadly essentially generally normally often overall typically usually summary conclusion")

REFERENCE_SECTIONS = _words("bibliography citations references sources")

ATTRIBUTES = {
    "age": _words("age aged old"),
    "area": _words("area"),
    "capacity": _words("capacity seats"),
    "cost": _words("cost costs price priced budget"),
    "depth": _words("depth deep"),
    "distance": _words("distance away"),
    "duration": _words("duration lasts lasted"),
    "founding": _words("founded established incorporated"),
    "birth": _words("born birth"),
    "death": _words("died death"),
    "height": _words("height tall high elevation"),
    "length": _words("length long"),
    "mass": _words("mass weight weighs weighed"),
    "population": _words("population inhabitants residents"),
    "revenue": _words("revenue turnover sales"),
    "speed": _words("speed"),
    "temperature": _words("temperature boils melts"),
    "width": _words("width wide"),
}
"""Attributes of which a thing has one value at a time, each with the words that name it."""
