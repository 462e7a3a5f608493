"""The suites that `d2a bench` knows, as data: which files feed each, its official size, references and metric."""

from __future__ import annotations

from dataclasses import dataclass

from training.bench.suites.references import ReferenceReader, plain_answers
from training.datasets import DATASETS, EVAL_SETS


@dataclass(frozen=True, kw_only=True)
class SuiteInfo:
    """A set to measure on.

    Args:
        eval_set: Name in `EVAL_SETS`, which has its form and its files.
        metric: Name in `training.bench.metrics`.
        num_official: Questions of the official set; fewer are a subset.
        references: Reads the references as the set's official evaluation does.
    """

    name: str
    eval_set: str
    metric: str
    num_official: int
    references: ReferenceReader = plain_answers

    @property
    def dataset(self) -> str:
        """The set in `DATASETS` whose form this one has."""
        return EVAL_SETS[self.eval_set].dataset

    @property
    def folder(self) -> str:
        """Name of its folder in a collection of sets."""
        return DATASETS[self.dataset].folder

    @property
    def files(self) -> tuple[str, ...]:
        """Globs below that folder."""
        return EVAL_SETS[self.eval_set].files

    @property
    def is_on_hub(self) -> bool:
        """Whether the hub's dev split is this set."""
        return EVAL_SETS[self.eval_set].is_published_dev and DATASETS[self.dataset].hub is not None


_SUITES = (
    SuiteInfo(name="squad", eval_set="squad", metric="squad", num_official=10570),
    SuiteInfo(name="squad_v2", eval_set="squad_v2", metric="squad_v2", num_official=11873),
)
SUITES = {info.name: info for info in _SUITES}
