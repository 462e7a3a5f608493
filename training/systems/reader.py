"""The tuned reader and the blind control: one document-independent LoRA, with text in the prompt or without.

The reader says what the same base, data and steps give where the evidence stands in the prompt; the blind control
what they give from the question alone. Both train by cross-entropy of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.base import FrozenBase
from models.baselines.reader import StaticLora
from models.encoder import pad
from models.errors import ConfigError
from models.prompts import REFUSAL, end_ids, prompt_ids
from training.batches import Batch
from training.config import TrainConfig
from training.features import FeatureCache, LiveFeatures, Targets, Texts
from training.losses import lm_loss
from training.systems.answers import AnswerLogits, answer_logits
from training.systems.documents import Documents
from training.systems.evidence import asked_passages, best_atoms

if TYPE_CHECKING:
    from training.curriculum import Phase

PROMPTS = ("atoms", "document")


class StaticSystem(nn.Module):
    """The base with a static LoRA; what stands in its prompts is the subclass's business."""

    own_weights = MappingProxyType({})

    def __init__(self, base: FrozenBase, lora: StaticLora) -> None:
        super().__init__()
        self.base, self.lora = base, lora

    def forward(self, batch: Batch, phase: Phase) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the language-model loss."""
        answer = self.answer(batch, top_k=phase.top_k)
        return {"lm": lm_loss(answer.logits_TV, answer.target_T)}

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows."""
        targets = self.targets(batch, top_k=top_k)
        return answer_logits(self.base, targets, self.lora.adapter(), first_layer=self.lora.first_layer)

    def targets(self, batch: Batch, *, top_k: int) -> Targets:
        """Return the prompts with their answers, as they enter the LoRA's first layer."""
        raise NotImplementedError


class BlindSystem(StaticSystem):
    """The control that sees the question alone.

    Args:
        features: Of a memory that begins at the LoRA's first layer.
    """

    def __init__(self, base: FrozenBase, lora: StaticLora, features: FeatureCache | LiveFeatures) -> None:
        super().__init__(base, lora)
        self.features = features

    def targets(self, batch: Batch, *, top_k: int) -> Targets:
        """Return the cached states of the bare prompts; there is nothing to take `top_k` of."""
        lm = slice(0, batch.num_lm)
        return self.features.targets(self.features.target_rows(batch.question_B[lm], batch.refuse_B[lm]))


class ReaderSystem(StaticSystem):
    """The reader of text in the prompt; as that differs from step to step, the lower layers run each time.

    Args:
        texts: Questions, answers and atoms, by the rows that batches name.
        documents: Passages, read whole where `prompt` is `document`.
        prompt: `atoms`, the best K by BM25 with a gold one among them; or `document`.
    """

    def __init__(
        self,
        base: FrozenBase,
        lora: StaticLora,
        config: TrainConfig,
        texts: Texts,
        documents: Documents,
        *,
        prompt: str = "atoms",
    ) -> None:
        super().__init__(base, lora)
        if prompt not in PROMPTS:
            raise ConfigError(f"train: prompt must be one of {', '.join(PROMPTS)}, got {prompt!r}")
        self.texts, self.documents, self.prompt = texts, documents, prompt
        self.passage_of_atom_N = torch.tensor(documents.passage_of_atom, device=base.device)
        end = min(end_ids(base.tokenizer, base.model.generation_config.eos_token_id))
        replies = base.tokenizer([*texts.answers, REFUSAL], add_special_tokens=False)["input_ids"]
        self.replies = [[*ids[: config.max_answer_tokens], end] for ids in replies]
        self._known: dict[tuple[int, str], Tensor] = {}

    @torch.no_grad()
    def targets(self, batch: Batch, *, top_k: int) -> Targets:
        """Run the layers below the LoRA over prompts with text."""
        questions, refuse = batch.question_B[: batch.num_lm].tolist(), batch.refuse_B[: batch.num_lm].tolist()
        prompts = [self._prompt(q, text) for q, text in zip(questions, self.contexts(batch, top_k=top_k), strict=True)]
        replies = [self.replies[-1 if refused else q] for q, refused in zip(questions, refuse, strict=True)]
        sequences: Sequence[list[int]] = [[*p.tolist(), *r] for p, r in zip(prompts, replies, strict=True)]
        token_BL, mask_BL = pad(sequences, self.base.device)
        start_B = torch.tensor([len(p) for p in prompts], device=self.base.device)
        answer_BL = mask_BL & (torch.arange(mask_BL.shape[1], device=mask_BL.device) >= start_B[:, None])
        entering = self.base.run_layers(self.base.embed(token_BL), mask_BL, start=0, stop=self.lora.first_layer)
        return Targets(state_BLD=entering, token_BL=token_BL, mask_BL=mask_BL, answer_BL=answer_BL)

    def contexts(self, batch: Batch, *, top_k: int) -> list[str]:
        """Return the text that goes into each row's prompt."""
        if self.prompt == "document":
            return [self.documents.texts[p] for p in asked_passages(batch, self.passage_of_atom_N).tolist()]
        return [" ".join(self.texts.atoms[a] for a in atoms) for atoms in best_atoms(batch, top_k=top_k)]

    def _prompt(self, question: int, context: str) -> Tensor:
        """Token ids of a prompt, kept: every epoch asks the same, and tokenising takes longer than a step."""
        key = (question, context)
        if key not in self._known:
            ids = prompt_ids(self.base.tokenizer, self.texts.questions[question], context)
            self._known[key] = torch.tensor(ids, dtype=torch.int32)
        return self._known[key]
