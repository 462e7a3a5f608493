"""Two runs, or two systems of one run, sample by sample: differences with paired bootstrap intervals.

Only samples that both sides answered are compared, so that what one side has more of moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NoReturn

from models.errors import D2AError
from training.bench.intervals import stratified_interval
from training.bench.results import Results
from training.bench.samples import Row, is_refusal_suite

# What must be equal for a difference to be the systems' own.
SAME = ("protocol", "bank", "k", "seed")
RESAMPLES = 4000
ALL_SUITES = "mean of suites"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A score on the samples that both sides have, shares in [0, 1].

    Args:
        system: The system of both runs, or `X - Y` for two systems of one.
        a, b: Means.
        difference: b - a, with its 95 % interval over resampled pairs.
        only_a, only_b: Samples left out because the other side lacks them.
    """

    suite: str
    system: str
    n: int
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    only_a: int = 0
    only_b: int = 0

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval leaves out zero, else `no difference shown`; of b against a."""
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "no difference shown"


def compare_runs(a: Results, b: Results, *, score: str = "f1") -> list[Comparison]:
    """Compare what two runs have in common, a row a suite and system, and a row a system for all its suites.

    Raises:
        D2AError: They have nothing in common.
    """
    pairs = [_paired(*key, a.rows[key], b.rows[key], score) for key in a.rows if key in b.rows]
    return _summed(pairs) or _nothing(
        f"{a.folder} and {b.folder} share no sample of one suite and system",
        "Compare runs of the same suites, with the same --limit and --seed",
    )


def compare_systems(run: Results, a: str, b: str, *, score: str = "f1") -> list[Comparison]:
    """Compare two systems of one run, a row a suite, and one for all of them.

    Raises:
        D2AError: One of them has no rows, or they share no suite.
    """
    for system in (a, b):
        if system not in run.systems:
            _nothing(f"{run.folder} has no rows of {system!r}", f"It has: {', '.join(run.systems) or 'none at all'}")
    suites = [suite for suite in run.suites if (suite, a) in run.rows and (suite, b) in run.rows]
    pairs = [_paired(s, f"{b} - {a}", run.rows[s, a], run.rows[s, b], score) for s in suites]
    return _summed(pairs) or _nothing(f"{a} and {b} share no sample in {run.folder}", "Run both on one suite")


def _nothing(message: str, hint: str) -> NoReturn:
    raise D2AError(message, hint=hint)


def _summed(pairs: Sequence[_Pairs]) -> list[Comparison]:
    """Return a row for each suite in which samples are shared, and one a system over several of them."""
    pairs = [pair for pair in pairs if pair.differences]
    found = [_compared(pair.suite, [pair]) for pair in pairs]
    for system in dict.fromkeys(pair.system for pair in pairs):
        own = [pair for pair in pairs if pair.system == system and not is_refusal_suite(pair.suite)]
        if len(own) > 1:
            found.append(_compared(ALL_SUITES, own))
    return found


def warnings(a: Results, b: Results) -> list[str]:
    """Return in which settings two runs differ that should be equal, a line each."""
    pairs = {name: (a.header.get(name), b.header.get(name)) for name in SAME}
    return [f"{name} differs: {left} and {right}" for name, (left, right) in pairs.items() if left != right]


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """What two sides score on the samples of a suite that both have."""

    suite: str
    system: str
    a: Sequence[float]
    b: Sequence[float]
    only_a: int
    only_b: int

    @property
    def differences(self) -> list[float]:
        return [right - left for left, right in zip(self.a, self.b, strict=True)]


def _paired(suite: str, system: str, a: Sequence[Row], b: Sequence[Row], score: str) -> _Pairs:
    left, right = _by_sample(a, score), _by_sample(b, score)
    both = [sample for sample in left if sample in right]
    return _Pairs(
        suite=suite,
        system=system,
        a=[left[sample] for sample in both],
        b=[right[sample] for sample in both],
        only_a=len(left) - len(both),
        only_b=len(right) - len(both),
    )


def _compared(suite: str, pairs: Sequence[_Pairs]) -> Comparison:
    """Compare the means over suites, each of which counts the same."""
    a, b = fmean(fmean(pair.a) for pair in pairs), fmean(fmean(pair.b) for pair in pairs)
    return Comparison(
        suite=suite,
        system=pairs[0].system,
        n=sum(len(pair.a) for pair in pairs),
        a=a,
        b=b,
        difference=b - a,
        interval=stratified_interval([pair.differences for pair in pairs], samples=RESAMPLES),
        only_a=sum(pair.only_a for pair in pairs),
        only_b=sum(pair.only_b for pair in pairs),
    )


def _by_sample(rows: Sequence[Row], score: str) -> dict[str, float]:
    """Return the score of each sample; a row that failed counts 0."""
    missing = next((row for row in rows if score not in row.scores and not row.error), None)
    if missing:
        known: Mapping[str, Any] = missing.scores
        raise D2AError(f"{missing.suite} has no score {score!r}", hint=f"It has: {', '.join(known)}")
    return {row.sample_id: row.scores.get(score, 0.0) for row in rows}
