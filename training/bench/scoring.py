"""From a reply to a row: what the user would read, its scores, who refused, and what is kept beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.bench.answering import Reply
from training.bench.metrics import answer_type, score
from training.bench.refusal import REFUSAL, says_no
from training.bench.samples import Row, Sample, Suite

SCORES = ("f1", "em", "rouge_l", "official")


def row_of(suite: Suite, system: str, sample: Sample, reply: Reply, *, bm25_rank: int | None) -> Row:
    """Score a reply.

    Args:
        bm25_rank: Of the best gold atom by words alone; kept beside the rank that the router gives it.
    """
    prediction = REFUSAL if reply.refused else reply.text
    extra: dict[str, Any] = {}
    if reply.refused:
        extra["ungated"] = {"prediction": reply.text, "scores": _rounded(score(suite.metric, reply.text, sample))}
    if reply.overruled:
        extra["overruled"] = True
    if reply.is_routed:
        extra["bm25_rank"] = bm25_rank
    by_model = "model" if not reply.error and says_no(prediction) else None
    return Row(
        suite=suite.name,
        system=system,
        sample_id=sample.sample_id,
        kind=sample.kind,
        question=sample.item.question,
        references=sample.references,
        prediction=prediction,
        scores=dict.fromkeys(SCORES, 0.0) if reply.error else _rounded(score(suite.metric, prediction, sample)),
        answer_type=answer_type(suite.metric, prediction, sample),
        answerability=_round(reply.answerability),
        refusal_logprob=_round(reply.refusal_logprob),
        refused_by="gate" if reply.refused else by_model,
        gold_rank=reply.gold_rank,
        error=reply.error,
        extra=extra,
    )


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in scores.items()}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
