"""QASPER's official answer F1 by type of answer; evidence F1 is not here, for no system of ours names paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

from training.metrics import token_f1


def best_type(prediction: str, references: Sequence[str], types: Sequence[str]) -> str:
    """Return the type of the annotator's answer that the prediction is nearest to, of the first among equals.

    The official evaluation counts a question under this type, so that its type depends on the prediction.
    """
    pairs = zip(references, types, strict=True)
    return max(pairs, key=lambda pair: token_f1(prediction, [pair[0]]))[1]
