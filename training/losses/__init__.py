"""The ten losses of the paper, as pure functions that return a sum and what to divide it by.

The loop divides, once, by the count of the whole global batch; weights and schedules are its business too.
`language` compares distributions over the vocabulary, `routing` judges the router, `adapters` keeps what is
written small and selective. Paper: Method, "Training Objective".
"""

from training.losses.adapters import (
    input_bases,
    irrelevant_loss,
    principal_basis,
    protect_loss,
    protect_prefix_loss,
    sparse_loss,
)
from training.losses.language import (
    TeacherTopK,
    composition_loss,
    distill_loss,
    distill_topk_loss,
    lm_loss,
    teacher_topk,
)
from training.losses.routing import confidence_loss, conflict_loss, listwise_loss, rerank_loss, route_loss

__all__ = [
    "TeacherTopK",
    "composition_loss",
    "confidence_loss",
    "conflict_loss",
    "distill_loss",
    "distill_topk_loss",
    "input_bases",
    "irrelevant_loss",
    "listwise_loss",
    "lm_loss",
    "principal_basis",
    "protect_loss",
    "protect_prefix_loss",
    "rerank_loss",
    "route_loss",
    "sparse_loss",
    "teacher_topk",
]
