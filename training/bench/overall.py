"""Overall: one figure for all suites of the paper, as the mean of suites and as the paper's own, weighted mean.

Other suites take no part in either, and what is missing is named: an Overall of fewer suites is another figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from training.bench.published import INFERRED_COUNTS

NOTE = (
    "The weighted mean counts a suite as often as the paper has questions of it. The paper does not print those "
    "numbers: they are inferred from its Overall, which they reproduce to 0.01 points"
)


@dataclass(frozen=True, kw_only=True)
class Overall:
    """A score over suites.

    Args:
        macro: Every suite counts the same.
        weighted: A suite counts by the paper's number of questions, as inferred, and not by ours.
        suites: That took part.
        missing: Suites of the paper that did not.
    """

    macro: float
    weighted: float
    suites: tuple[str, ...]
    missing: tuple[str, ...]


def overall(scores: Mapping[str, float]) -> Overall | None:
    """Average one score of one system over the suites of the paper.

        macro = sum_s x_s / |S|,  weighted = sum_s n_s x_s / sum_s n_s

    Args:
        scores: By suite.

    Returns:
        None where no suite is one of the paper's.
    """
    suites = tuple(suite for suite in INFERRED_COUNTS if suite in scores)
    if not suites:
        return None
    values = [scores[suite] for suite in suites]
    return Overall(
        macro=fmean(values),
        weighted=fmean(values, weights=[INFERRED_COUNTS[suite] for suite in suites]),
        suites=suites,
        missing=tuple(suite for suite in INFERRED_COUNTS if suite not in scores),
    )
