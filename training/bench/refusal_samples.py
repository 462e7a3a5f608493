"""Questions that a document cannot answer, beside those that it can: the suites on which refusal is measured.

Four kinds, each as often as the answerable questions of the same document where there are enough: written by people
for that purpose (`human`), asked of another passage of the same article (`sibling`), asked of another article
(`off_topic`), and the probes that the annotator makes for training (`probe`). All but the first were asked of other
documents of the suite, so that a bank of them all holds the answer to most: they are unanswerable for their document.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from models.lexical import tokenize
from training.annotation.probes import ProbePool
from training.bench.samples import Kind, Sample, Suite
from training.bench.suites.assemble import draw
from training.bench.suites.references import NOT_ANSWERED
from training.bench.suites.registry import SELF_CONTAINED
from training.datasets import family_of
from training.datasets.context import Context, QAItem, occurrences
from training.datasets.ropes import BACKGROUND

KINDS: tuple[Kind, ...] = ("human", "sibling", "off_topic", "probe")
# A question whose words are all in the document may have another answer there: every match has a first touchdown.
# Of another topic are those of whose words at least half are not.
MIN_ABSENT_SHARE = {"sibling": 0.0, "probe": 0.0, "off_topic": 0.5}
# Questions that point at their document ("their model") fit any of its kind, unless they name what it does not.
POINTING = ("qasper", "multifieldqa")
# Draws for each question wanted of another article; most of them are strangers to the document.
MAX_DRAWS = 40
NUM_PROBES = 50
_WORD = re.compile(r"\w+")


def refusal(suite: Suite, seed: int = 0, *, limit: int | None = None) -> Suite:
    """Add to the answerable samples of a suite as many of each kind that their documents cannot answer.

    What is added for a sample depends on the sample, the documents and the seed, not on what else was drawn.

    Args:
        limit: Answerable samples to draw at random; None for all.
    """
    # Where one of QASPER's annotators found no answer, neither an answer nor a refusal is wrong.
    answerable = [s for s in suite.samples if s.kind == "answerable" and NOT_ANSWERED not in s.references]
    strangers = _Strangers(suite, seed)
    found: dict[int, dict[Kind, list[QAItem]]] = {}
    samples: list[Sample] = []
    for sample in draw(answerable, limit, seed):
        samples.append(sample)
        if sample.document not in found:
            found[sample.document] = strangers.of(sample.document)
        place = _answerable(suite.contexts[sample.document]).index(sample.item)
        added = found[sample.document].items()
        samples += [_sample(sample.document, kind, item) for kind, items in added for item in items[place : place + 1]]
    return replace(
        suite,
        name=f"refusal/{suite.name}",
        samples=tuple(samples),
        num_total=len(samples),
        is_complete=False,
        note=_note(samples, suite),
    )


def _note(samples: Iterable[Sample], suite: Suite) -> str:
    counts = Counter(sample.kind for sample in samples)
    numbers = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("answerable", *KINDS) if counts[kind])
    return "; ".join(part for part in (f"{numbers}, each asked of one document", suite.note) if part)


def _sample(document: int, kind: Kind, item: QAItem) -> Sample:
    # A question is asked of several strangers, and in its own document it is answerable.
    name = item.question_id if kind == "human" else f"{kind}/{document}/{item.question_id}"
    asked = QAItem(question_id=name, question=item.question, answers=(), is_impossible=True)
    return Sample(sample_id=name, document=document, item=asked, references=(), kind=kind)


def _answerable(context: Context) -> list[QAItem]:
    return [item for item in context.questions if not item.is_impossible]


class _Strangers:
    """Finds questions that a document cannot answer.

    Whether a document lacks the answer to another's question can be told if that answer is words of a text, or if
    the question names what the document does not: no others take part.
    """

    def __init__(self, suite: Suite, seed: int) -> None:
        contexts = suite.contexts
        self._contexts, self._seed = contexts, seed
        self._must_name = family_of(suite.dataset) in POINTING
        self._articles = [_article(context) or str(number) for number, context in enumerate(contexts)]
        self._asked = [
            (number, item)
            for number, context in enumerate(contexts)
            for item in _answerable(context)
            if suite.name not in SELF_CONTAINED and (self._must_name or any(answer.span for answer in item.answers))
        ]
        self._by_article: dict[str, list[tuple[int, QAItem]]] = defaultdict(list)
        for number, item in self._asked:
            self._by_article[self._articles[number]].append((number, item))
        self._probes = ProbePool(contexts)
        self._by_question = {item.question: item for _, item in self._asked}

    def of(self, document: int) -> dict[Kind, list[QAItem]]:
        """Return questions of each kind, at most as many as the document answers, no question twice."""
        context = self._contexts[document]
        count, terms = len(_answerable(context)), frozenset(tokenize(context.text))
        used = {item.question.casefold() for item in context.questions}
        sources = {"sibling": self._siblings, "off_topic": self._off_topic, "probe": self._nearest}
        found = {"human": list(islice(self._human(document), count))}
        for kind, candidates in sources.items():
            fitting = (
                item
                for item in candidates(document)
                if _is_about_else(item.question, terms, MIN_ABSENT_SHARE[kind])
                and not (self._must_name and _names(item.question) <= _words(context.text))
                and not _has_answer(context.text, item)
            )
            found[kind] = list(islice(_unused(fitting, used), count))
        return found

    def _human(self, document: int) -> Iterator[QAItem]:
        items = [item for item in self._contexts[document].questions if item.is_impossible]
        yield from self._random("human", document).sample(items, len(items))

    def _siblings(self, document: int) -> Iterator[QAItem]:
        asked = self._by_article[self._articles[document]]
        items = [item for number, item in asked if number != document]
        yield from self._random("sibling", document).sample(items, len(items))

    def _off_topic(self, document: int) -> Iterator[QAItem]:
        chance = self._random("off_topic", document)
        num_draws = MAX_DRAWS * len(self._contexts[document].questions) if self._asked else 0
        for _ in range(num_draws):
            number, item = chance.choice(self._asked)
            if self._articles[number] != self._articles[document]:
                yield item

    def _nearest(self, document: int) -> Iterator[QAItem]:
        questions = self._probes.probes(self._contexts[document], NUM_PROBES)
        yield from (self._by_question[question] for question in questions if question in self._by_question)

    def _random(self, kind: str, document: int) -> random.Random:
        return random.Random(f"{self._seed} {kind} {self._contexts[document].context_id}")


def _article(context: Context) -> str:
    """Return what passages of an article have in common: its title, or the background of situations."""
    backgrounds = [p for p in context.paragraphs if p.title == BACKGROUND]
    return context.text[: backgrounds[0].char_end] if backgrounds else context.title


def _is_about_else(question: str, terms: frozenset[str], min_share: float) -> bool:
    asked = set(tokenize(question))
    absent = asked - terms
    return bool(absent) and len(absent) >= min_share * len(asked)


def _names(question: str) -> set[str]:
    """Return the words after the first that a capital or a digit tells from common ones."""
    return {word.casefold() for word in _WORD.findall(question)[1:] if word != word.lower() or word.isdigit()}


@lru_cache(maxsize=1)
def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(text))


def _has_answer(text: str, item: QAItem) -> bool:
    found = (occurrences(text, answer.text, ignore_case=True) for answer in item.answers if answer.span)
    return any(True for places in found for _ in places)


def _unused(items: Iterable[QAItem], used: set[str]) -> Iterator[QAItem]:
    for item in items:
        words = item.question.casefold()
        if words not in used:
            used.add(words)
            yield item
