"""DROP's official F1: spans as sets of words, aligned one to one, and numbers that have to be right.

The official evaluation takes a list of spans; a model writes text, which `spans_of` parts by a fixed rule.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from models.errors import D2AError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BETWEEN_SPANS = re.compile(r",?\s+and\s+|,\s+|\n+")


def spans_of(prediction: str) -> list[str]:
    """Part an answer at "and", at commas before a space, and at line ends.

    References of several spans are trained on as joined by " and ". Of DROP's single spans 2 % hold one of these
    separators; 6 % of its questions have several spans.
    """
    return [part.strip() for part in _BETWEEN_SPANS.split(prediction) if part.strip()] or [""]


def drop_f1(predicted: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the best F1 against any reference, each rounded to two decimals as in the official evaluation.

    Args:
        predicted: Spans, at least one.
        references: Alternatives, each of at least one span: the answer and its validators'.

    Raises:
        D2AError: The package scipy is not installed.
    """
    named = (reference for reference in references if reference[0].strip())
    return max((_aligned_f1(predicted, reference) for reference in named), default=0.0)


def _aligned_f1(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """Return the mean over the longer side of the F1 of pairs, paired so that it is largest."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise D2AError("spans are aligned with scipy", hint="Run: pip install 'd2a[bench]'") from error
    predicted_bags, expected_bags = [_bag(span) for span in predicted], [_bag(span) for span in expected]
    scores = [[_bag_f1(found, bag) for found in predicted_bags] for bag in expected_bags]
    rows, columns = linear_sum_assignment(scores, maximize=True)
    total = sum(scores[row][column] for row, column in zip(rows, columns, strict=True))
    return round(total / max(len(predicted), len(expected)), 2)


def _bag_f1(predicted: frozenset[str], expected: frozenset[str]) -> float:
    """Return the F1 of two sets of words; 0 where the reference has numbers and the prediction none of them."""
    numbers = {word for word in expected if _is_number(word)}
    if numbers and not numbers & predicted:
        return 0.0
    common = len(predicted & expected)
    precision = common / len(predicted) if predicted else 1.0
    recall = common / len(expected) if expected else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _bag(span: str) -> frozenset[str]:
    """Return the words of a span: parted at hyphens too, numbers in one form, without articles and punctuation."""
    words = (_normalize(word) for word in re.split("[ -]", span.lower()))
    return frozenset(part for word in words for part in word.split())


def _normalize(word: str) -> str:
    """Bring a word into its form; "3,000" becomes a number once its comma is gone, "3.5" keeps its point."""
    bare = word if _is_number(word) else word.translate(_PUNCTUATION)
    return _ARTICLES.sub(" ", str(float(bare)) if _is_number(bare) else bare)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
