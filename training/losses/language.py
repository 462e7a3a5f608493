"""Losses over the vocabulary at the answer's tokens: language modelling, distillation, composition.

T runs over the answer tokens of a batch, V over the vocabulary, K over the teacher's best tokens. Where the logits
come from is the caller's business.

A batch's logits are gigabytes, and autograd would write a handful of tensors of their size for each loss. All that a
step uses is therefore computed a chunk of tokens at a time, together with its gradient in closed form, and only the
gradient is kept, in the logits' dtype. These losses cannot be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from training.losses.precision import count, full

# Logits in a chunk: few enough to stay small beside a batch, many enough that starting a kernel costs nothing.
CHUNK_SIZE = 2**23


class _SumOverTokens(torch.autograd.Function):
    """Sum a loss over tokens, a chunk at a time, with gradients that it computes itself.

    The loss of a chunk is a function of, for each of the logits, where to write its gradient or None where nobody asks;
    the logits; and all else that has a row a token. It returns the sum.
    """

    @staticmethod
    def forward(ctx: Any, chunk_loss: Callable[..., Tensor], others: Sequence[Tensor], *logits: Tensor) -> Tensor:
        """Return the sum over all chunks; no gradient flows into the others."""
        gradients = [torch.empty_like(x) if x.requires_grad else None for x in logits]
        num_tokens, num_words = logits[0].shape
        chunk_size = max(1, CHUNK_SIZE // num_words)
        total = full(logits[0].new_zeros(()))
        for start in range(0, num_tokens, chunk_size):
            rows = slice(start, start + chunk_size)
            total += chunk_loss(*(x if x is None else x[rows] for x in (*gradients, *logits, *others)))
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients, out of place: a graph that is kept may ask again."""
        # CUDA would round a scale without dimensions to bfloat16 first, and so change the weight of the whole loss.
        scale_1 = scale[None]
        scaled = (x if x is None else torch.mul(x, scale_1, out=torch.empty_like(x)) for x in ctx.saved_tensors)
        return None, None, *scaled


def lm_loss(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """`-sum_t log P(y_t | y_<t, q, atoms)` over answer tokens, nats.

    Returns:
        The sum, and the number of tokens.

    Source: paper, "Language Modeling and Distillation", first equation.
    """
    return _SumOverTokens.apply(_lm_chunk, (target_T,), logits_TV), count(len(target_T), target_T)


def _lm_chunk(gradient_TV: Tensor | None, logits_TV: Tensor, target_T: Tensor) -> Tensor:
    """Return the loss of a chunk, whose gradient is `p - onehot(y)`."""
    log_p_TV, target_T1 = full(logits_TV).log_softmax(-1), target_T[:, None]
    log_p_T1 = log_p_TV.gather(-1, target_T1)
    if gradient_TV is not None:
        torch.exp(log_p_TV, out=gradient_TV)
        gradient_TV.scatter_(-1, target_T1, log_p_T1.expm1().to(gradient_TV.dtype))
    return -log_p_T1.sum()


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
    log_p, _ = _buckets(teacher_TV, token_TK, temperature)
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
    others = teacher.token_TK, teacher.log_p_TK, teacher.log_tail_T
    total = _SumOverTokens.apply(partial(_distill_chunk, temperature=temperature), others, logits_TV)
    return total, count(len(logits_TV), logits_TV)


def _distill_chunk(
    gradient_TV: Tensor | None,
    logits_TV: Tensor,
    token_TK: Tensor,
    log_p_TK: Tensor,
    log_tail_T: Tensor,
    *,
    temperature: float,
) -> Tensor:
    """Return the loss of a chunk.

    Its gradient is `(q_b sum_b p_b - p_b) / tau` at a bucket, of which each token of the last bucket has its share.
    """
    log_q, share_TV = _buckets(logits_TV, token_TK, temperature)
    log_p = torch.cat([log_p_TK, log_tail_T[:, None]], dim=-1).to(log_q.dtype)
    # A cache in half precision turns an empty tail into -inf, and 0 * -inf into nan; nor does it sum to one exactly.
    log_p = log_p.clamp(min=torch.finfo(log_p.dtype).min)
    p = log_p.exp()
    if gradient_TV is not None:
        slope = (log_q.exp() * p.sum(-1, keepdim=True) - p) / temperature
        torch.mul(share_TV, slope[:, -1:], out=gradient_TV)
        gradient_TV.scatter_(-1, token_TK, slope[:, :-1].to(gradient_TV.dtype))
    return (p * (log_p - log_q)).sum()


def _buckets(logits_TV: Tensor, token_TK: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log-probabilities `[T, K + 1]` of the given tokens and of all others together.

    The others are summed as they are: one minus the rest would keep no digit of a tail below 1e-7.

    Returns:
        The log-probabilities, and what share of the others' probability each token has, `[T, V]`: a given token none,
        unless there are no others.
    """
    scaled_TV = full(logits_TV) / temperature
    given_TK = scaled_TV.gather(-1, token_TK)
    others_TV = scaled_TV.scatter_(-1, token_TK, torch.finfo(scaled_TV.dtype).min)
    share_TV = others_TV.softmax(-1)
    # The best token's share is exp(its logit - logsumexp), which spares another pass of exponentials.
    log_sum_T1 = others_TV.amax(-1, keepdim=True) - share_TV.amax(-1, keepdim=True).log()
    return torch.cat([given_TK, log_sum_T1], dim=-1).log_softmax(-1), share_TV


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
    return _SumOverTokens.apply(_composition_chunk, (), logits_TV, forced_TV), count(len(logits_TV), logits_TV)


def _composition_chunk(
    gradient_TV: Tensor | None, forced_gradient_TV: Tensor | None, logits_TV: Tensor, forced_TV: Tensor
) -> Tensor:
    """Return the loss of a chunk.

    With `gap = log p - log f`, its gradients are `p - f + p (gap - E_p gap)` and `f - p - f (gap - E_f gap)`.
    """
    logits_TV, forced_TV = full(logits_TV), full(forced_TV)
    p_TV, f_TV = logits_TV.softmax(-1), forced_TV.softmax(-1)
    excess_TV, gap_TV = p_TV - f_TV, logits_TV - forced_TV
    # A shift of the gap changes neither loss nor gradients. This one makes E_p gap = 0, and so E_f gap = -loss.
    gap_TV -= (p_TV * gap_TV).sum(-1, keepdim=True)
    loss_T1 = (excess_TV * gap_TV).sum(-1, keepdim=True)
    if gradient_TV is not None:
        torch.addcmul(excess_TV, p_TV, gap_TV, out=gradient_TV)
    if forced_gradient_TV is not None:
        torch.addcmul(excess_TV, f_TV, gap_TV.add_(loss_T1), out=forced_gradient_TV).neg_()
    return loss_T1.sum()
