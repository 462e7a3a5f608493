"""Losses over the vocabulary at the answer's tokens: language modelling, distillation, composition.

T runs over the answer tokens of a batch, V over the vocabulary, K over the teacher's best tokens. Where the logits
come from is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.losses.precision import count, full


def lm_loss(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """`-sum_t log P(y_t | y_<t, q, atoms)` over answer tokens, nats.

    Returns:
        The sum, and the number of tokens.

    Source: paper, "Language Modeling and Distillation", first equation.
    """
    return F.cross_entropy(full(logits_TV), target_T, reduction="sum"), count(len(target_T), target_T)


def distill_loss(logits_TV: Tensor, teacher_TV: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """`sum_t KL(softmax(teacher_t / tau) || softmax(student_t / tau))`, nats.

    Args:
        teacher_TV: Logits of the base that reads the document, at the same tokens; no gradient flows into them.
        temperature: tau; the paper trains at 1.5.

    Returns:
        The sum, and the number of tokens.

    Source: paper, "Language Modeling and Distillation", second equation. It has no factor tau^2, so neither has
    this; where the two differ little the gradient is that of tau = 1 divided by about tau^2, which a weight makes up.
    """
    log_q_TV = (full(logits_TV) / temperature).log_softmax(-1)
    log_p_TV = (full(teacher_TV.detach()) / temperature).log_softmax(-1)
    return F.kl_div(log_q_TV, log_p_TV, reduction="sum", log_target=True), count(len(logits_TV), logits_TV)


@dataclass(frozen=True, kw_only=True)
class TeacherTopK:
    """A teacher's distribution at temperature tau, as its best tokens and one bucket for all the others.

    tau cannot be changed afterwards: the tail's mass depends on it.

    Args:
        token_TK: Distinct token ids, best first.
        log_p_TK: Their log-probabilities over the whole vocabulary, nats.
        log_tail_T: Log of the mass of all other tokens; the dtype's minimum, or -inf, where nothing is left.
    """

    token_TK: Tensor
    log_p_TK: Tensor
    log_tail_T: Tensor


@torch.no_grad()
def teacher_topk(teacher_TV: Tensor, *, k: int, temperature: float) -> TeacherTopK:
    """Cut a teacher's logits down to what `distill_topk_loss` needs; `k` at most the vocabulary's size."""
    token_TK = teacher_TV.topk(k, dim=-1).indices
    log_p = _bucket_log_p(teacher_TV, token_TK, temperature)
    return TeacherTopK(token_TK=token_TK, log_p_TK=log_p[:, :-1], log_tail_T=log_p[:, -1])


def distill_topk_loss(logits_TV: Tensor, teacher: TeacherTopK, *, temperature: float) -> tuple[Tensor, Tensor]:
    """`sum_t sum_b p_b (log p_b - log q_b)`, b over the teacher's K best tokens and the bucket of all others.

    Merging tokens loses information, so this is at most the full KL, and equal to it at K = V.

    Args:
        temperature: Must be the one that `teacher` was made at.

    Returns:
        The sum, and the number of tokens.

    Source: `distill_loss`, with what a cache can hold; its error is in docs/LOG.md.
    """
    log_q = _bucket_log_p(logits_TV, teacher.token_TK, temperature)
    log_p = torch.cat([teacher.log_p_TK, teacher.log_tail_T[:, None]], dim=-1).to(log_q.dtype)
    # A cache in half precision turns an empty tail into -inf, and 0 * -inf into nan.
    log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min)
    return (log_p.exp() * (log_p - log_q)).sum(), count(len(logits_TV), logits_TV)


def _bucket_log_p(logits_TV: Tensor, token_TK: Tensor, temperature: float) -> Tensor:
    """Return log-probabilities `[T, K + 1]` of the given tokens and of all others together.

    The others are summed as they are: one minus the rest would keep no digit of a tail below 1e-7.
    """
    scaled = full(logits_TV) / temperature
    others = scaled.scatter(-1, token_TK, torch.finfo(scaled.dtype).min)
    buckets = torch.cat([scaled.gather(-1, token_TK), others.logsumexp(-1, keepdim=True)], dim=-1)
    return buckets - scaled.logsumexp(-1, keepdim=True)


def composition_loss(logits_TV: Tensor, forced_TV: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_t KL(p_t || f_t) + KL(f_t || p_t) = sum_t sum_v (p_tv - f_tv) (log p_tv - log f_tv)`, nats.

    Args:
        logits_TV: The student under the atoms and weights that the router chose.
        forced_TV: The student under its gold atoms alone, at the same tokens. Gradients flow into both, as in the
            paper's symmetric form; a caller that detaches one saves its backward pass.

    Returns:
        The sum, and the number of tokens.

    Source: paper, "Composition Consistency". The paper leaves open whether KL_sym is the sum of both directions or
    their mean; this is the sum.
    """
    log_p, log_f = full(logits_TV).log_softmax(-1), full(forced_TV).log_softmax(-1)
    return ((log_p.exp() - log_f.exp()) * (log_p - log_f)).sum(), count(len(logits_TV), logits_TV)
