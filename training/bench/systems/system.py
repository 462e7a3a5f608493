"""What every system of the benchmark is: something that gives the base text, an adapter, or both, for each question.

Prompting, decoding and the gate are the same for all of them (`answering`), so that systems differ in what they give
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from models.injection import ComposedAdapter
from training.bench.bank import SuiteBank
from training.library import RoutedAsks

MakeAdapter = Callable[[Sequence[int]], ComposedAdapter | None]


def no_adapter(places: Sequence[int]) -> None:
    """Give nothing, for any questions."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a system gives the base for some questions.

    Args:
        texts: What stands before each question in its prompt; None for nothing.
        adapter: Makes the adapter of some of the questions, by their places among these.
        routed: What the questions were routed to, where that is so.
        gated: The gate judges the routing, and may refuse.
        may_refuse: The model may, too; else what it would refuse begins otherwise.
        weights: Tokens of a prompt that an adapter takes as much memory as, one a question.
    """

    texts: Sequence[str | None]
    adapter: MakeAdapter = no_adapter
    routed: RoutedAsks | None = None
    gated: bool = False
    may_refuse: bool = True
    weights: Sequence[int] | None = None


class System(Protocol):
    """A row of the table.

    Attributes:
        is_trained: It was trained with the prompt of `models.prompts`, and keeps it under every protocol.
    """

    name: str
    is_trained: bool

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Return what the base is given for the samples `rows` of the bank's suite, all at once.

        Raises:
            Exception: It fails on one of them; they are then asked one by one.
        """
        ...
