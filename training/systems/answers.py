"""Running the upper layers over prompts with answers, under an adapter.

B rows, T answer tokens of all rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FrozenBase
from models.injection import ComposedAdapter, attached
from training.features import Targets


@dataclass(frozen=True, kw_only=True)
class AnswerLogits:
    """Logits at the answers' tokens, row after row.

    Args:
        target_T: The tokens.
        row_T: The row of each, in rising order.
    """

    logits_TV: Tensor
    target_T: Tensor
    row_T: Tensor

    def where(self, keep_T: Tensor) -> AnswerLogits:
        """Return only some of the tokens."""
        return AnswerLogits(logits_TV=self.logits_TV[keep_T], target_T=self.target_T[keep_T], row_T=self.row_T[keep_T])


def answer_logits(
    base: FrozenBase, targets: Targets, adapter: ComposedAdapter | None, *, first_layer: int
) -> AnswerLogits:
    """Run the decoder from `first_layer`, whose entering states `targets` holds."""
    with attached(base, adapter):
        out_BLD = base.run_layers(targets.state_BLD, start=first_layer, stop=base.num_layers)
    row_T, step_T = targets.answer_BL.nonzero(as_tuple=True)
    return AnswerLogits(
        logits_TV=base.logits(out_BLD[row_T, step_T - 1]), target_T=targets.token_BL[row_T, step_T], row_T=row_T
    )


def joined(parts: Sequence[tuple[Tensor, AnswerLogits]]) -> AnswerLogits:
    """Return several parts of a batch as one, given the rows `[B]` of the batch that are in each."""
    row_T = torch.cat([row_B[answer.row_T] for row_B, answer in parts])
    order_T = row_T.argsort(stable=True)
    logits_TV, target_T = (torch.cat([getattr(a, n) for _, a in parts])[order_T] for n in ("logits_TV", "target_T"))
    return AnswerLogits(logits_TV=logits_TV, target_T=target_T, row_T=row_T[order_T])
