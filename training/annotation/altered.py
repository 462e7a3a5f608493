"""Near misses without a language model: a passage's own questions, altered so that it no longer answers them.

Holds the alterations that people made for SQuAD 2.0: another entity or number, the opposite word, a word that
excludes the first, a negation. Each keeps nearly all words of a question, so that word overlap cannot tell.
Questions of other passages are `training.annotation.probes`. English only: other questions stay as they are.
Source: Rajpurkar, Jia & Liang 2018, "Know What You Don't Know", the table of negative examples.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.lexical import tokenize
from models.opposites import OPPOSITES
from training.annotation.mentions import Mention, MentionPool, mentions, naming_words
from training.datasets.context import Context, QAItem, occurrences

WEIGHTS = {"entity": 5, "number": 3, "antonym": 4, "exclusion": 4, "negation": 1}
"""Odds of a kind where a context offers several."""
NEGATED_SHARE = 0.4
"""Of the questions that could be: were all, a negation alone would give a question away."""

_ASKING = re.compile(r"\b(?:what|who|whom|whose|which|when|where|why|how)\b", re.IGNORECASE)
_CLOSED = re.compile(r"(?:do|does|did|is|are|was|were|can|could|will|would|has|have|had|should)\b", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b|^which\b|\b(?:than|true|more likely|less likely)\b", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:not|never|no|none|nor|cannot|without)\b|n['’]t\b", re.IGNORECASE)
_NEGATABLE = re.compile(
    r"^(?:what|who|whom|why)(?: (?!year|day|time|date|month|century|decade)[a-z]+){0,2}? "
    r"(did|does|do|can|could|should|would|must|(?:is|are|was|were)(?= \w+ed\b))\b",
    re.IGNORECASE,
)
# Not "how long", "in common", "first name", "most of": there the word has no opposite.
_OPPOSABLE = re.compile(
    r"(?<![Hh]ow )(?<!in )(?<!no )(?<!at )(?<![\w'’-])[a-z]+(?![\w'’-])(?! (?:of|school|up|out|to|names?)\b)"
)

# Before "unsuccessful", but not before "US", "European" or "usually"; before 8th, 11th, 18th and 1868.
_AFTER_AN = re.compile(r"(?!Eu|usu)[aeiouAEIO]|8|1[18](?:\d\d|th)?\b")

Option = tuple[str, str]


@dataclass(frozen=True)
class Altered:
    """A question that its passage does not answer, with the one that it was made of and how: a key of `WEIGHTS`."""

    original: QAItem
    question: str
    kind: str


class Alterer:
    """Alters the questions of any of some contexts, with names of the others where its own do not serve."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._pool = MentionPool(contexts)

    def altered(self, context: Context, count: int) -> list[Altered]:
        """Return altered questions of a context, at most `count` and one of each question; the same every time.

        Left alone are questions without an answer in the text, and those whose opposite has one: yes or no, and
        a choice between what the question names.
        """
        if not count:
            return []
        rng = random.Random(f"{context.context_id}\n{context.text}")
        passage = _Passage(context)
        taken = {item.question.casefold() for item in context.questions}
        options = [
            Altered(item, question, kind)
            for item in context.questions
            if _is_open(item)
            for kind, question in self._options(passage, item, rng)
            if question.casefold() not in taken
        ]
        chosen: list[Altered] = []
        while options and len(chosen) < count:
            kinds = sorted({option.kind for option in options})
            (kind,) = rng.choices(kinds, [WEIGHTS[k] for k in kinds])
            chosen.append(rng.choice([option for option in options if option.kind == kind]))
            options = [o for o in options if o.original != chosen[-1].original and o.question != chosen[-1].question]
        return chosen

    def _options(self, passage: _Passage, item: QAItem, rng: random.Random) -> Iterator[Option]:
        # A name that shares a word with them is an alias, the answer, or there already.
        known = naming_words(" ".join((item.question, *(answer.text for answer in item.answers))))
        for mention in mentions(item.question):
            own = passage.stand_ins(mention, item)
            for new in self._pool.replacements(mention, own, passage.context.title, rng):
                question = _put(item.question, mention.start, mention.text, new)
                is_new = new in own or not passage.holds(new)
                is_other = new != mention.text and known.isdisjoint(naming_words(new))
                if is_new and is_other and not passage.may_answer(question, new):
                    yield mention.kind, question
                    break
        if not passage.is_reasoned and not _CHOICE.search(item.question):
            yield from _opposed(passage, item.question)
            if rng.random() < NEGATED_SHARE:
                yield from _negated(passage, item.question)


