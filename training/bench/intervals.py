"""Bootstrap intervals of a mean over suites: each suite is resampled within itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def stratified_interval(
    groups: Sequence[Sequence[float]],
    weights: Sequence[float] | None = None,
    *,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the weighted mean of the groups' means.

        mean = sum_g w_g mean(x_g) / sum_g w_g

    Args:
        groups: Values of each suite; the suites themselves are taken as given.
        weights: One a group; None counts them alike.
    """
    rng = np.random.default_rng(seed)
    share = np.asarray([1.0] * len(groups) if weights is None else weights, dtype=np.float64)
    means = np.zeros(samples)
    for group, weight in zip(groups, share / share.sum(), strict=True):
        values = np.asarray(group, dtype=np.float64)
        means += weight * np.array([values[rng.integers(len(values), size=len(values))].mean() for _ in range(samples)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
