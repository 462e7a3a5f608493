"""The official F1 of 2WikiMultihopQA, which is HotpotQA's."""

from __future__ import annotations

from collections.abc import Sequence

from training.metrics import normalize_answer, token_f1

_WHOLE = ("yes", "no", "noanswer")


def two_wiki_f1(prediction: str, references: Sequence[str]) -> float:
    """Return the best word F1, where yes and no have to be the whole answer on both sides to count."""
    return max((_f1(prediction, reference) for reference in references), default=0.0)


def _f1(prediction: str, reference: str) -> float:
    predicted, expected = normalize_answer(prediction), normalize_answer(reference)
    if predicted != expected and (predicted in _WHOLE or expected in _WHOLE):
        return 0.0
    return token_f1(prediction, [reference])
