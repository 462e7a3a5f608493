"""Losses of the first checkpoint, as pure functions that return a sum and what to divide it by.

The loop divides once. Holds language modelling, routing (binary and listwise) and irrelevance; the paper's
other losses are not here yet. Paper: Method, "Training Objective".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.injection import ComposedAdapter

NEGATIVE_WEIGHT, GOLD_WEIGHT, DISTRACTOR_WEIGHT = 0.5, 1.0, 1.5


def lm_loss(logits_TV: Tensor, target_T: Tensor) -> tuple[Tensor, Tensor]:
    """`-sum_t log P(y_t | y_<t, q, atoms)` over answer tokens, nats.

    Returns:
        The sum, and the number of tokens.
    """
    return F.cross_entropy(logits_TV.float(), target_T, reduction="sum"), torch.tensor(
        len(target_T), device=target_T.device
    )


def route_loss(
    score_BC: Tensor, gold_BC: Tensor, valid_BC: Tensor, distractor_BC: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`-sum_i a_i [m_i log sigma(s_i) + (1 - m_i) log(1 - sigma(s_i))]`, a = 0.5 negative, 1 gold, 1.5 distractor.

    Args:
        gold_BC, valid_BC, distractor_BC: Boolean masks over candidates.

    Returns:
        The weighted sum, and the number of valid candidates.
    """
    weight = torch.where(gold_BC, GOLD_WEIGHT, NEGATIVE_WEIGHT)
    if distractor_BC is not None:
        weight = weight.masked_fill(distractor_BC & ~gold_BC, DISTRACTOR_WEIGHT)
    bce = F.binary_cross_entropy_with_logits(score_BC, gold_BC.to(score_BC.dtype), reduction="none")
    return (bce * weight).masked_fill(~valid_BC, 0.0).sum(), valid_BC.sum()


def listwise_loss(score_BC: Tensor, gold_BC: Tensor, valid_BC: Tensor, *, null_slot: bool) -> tuple[Tensor, Tensor]:
    """`-log sum_{i in gold} softmax([s_1 .. s_C, 0])_i`; the null slot is the target where nothing is gold.

    Without a null slot questions that have no gold candidate are left out.

    Returns:
        The sum over questions, and how many count.
    """
    score = score_BC.masked_fill(~valid_BC, -torch.inf)
    gold = gold_BC & valid_BC
    if null_slot:
        score = F.pad(score, (0, 1), value=0.0)
        gold = torch.cat([gold, ~gold.any(-1, keepdim=True)], dim=-1)
    counts = gold.any(-1)
    log_p = score[counts].log_softmax(-1).masked_fill(~gold[counts], -torch.inf).logsumexp(-1)
    return -log_p.sum(), counts.sum()


def irrelevant_loss(adapter: ComposedAdapter, slot_weight_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`sum_{l,m} ||A||_F^2 + ||B||_F^2` of adapters composed for off-topic questions.

    Args:
        slot_weight_B: Sum of the routing weights on micro-KV slots, its counterpart; added as it is.

    Returns:
        The sum over questions, and their number.
    """
    norms = [t.float().square().sum((1, 2)) for pair in adapter.lora.values() for t in pair]
    total_B = torch.stack(norms).sum(0)
    if slot_weight_B is not None:
        total_B = total_B + slot_weight_B
    return total_B.sum(), torch.tensor(len(total_B), device=total_B.device)
