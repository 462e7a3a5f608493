"""The references of a set's questions as its official evaluation has them.

A context keeps the answers that training can use; here are those that a prediction is compared with: all of them, of
several spans each by itself, with the kind of answer where the evaluation reports scores by kind. Each reader is given
a file and returns what tells the references of a question of a context of that file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.datasets.context import Context, QAItem


@dataclass(frozen=True, kw_only=True)
class References:
    """What a prediction is compared with.

    Args:
        texts: Alternatives; none of a question without an answer.
        spans: The alternatives as their parts, where the metric aligns parts.
        answer_type: Of the first alternative.
        types: Of each alternative, where they differ.
    """

    texts: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()
    answer_type: str | None = None
    types: tuple[str, ...] = ()


Lookup = Callable[[Context, QAItem], References]
ReferenceReader = Callable[[Path], Lookup]


def plain_answers(path: Path) -> Lookup:
    """Take all answers of a question as alternatives."""
    return lambda context, item: References(texts=tuple(answer.text for answer in item.answers))


def first_answer(path: Path) -> Lookup:
    """Take the first answer alone, as the evaluation of ROPES does."""
    return lambda context, item: References(texts=tuple(answer.text for answer in item.answers[:1]))
