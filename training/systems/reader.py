"""The tuned reader and the blind control: one document-independent LoRA, with text in the prompt or without.

The reader says what the same base, data and steps give where the evidence stands in the prompt; the blind control
what they give from the question alone. Both train by cross-entropy of the answer.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.base import FrozenBase
from models.static_lora import StaticLora
from training.batches import Batch
from training.losses import lm_loss
from training.systems.answers import AnswerLogits, answer_logits, joined
from training.systems.prompts import BarePrompts, TextPrompts

if TYPE_CHECKING:
    from training.curriculum import Phase


class StaticSystem(nn.Module):
    """The base with a static LoRA; its prompts make it a reader or the blind control."""

    loss_weights = MappingProxyType({"lm": 1.0})

    def __init__(self, base: FrozenBase, lora: StaticLora, prompts: BarePrompts | TextPrompts) -> None:
        super().__init__()
        self.base, self.lora, self.prompts = base, lora, prompts

    def forward(self, batch: Batch, phase: Phase) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the language-model loss, and the `tokens` that were read."""
        answer, tokens = self._read(batch, top_k=phase.top_k)
        return {"lm": lm_loss(answer.logits_TV, answer.target_T), "tokens": (tokens, torch.ones_like(tokens))}

    def shared(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return what the loss is divided by, whatever the phase."""
        return {"lm": self.prompts.num_answer_tokens(batch)}

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows."""
        return self._read(batch, top_k=top_k)[0]

    def _read(self, batch: Batch, *, top_k: int) -> tuple[AnswerLogits, Tensor]:
        """Return the answers' logits, and how many tokens the prompts and answers have."""
        adapter, parts = self.lora.adapter(), []
        tokens = torch.zeros((), dtype=torch.long, device=self.base.device)
        for row_B, targets in self.prompts.parts(batch, top_k=top_k):
            parts.append((row_B, answer_logits(self.base, targets, adapter, first_layer=self.lora.first_layer)))
            tokens += targets.mask_BL.sum()
        return joined(parts), tokens
