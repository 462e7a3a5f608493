"""Does a trained system use the document that it was given? The same questions, asked of another article.

A hypernetwork may lower its loss while it writes the same update whatever it reads. Before any figure of a system
is quoted, its loss under another document must exceed the one under the right document, and its answers must move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import Batch
from training.systems.answers import AnswerLogits
from training.systems.evidence import strangers, swapped


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What another article's document changes.

    Args:
        correct_nats, shuffled_nats: Cross-entropy a token of the answer, under the right document and another.
        moved: Share of questions whose best tokens, the answer so far being right, are not the same under both.
        num_questions: Questions with a right document and another one to compare it with.
    """

    correct_nats: float
    shuffled_nats: float
    moved: float
    num_questions: int

    @property
    def margin_nats(self) -> float:
        """By how much the other document is worse."""
        return self.shuffled_nats - self.correct_nats


@torch.no_grad()
def context_sensitivity(
    answer: Callable[[Batch], AnswerLogits], batch: Batch, article_of_atom_N: Tensor
) -> Sensitivity:
    """Answer a batch twice, the second time each question under the document of a question on another article.

    Args:
        answer: A system's logits for a batch, as `answer` of a system gives them.
        batch: Its answerable language-model rows count.
        article_of_atom_N: The article of each atom.
    """
    donor_B = strangers(batch, article_of_atom_N)
    fair_B = (donor_B != torch.arange(len(donor_B), device=donor_B.device)) & ~batch.refuse_B[: batch.num_lm]
    right, other = answer(batch), answer(swapped(batch, donor_B))
    right, other = right.where(fair_B[right.row_T]), other.where(fair_B[other.row_T])
    moved_T = right.logits_TV.argmax(-1) != other.logits_TV.argmax(-1)
    moved_B = torch.zeros_like(fair_B).index_put((right.row_T,), moved_T, accumulate=True)
    number = int(fair_B.sum())
    return Sensitivity(
        correct_nats=float(F.cross_entropy(right.logits_TV.float(), right.target_T)),
        shuffled_nats=float(F.cross_entropy(other.logits_TV.float(), other.target_T)),
        moved=float(moved_B.sum()) / max(1, number),
        num_questions=number,
    )
