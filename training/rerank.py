"""Scores of the frozen cross-encoder for every question and atom of its asked passage, computed once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.atoms import AnnotationRecord
from models.reranker import CrossEncoder
from training.episodes import Episodes


def rerank_scores(
    encoder: CrossEncoder, records: Sequence[AnnotationRecord], episodes: Episodes, *, max_tokens: int
) -> np.ndarray:
    """Return scores flat over episodes, in the places of `local_lexical`.

    Args:
        max_tokens: Limit of a question-atom pair.
    """
    questions = [q.question for r in records for q in r.qa_pairs]
    texts = [[a.content for a in r.atoms] for r in records]
    rows = zip(episodes.question, episodes.passage, strict=True)
    scores = [encoder.scores(questions[q], texts[p], max_tokens) for q, p in rows]
    return np.concatenate(scores).astype(np.float32)
