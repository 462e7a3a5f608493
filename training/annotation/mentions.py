"""Names and numbers in English text, and which of a set's could stand in another's place.

Holds a recogniser by capitals and digits, and a measure of likeness by neighbours. It has no gazetteer and no model;
what the alterations of questions make of it is `training.annotation.altered`.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from models.atomizer.lexicon import CALENDAR_WORDS
from models.lexical import STOP_WORDS
from training.datasets.context import Context

MIN_LIKENESS = 0.25
"""Names below it are seldom things of one kind."""
NUM_CANDIDATES = 50

_WORD = r"(?:[A-Z]\.|[A-Z](?:['’](?=[A-Z]))?[\w-]*\w|[A-Z]\b)"
_NAME = re.compile(rf"(?<![\w'’/-]){_WORD}(?: (?:(?:of|the|de|la|van|von|du|der) )*{_WORD})*(?![\w/-])")
_NUMBER = re.compile(r"(?<![\w.,$£€/–-])\d[\d,.]*\d(?:st|nd|rd|th|s)?(?![\w%/–-])")
_DEMONYM = re.compile(r"(?:[ai]an|[cm]an|ese|ish|French|Greek|Dutch|Swiss|Jewish)(s?)$")
_NEXT = re.compile(r" ?[\w'’]+|\W")
_OPENING = ".!?:;\"“‘'*([—"
_CLASSES = """
academy act age airport army association award bank battle bay bowl bridge building castle cathedral center church city
college committee company conference constitution corporation council county court cup department district dynasty
empire federation festival hall high hospital house institute island islands kingdom lake league library mountain
mountains museum ocean palace park parliament party prize province republic revolution river road school sea society
square stadium state states station street temple theatre theater treaty union university war
"""
CLASSES = frozenset(_CLASSES.split()) | CALENDAR_WORDS
"""Words that say what the thing with the name is: two names may share them."""


@dataclass(frozen=True)
class Mention:
    """A name or number in a text.

    Args:
        start: Character offset.
        kind: `entity` or `number`.
        shape: Equal for those that might stand in each other's place: the class of a thing, the digits of a number.
        company: The words before and after a name.
    """

    text: str
    start: int
    kind: str
    shape: str
    company: frozenset[str] = frozenset()


def mentions(text: str) -> Iterator[Mention]:
    """Yield the names that do not open a sentence, then the numbers of two digits or more."""
    for match in _NAME.finditer(text):
        name, before = match[0], text[max(0, match.start() - 40) : match.start()].rstrip()
        if before and before[-1] not in _OPENING and name.lower() not in STOP_WORDS and len(name) > 1:
            after = _NEXT.match(text, match.end())
            company = (f"{before.split()[-1].lower()} _", f"_ {after[0].strip().lower() if after else ''}")
            yield Mention(name, match.start(), "entity", _shape(name), frozenset(company))
    for match in _NUMBER.finditer(text):
        digits = re.sub(r"st|nd|rd", "th", re.sub(r"\d", "0", match[0]))
        # A year may replace any year; season 12 of something only another season.
        unit = "" if digits.startswith("0000") else " ".join(text[: match.start()].split()[-1:]).lower()
        yield Mention(match[0], match.start(), "number", f"{unit} {digits}")


def _shape(name: str) -> str:
    words = name.split()
    if len(words) == 1 and (demonym := _DEMONYM.search(name)):
        return f"demonym{demonym[1]}"
    if found := next((word for word in words if word.lower() in CLASSES), None):
        return found
    return "acronym" if name.isupper() else f"{min(len(words), 2)}{name.endswith('s')}"


def naming_words(text: str) -> set[str]:
    """Return the words of a text that tell one name from another, in lower case."""
    return set(re.findall(r"\w+", text.lower())) - STOP_WORDS - CLASSES


class MentionPool:
    """The names and numbers of some contexts."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._company: dict[str, set[str]] = defaultdict(set)
        self._of_shape: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for context in contexts:
            for mention in mentions(context.text):
                self._company[mention.text].update(mention.company)
                self._of_shape[mention.shape, context.title].append(mention.text)
                self._of_shape[(mention.shape,)].append(mention.text)
        self._num_beside = Counter(word for company in self._company.values() for word in company)

    def replacements(self, mention: Mention, own: Iterable[str], title: str, rng: random.Random) -> Iterator[str]:
        """Yield what could stand in a mention's place: from `own`, from articles of the same title, from anywhere."""
        siblings = self._of_shape.get((mention.shape, title), []) if title else []
        for pool in (sorted(own), siblings, self._of_shape.get((mention.shape,), [])):
            picked = rng.sample(pool, min(NUM_CANDIDATES, len(pool)))
            yield from self._alike(mention, picked) if mention.kind == "entity" else picked

    def _alike(self, mention: Mention, names: Sequence[str]) -> list[str]:
        """Return those of some names that are seen beside the same words, as things of a kind are; nearest first."""
        company = self._company.get(mention.text, set()) | mention.company
        likeness = {
            name: self._weight(company & self._company[name])
            / (self._weight(company) * self._weight(self._company[name]) or 1) ** 0.5
            for name in names
        }
        return sorted((name for name in likeness if likeness[name] >= MIN_LIKENESS), key=lambda n: -likeness[n])

    def _weight(self, company: Iterable[str]) -> float:
        return fsum(self._num_beside[word] ** -0.5 for word in company if self._num_beside[word])
