"""Answer metrics: SQuAD's normalisation, F1 and exact match, and the area under the ROC curve."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation and English articles, and squeeze white space.

    Source: the official SQuAD 1.1 evaluation.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(prediction: str, references: Sequence[str]) -> float:
    """Return the best word F1 against any reference, in [0, 1]."""
    return max(
        (bag_f1(normalize_answer(prediction).split(), normalize_answer(r).split()) for r in references), default=0.0
    )


def bag_f1(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Return the F1 of two bags of tokens, 0 where they share none."""
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1.0 where the normalised prediction equals a normalised reference."""
    return float(any(normalize_answer(prediction) == normalize_answer(r) for r in references))


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the probability that a positive scores above a negative, ties counting half (Mann-Whitney U).

    NaN where one side is empty, or a score is NaN.
    """
    if not positive or not negative or np.isnan([*positive, *negative]).any():
        return float("nan")
    ranked = sorted([(s, 1) for s in positive] + [(s, 0) for s in negative])
    rank_sum, i = 0.0, 0
    while i < len(ranked):
        j = i
        while j < len(ranked) and ranked[j][0] == ranked[i][0]:
            j += 1
        rank_sum += sum(label for _, label in ranked[i:j]) * (i + 1 + j) / 2
        i = j
    p, n = len(positive), len(negative)
    return (rank_sum - p * (p + 1) / 2) / (p * n)


def bootstrap_interval(values: Sequence[float], *, samples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean, by resampling `values`."""
    rng, array = np.random.default_rng(seed), np.asarray(values, dtype=np.float64)
    means = [array[rng.integers(len(array), size=len(array))].mean() for _ in range(samples)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
