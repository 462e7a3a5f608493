"""Losses of the router: which atoms it should pick, and how it should share the weight among them.

B runs over questions, C over their candidates, K over the selected ones; masks are boolean.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NEGATIVE_WEIGHT, GOLD_WEIGHT, DISTRACTOR_WEIGHT = 0.5, 1.0, 1.5


def route_loss(
    score_BC: Tensor,
    gold_BC: Tensor,
    valid_BC: Tensor,
    distractor_BC: Tensor | None = None,
    supporting_BC: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`-sum_i a_i [m_i log sigma(s_i) + (1 - m_i) log(1 - sigma(s_i))]`, a = 0.5 negative, 1 gold, 1.5 distractor.

    Args:
        gold_BC, valid_BC, distractor_BC: Masks over candidates; a gold atom is never a distractor.
        supporting_BC: Left out of the loss where not gold (recipe d2a). None makes them negatives, as the paper
            does, whose masks know only gold.

    Returns:
        The weighted sum, and the number of candidates that take part.

    Source: paper, "Routing Supervision", first equation.
    """
    weight = torch.where(gold_BC, GOLD_WEIGHT, NEGATIVE_WEIGHT)
    if distractor_BC is not None:
        weight = weight.masked_fill(distractor_BC & ~gold_BC, DISTRACTOR_WEIGHT)
    if supporting_BC is not None:
        valid_BC = valid_BC & (gold_BC | ~supporting_BC)
    bce = F.binary_cross_entropy_with_logits(score_BC, gold_BC.to(score_BC.dtype), reduction="none")
    return (bce * weight).masked_fill(~valid_BC, 0.0).sum(), valid_BC.sum()


def listwise_loss(score_BC: Tensor, gold_BC: Tensor, valid_BC: Tensor, *, null_slot: bool) -> tuple[Tensor, Tensor]:
    """`-log sum_{i in gold} softmax([s_1 .. s_C, 0])_i`; the null slot is the target where nothing is gold.

    Any gold atom will do. Without a null slot questions that have no gold candidate are left out.

    Returns:
        The sum over questions, and how many count.

    Source: ours, for the null slot of `models.router`; not in the paper.
    """
    score, gold = _with_null(score_BC, gold_BC, valid_BC, null_slot=null_slot)
    counts = gold.any(-1)
    log_p = score[counts].log_softmax(-1).masked_fill(~gold[counts], -torch.inf).logsumexp(-1)
    return -log_p.sum(), counts.sum()


def rerank_loss(score_BC: Tensor, gold_BC: Tensor, reranked_BC: Tensor, *, null_slot: bool) -> tuple[Tensor, Tensor]:
    """`-1 / |gold| sum_{i in gold} log softmax(s)_i` over the candidates of stage 2.

    Every gold atom must rise, which a question over two atoms needs, and not just any one of them.

    Args:
        score_BC: Fused scores, the cross-encoder's term among them.
        reranked_BC: Candidates that the cross-encoder scored.
        null_slot: Score 0 competes too, and is the target where nothing is gold; without one such questions are
            left out.

    Returns:
        The sum over questions, and how many count.

    Source: paper, "Routing Supervision", L_rerank, given in words: listwise softmax cross-entropy. The equal share
    of several gold atoms is our reading.
    """
    score, gold = _with_null(score_BC, gold_BC, reranked_BC, null_slot=null_slot)
    counts = gold.any(-1)
    log_p = score[counts].log_softmax(-1).masked_fill(~gold[counts], 0.0).sum(-1)
    return -(log_p / gold[counts].sum(-1)).sum(), counts.sum()


def conflict_loss(score_BC: Tensor, gold_BC: Tensor, valid_BC: Tensor, group_BC: Tensor) -> tuple[Tensor, Tensor]:
    """`-log sum_{i in gold of G} softmax_{i in G}(s)_i` for every question and conflict group G with both kinds.

    A group without a gold atom has no target, and one of gold atoms alone no conflict: both are left out.

    Args:
        group_BC: Conflict group of each candidate, -1 where it has none; ids differ between documents.

    Returns:
        The sum over pairs of question and group, and their number.

    Source: paper, L_conflict, given in words: "an intra-group listwise cross-entropy".
    """
    in_group_BC = valid_BC & (group_BC >= 0)
    row_B = torch.arange(len(group_BC), device=group_BC.device)[:, None].expand_as(group_BC)
    golds = in_group_BC & gold_BC
    row_P, group_P = torch.stack([row_B[golds], group_BC[golds]]).unique(dim=1)
    member_PC = in_group_BC[row_P] & (group_BC[row_P] == group_P[:, None])
    gold_PC = gold_BC[row_P] & member_PC
    contested_P = (member_PC & ~gold_PC).any(-1)
    return listwise_loss(score_BC[row_P][contested_P], gold_PC[contested_P], member_PC[contested_P], null_slot=False)


def confidence_loss(log_weight_BK: Tensor, confidence_BK: Tensor, relevant_BK: Tensor) -> tuple[Tensor, Tensor]:
    """`KL(c_i / sum_j c_j || w_i / sum_j w_j)` over a question's relevant selected atoms, nats.

    Which atoms get weight is the routing losses' business; this one says how those that should have it share it, so
    it cannot push a confident atom that does not answer. Questions with fewer than two such atoms, or with no
    confidence in any, have nothing to share and are left out.

    Args:
        log_weight_BK: Log of the router's weights, -inf where 0.
        confidence_BK: Annotated confidence of the selected atoms, in [0, 1].
        relevant_BK: Selected atoms that are gold.

    Returns:
        The sum over questions, and how many count.

    Source: paper, L_confidence, given in words: "aligns routing weights with annotation-side confidence priors".
    The restriction to gold atoms is our reading.
    """
    relevant = relevant_BK & log_weight_BK.isfinite()
    prior = confidence_BK.to(log_weight_BK.dtype).masked_fill(~relevant, 0.0)
    counts = (relevant.sum(-1) > 1) & (prior.sum(-1) > 0)
    relevant, prior = relevant[counts], prior[counts] / prior[counts].sum(-1, keepdim=True)
    log_w = log_weight_BK[counts].masked_fill(~relevant, -torch.inf).log_softmax(-1).masked_fill(~relevant, 0.0)
    return -(torch.special.entr(prior) + prior * log_w).sum(), counts.sum()


def _with_null(score_BC: Tensor, gold_BC: Tensor, valid_BC: Tensor, *, null_slot: bool) -> tuple[Tensor, Tensor]:
    """Mask the scores and, with a null slot, add it as the last candidate."""
    score, gold = score_BC.masked_fill(~valid_BC, -torch.inf), gold_BC & valid_BC
    if null_slot:
        score = F.pad(score, (0, 1), value=0.0)
        gold = torch.cat([gold, ~gold.any(-1, keepdim=True)], dim=-1)
    return score, gold
