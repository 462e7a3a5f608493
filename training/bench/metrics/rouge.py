"""ROUGE-L: the longest common subsequence of a prediction and a reference, as an F-measure of words.

The words are those of the F1 beside it (`training.metrics.normalize_answer`), neither stemmed nor with articles. The
paper names no tool, but its ROUGE-L never exceeds its F1, and equals it to two decimals in most columns of DROP, ROPES
and Chinese, which holds for equal words alone. The package `rouge-score` keeps articles, stems, and drops what is not
ASCII, so that every Chinese answer scores 0; where the words are the same the two agree, which a test checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from training.metrics import normalize_answer


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F-measure against any reference, in [0, 1].

        P = LCS / |prediction|,  R = LCS / |reference|,  F = 2 P R / (P + R)

    Source: Lin, 2004, with beta = 1.
    """
    predicted = normalize_answer(prediction).split()
    return max((_f_measure(predicted, normalize_answer(r).split()) for r in references), default=0.0)


def _f_measure(predicted: Sequence[str], expected: Sequence[str]) -> float:
    common = _lcs_length(predicted, expected)
    return 2 * common / (len(predicted) + len(expected)) if common else 0.0


def _lcs_length(left: Sequence[str], right: Sequence[str]) -> int:
    lengths = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for i, other in enumerate(right, start=1):
            above = lengths[i]
            lengths[i] = diagonal + 1 if word == other else max(above, lengths[i - 1])
            diagonal = above
    return lengths[-1]