class _Passage:
    """A context, taken apart for the question whether it may answer an altered question after all."""

    def __init__(self, context: Context) -> None:
        self.context = context
        # What is asked of one thing, such passages tell of the other too, in so many words or not.
        self.is_reasoned = context.mode == "multi_hop" or context.dataset == "ropes"
        self._mentions = list(mentions(context.text))
        self._words = frozenset(tokenize(context.text)) | frozenset(re.findall(r"\w+", context.text.lower()))
        self._ends = [match.end() for match in re.finditer(r"[.!?]\s+|\n+|$", context.text)]
        # What a sentence says of a name goes on in the next one, with a pronoun.
        stops = [*self._ends[1:], len(context.text)]
        self._windows = [context.text[a:b] for a, b in zip([0, *self._ends], stops, strict=False)]
        self._terms = [frozenset(tokenize(window)) for window in self._windows]

    def stand_ins(self, mention: Mention, item: QAItem) -> set[str]:
        """Return what the passage mentions of a mention's shape, apart from the answer and from its own topic."""
        if self.is_reasoned:
            return set()
        answered = {self._sentence(answer.span[0]) for answer in item.answers if answer.span}
        alike = [m for m in self._mentions if m.shape == mention.shape and self._sentence(m.start) not in answered]
        title, text = self.context.title, self.context.text
        return {m.text for m in alike if m.text not in title and text.count(m.text) <= 2}

    def holds(self, words: str) -> bool:
        return next(occurrences(self.context.text, words, ignore_case=True), None) is not None

    def may_answer(self, question: str, new: str) -> bool:
        """Tell whether some sentences hold the new words and half of the question's others."""
        wanted = frozenset(tokenize(new))
        rest = frozenset(tokenize(question)) - wanted
        return any(wanted <= terms and 2 * len(rest & terms) >= len(rest) for terms in self._terms)

    def denies(self, question: str) -> bool:
        """Tell whether some sentences hold half of a question's words and a negation."""
        rest = frozenset(tokenize(question))
        pairs = zip(self._windows, self._terms, strict=True)
        return any(2 * len(rest & terms) >= len(rest) and _NEGATED.search(window) for window, terms in pairs)

    def knows(self, word: str) -> bool:
        return word in self._words or not self._words.isdisjoint(tokenize(word))

    def _sentence(self, place: int) -> int:
        return bisect_right(self._ends, place)


def _is_open(item: QAItem) -> bool:
    texts = [answer.text.lower().rstrip(".") for answer in item.answers]
    if item.is_impossible or not any(answer.span for answer in item.answers):
        return False
    if any(text in ("yes", "no") or text in item.question.lower() for text in texts):
        return False
    return bool(_ASKING.search(item.question)) and not _CLOSED.match(item.question)


def _opposed(passage: _Passage, question: str) -> Iterator[Option]:
    for match in _OPPOSABLE.finditer(question):
        words = OPPOSITES.get(match[0], ())
        if new := next((word for word in words if not passage.knows(word)), None):
            kind = "antonym" if len(words) == 1 else "exclusion"
            yield kind, _put(question, match.start(), match[0], new)


def _negated(passage: _Passage, question: str) -> Iterator[Option]:
    match = _NEGATABLE.search(question)
    if match and not _NEGATED.search(question) and not passage.denies(question):
        start, end = match.span(1)
        yield "negation", f"{question[:start]}{match[1].removesuffix('n')}n't{question[end:]}"


def _put(question: str, start: int, old: str, new: str) -> str:
    """Put words in the place of others, with the article that they need."""
    article = "an" if _AFTER_AN.match(new) else "a"
    before = re.sub(r"\ban? $", f"{article} ", question[:start])
    return before + new + question[start + len(old) :]
