"""Systems without an adapter: the question alone, its document, or passages that a search finds."""

from __future__ import annotations

from collections.abc import Sequence

from training.bench.bank import SuiteBank
from training.bench.systems.passages import Passages
from training.bench.systems.system import Given


class NoContext:
    """The base, asked without any text."""

    is_trained = False

    def __init__(self, name: str) -> None:
        self.name = name

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give nothing."""
        return Given(texts=[None] * len(rows))


class WholeDocument:
    """The base with the document that is asked about in its prompt."""

    is_trained = False

    def __init__(self, name: str) -> None:
        self.name = name

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give each question its document."""
        return Given(texts=[bank.document(row) for row in rows])


class Retrieval:
    """The base with the best K passages of the bank in its prompt, best first.

    Args:
        by: `words`, `keys`, or both; see `Passages.best`.
    """

    is_trained = False

    def __init__(self, name: str, *, by: tuple[str, ...]) -> None:
        self.name, self.by = name, by
        self._of: tuple[SuiteBank, Passages] | None = None

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give each question its passages."""
        if self._of is None or self._of[0] is not bank:
            self._of = bank, Passages(bank)
        found = self._of[1].best(rows, by=self.by)
        return Given(texts=["\n\n".join(texts) for texts in found])
