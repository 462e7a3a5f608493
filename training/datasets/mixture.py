"""Shares of the sources in training: how often each is drawn, and which of its contexts come when.

What comes out depends on the seed and the sizes alone, so that machines and restarts agree. It knows no contexts,
only how many each source has.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from models.errors import ConfigError

FLOOR = 0.01


def mixture_shares(
    sizes: Mapping[str, int], weights: Mapping[str, float] | None = None, floor: float = FLOOR
) -> dict[str, float]:
    """Return the share of each source in a mixture; they sum to 1.

    Args:
        sizes: Number of contexts by source.
        weights: Relative shares by source, in [0, inf); sources that it leaves out do not take part. None for
            shares in proportion to the sizes.
        floor: The least share of a source that is mixed in proportion, in [0, 1/number of sources].

    Raises:
        ConfigError: A weight of a source that is not there, or shares that cannot be.

    Source: the floor is that of Doc-to-LoRA's mixture, 1 %; the paper names its five sources and no shares.
    """
    sizes = {name: size for name, size in sizes.items() if size}
    if weights is not None:
        return _explicit(sizes, weights)
    if not 0 <= floor * len(sizes) <= 1:
        raise ConfigError(f"mixture: floor must be in [0, 1/{len(sizes)}], got {floor}")
    raised: set[str] = set()
    # Raising one share lowers the others, which may then need raising as well.
    while more := _below(sizes, raised, floor):
        raised |= more
    rest = sum(size for name, size in sizes.items() if name not in raised)
    free = 1 - floor * len(raised)
    return {name: floor if name in raised else free * size / rest for name, size in sizes.items()}


def _below(sizes: Mapping[str, int], raised: set[str], floor: float) -> set[str]:
    rest = sum(size for name, size in sizes.items() if name not in raised)
    free = 1 - floor * len(raised)
    return {name for name, size in sizes.items() if name not in raised and free * size < floor * rest}


def _explicit(sizes: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in sizes:
            raise ConfigError(
                f"mixture.weights: {name} must be one of the sources {sorted(sizes)}", hint="Load it or drop its weight"
            )
        if not weight >= 0:
            raise ConfigError(f"mixture.weights: {name} must be at least 0, got {weight}")
    total = sum(weights.values())
    if not 0 < total < float("inf"):
        raise ConfigError(f"mixture.weights: their sum must be above 0 and finite, got {total}")
    return {name: weight / total for name, weight in weights.items() if weight}


def mix(sizes: Mapping[str, int], shares: Mapping[str, float], *, seed: int, total: int) -> list[tuple[str, int]]:
    """Return the contexts of one pass over a mixture, as `(source, place in the source)`, shuffled.

    Each source fills its share to within one context. It goes through all of its contexts before any comes again.

    Args:
        sizes: Number of contexts by source.
        shares: Share by source, of `mixture_shares`; they sum to 1.
        total: Number of contexts in the pass.
    """
    drawn: list[tuple[str, int]] = []
    for name, count in _counts(shares, total).items():
        # Seeded by text, `random` draws the same numbers on every machine and in every version of Python.
        places = random.Random(f"{seed}/{name}")
        rounds = -(-count // sizes[name])
        order = [place for _ in range(rounds) for place in places.sample(range(sizes[name]), sizes[name])]
        drawn += [(name, place) for place in order[:count]]
    random.Random(f"{seed}").shuffle(drawn)
    return drawn


def _counts(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Round shares of a total to whole numbers that sum to it, by largest remainders."""
    exact = {name: share * total for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts
