"""Irrelevant probes without a language model: questions that were asked about other contexts.

Holds the pool of a set's questions and the choice among them. A question about a sibling passage names the same
people and topics, and its answer tells whether this context could answer it.
Paper: appendix "Irrelevant Probe Generation", where a model writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from models.lexical import LexicalIndex
from training.datasets.context import Context, QAItem, occurrences

NUM_CANDIDATES = 50


class ProbePool:
    """The questions of all contexts, searchable by words.

    Only questions with an answer that occurs in their own context take part: whether a context lacks the answer
    can be seen for these alone.
    """

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._items = [q for c in contexts for q in c.questions if any(a.span for a in q.answers)]
        self._index = LexicalIndex.build([item.question for item in self._items])

    def probes(self, context: Context, count: int) -> list[str]:
        """Return the questions most like a context that it does not answer, at most `count`.

        A question is left out where any of its answers occurs in the context.
        """
        if not count:
            return []
        own = {item.question.casefold() for item in context.questions}
        found: dict[str, str] = {}
        for item in self._nearest(context):
            words = item.question.casefold()
            if words not in own and words not in found and not _has_answer(context.text, item):
                found[words] = item.question
                if len(found) == count:
                    break
        return list(found.values())

    def _nearest(self, context: Context) -> Iterator[QAItem]:
        # A context's own questions are the nearest, and are passed over.
        limit = NUM_CANDIDATES + len(context.questions)
        rows, _ = self._index.top(f"{context.title}\n{context.text}", limit)
        return (self._items[row] for row in rows.tolist())


def _has_answer(text: str, item: QAItem) -> bool:
    return any(next(occurrences(text, a.text, ignore_case=True), None) is not None for a in item.answers)
