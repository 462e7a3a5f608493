"""Words that exclude each other: a sentence that is true of one is not true of another.

A table by hand, in English. `models.doubts` looks for them between question and atoms; `training.annotation.altered`
makes questions with them that a passage does not answer.
"""

from __future__ import annotations

_TABLE = """
first last|earliest latest|largest smallest|biggest smallest|highest lowest|longest shortest
oldest youngest|best worst|most least|strongest weakest|fastest slowest|heaviest lightest|richest poorest
nearest farthest|closest farthest|greatest least|greater lesser|higher lower|larger smaller|bigger smaller
longer shorter|older younger|better worse|stronger weaker|earlier later|faster slower|warmer colder|hotter cooler
more less|always never|usually rarely|often rarely|frequently rarely|commonly rarely
mainly rarely|increase decrease|increased decreased|increases decreases|increasing decreasing|rise fall|rose fell
gain lose|gained lost|win lose|won lost|start end|started ended|starts ends|begin end|began ended|begins ends
beginning end|open close|opens closes|accept reject|accepted rejected|accepts rejects|allow forbid
allowed forbidden|allows forbids|include exclude|included excluded|includes excludes|support oppose
supported opposed|supports opposes|create destroy|created destroyed|build demolish|built demolished
arrive depart|arrived departed|succeed fail|succeeded failed|agree disagree|agreed disagreed|agrees disagrees
expand shrink|expanded shrank|strengthen weaken|strengthened weakened
defended attacked|praise condemn|praised condemned|encourage discourage|encouraged discouraged|permit prohibit
permitted prohibited|import export|imported exported|male female|men women|man woman|positive negative
public private|major minor|modern ancient|rural urban|internal external|domestic foreign|permanent temporary
successful unsuccessful|common rare|important trivial|famous obscure|legal illegal|majority minority
maximum minimum|above below|upper lower|inner outer|beneficial harmful|safe dangerous|rich poor
wealthy poor|advantage drawback|advantages drawbacks|benefit harm|benefits harms|victory defeat|victories defeats
strengths weaknesses|improve worsen|improved worsened|raise lower|raised lowered|easy difficult|protect endanger
protected endangered|ally enemy|allies enemies
"""
_EXCLUSIVE = """
north south east west|northern southern eastern western|northwest southeast northeast southwest
monday wednesday friday sunday|father mother brother sister uncle|son daughter nephew niece
husband brother father|wife sister mother|king queen emperor|morning evening afternoon|red blue green yellow purple
politician painter physician farmer|actor composer architect|summer winter autumn
river mountain forest desert|film song painting|novel poem opera|television radio newspaper
daily weekly monthly yearly|mayor governor bishop
"""

OPPOSITES: dict[str, tuple[str, ...]] = {}
"""By word, the words that exclude it: one, its antonym, or several of its kind."""

for _line in _TABLE.replace("\n", "|").strip("|").split("|"):
    _word, *_others = _line.split()
    OPPOSITES.setdefault(_word, tuple(_others))
    for _other in _others:
        OPPOSITES.setdefault(_other, (_word,))
for _line in _EXCLUSIVE.replace("\n", "|").strip("|").split("|"):
    for _word in _line.split():
        OPPOSITES.setdefault(_word, tuple(w for w in _line.split() if w != _word))
