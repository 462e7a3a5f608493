"""Running the upper layers over prompts with answers, under an adapter.

B rows, T answer tokens of all rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

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
