"""The official F1 of SQuAD 2.0, which extends that of SQuAD 1.1 (`training.metrics.token_f1`) by the empty answer."""

from __future__ import annotations

from collections.abc import Sequence

from training.metrics import bag_f1, normalize_answer


def squad_v2_f1(prediction: str, references: Sequence[str], *, refusal: str) -> float:
    """Return the best word F1, where no answer is right exactly for a question without an answer.

    Args:
        references: Those that normalise to nothing do not count; without any, only an empty prediction is right.
        refusal: The word by which systems refuse. The official evaluation expects an empty string in its place.
    """
    predicted = normalize_answer(prediction).split()
    if predicted == [refusal]:
        predicted = []
    expected = [words for reference in references if (words := normalize_answer(reference).split())] or [[]]
    return max(bag_f1(predicted, words) if predicted and words else float(predicted == words) for words in expected)
