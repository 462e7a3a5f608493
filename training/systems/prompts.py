"""What the static LoRA's prompts hold beside the question: text, or nothing.

Both kinds give the prompts with their answers as they enter the LoRA's first layer, below which nothing is trained,
in parts: rows of a batch `[B]`, and those rows' targets.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from models.base import FrozenBase
from models.encoder import length_batches, pad
from models.errors import ConfigError
from models.prompts import REFUSAL, KeptPrompts, all_prompt_ids, end_ids
from training.batches import Batch
from training.config import TrainConfig
from training.features import FeatureCache, LiveFeatures, Targets, Texts
from training.systems.documents import Documents
from training.systems.evidence import asked_passages, best_atoms

EVIDENCE = ("atoms", "document")
PART_TOKENS = 16_384  # padding included, which two thirds of a whole batch of documents would be


class BarePrompts:
    """Questions alone, from the frozen features.

    Args:
        features: Of a memory that begins at the LoRA's first layer.
    """

    def __init__(self, features: FeatureCache | LiveFeatures) -> None:
        self.features = features

    def parts(self, batch: Batch, *, top_k: int) -> Iterator[tuple[Tensor, Targets]]:
        """Yield the language-model rows' prompts with answers, all at once; there is nothing to take `top_k` of."""
        yield torch.arange(batch.num_lm, device=batch.question_B.device), self.features.targets(self._rows(batch))

    def num_answer_tokens(self, batch: Batch) -> Tensor:
        """Return how many tokens the answers have, end tokens included."""
        return self.features.answer_length(self._rows(batch)).sum()

    def _rows(self, batch: Batch) -> Tensor:
        return self.features.target_rows(batch.question_B[: batch.num_lm], batch.refuse_B[: batch.num_lm])


class TextPrompts:
    """Questions with text; as that differs from step to step, the lower layers run each time.

    Args:
        first_layer: The lowest decoder layer that the LoRA writes into.
        texts: Questions, answers and atoms, by the rows that batches name.
        documents: Passages, read whole where `evidence` is `document`.
        evidence: `atoms`, the best K by BM25 with a gold one among them; or `document`.

    Raises:
        ConfigError: Other evidence.
    """

    def __init__(
        self,
        base: FrozenBase,
        config: TrainConfig,
        texts: Texts,
        documents: Documents,
        *,
        first_layer: int,
        evidence: str = "atoms",
    ) -> None:
        if evidence not in EVIDENCE:
            raise ConfigError(f"train: prompt must be one of {', '.join(EVIDENCE)}, got {evidence!r}")
        self.base, self.texts, self.documents = base, texts, documents
        self.first_layer, self.evidence = first_layer, evidence
        self.passage_of_atom_N = torch.tensor(documents.passage_of_atom, device=base.device)
        end = min(end_ids(base.tokenizer, base.model.generation_config.eos_token_id))
        replies = base.tokenizer([*texts.answers, REFUSAL], add_special_tokens=False)["input_ids"]
        self.replies = [[*ids[: config.max_answer_tokens], end] for ids in replies]
        self._kept = KeptPrompts()

    def parts(self, batch: Batch, *, top_k: int) -> Iterator[tuple[Tensor, Targets]]:
        """Yield the language-model rows' prompts with answers, short ones first, with `top_k` atoms or a document."""
        prompts = self._prompts(batch.question_B[: batch.num_lm].tolist(), self.contexts(batch, top_k=top_k))
        sequences = [prompt + reply for prompt, reply in zip(prompts, self._replies(batch), strict=True)]
        for rows in length_batches([len(s) for s in sequences], PART_TOKENS):
            token_BL, mask_BL = pad([sequences[r] for r in rows], self.base.device)
            start_B = torch.tensor([len(prompts[r]) for r in rows], device=self.base.device)
            answer_BL = mask_BL & (torch.arange(mask_BL.shape[1], device=mask_BL.device) >= start_B[:, None])
            with torch.no_grad():
                state_BLD = self.base.run_layers(self.base.embed(token_BL), start=0, stop=self.first_layer)
            targets = Targets(state_BLD=state_BLD, token_BL=token_BL, mask_BL=mask_BL, answer_BL=answer_BL)
            yield torch.tensor(rows, device=self.base.device), targets

    def num_answer_tokens(self, batch: Batch) -> Tensor:
        """Return how many tokens the answers have, end tokens included."""
        return torch.tensor(sum(map(len, self._replies(batch))), device=self.base.device)

    def contexts(self, batch: Batch, *, top_k: int) -> list[str]:
        """Return the text that goes into each row's prompt."""
        if self.evidence == "document":
            return [self.documents.texts[p] for p in asked_passages(batch, self.passage_of_atom_N).tolist()]
        return [" ".join(self.texts.atoms[a] for a in atoms) for atoms in best_atoms(batch, top_k=top_k)]

    def _replies(self, batch: Batch) -> list[list[int]]:
        questions, refuse = batch.question_B[: batch.num_lm].tolist(), batch.refuse_B[: batch.num_lm].tolist()
        return [self.replies[-1 if refused else q] for q, refused in zip(questions, refuse, strict=True)]

    def _prompts(self, questions: list[int], contexts: list[str]) -> list[list[int]]:
        """Token ids of prompts, kept, since every epoch asks the same."""

        def render(new: list[tuple[int, str]]) -> list[list[int]]:
            asked, given = [self.texts.questions[question] for question, _ in new], [context for _, context in new]
            return all_prompt_ids(self.base.tokenizer, asked, given)

        return [ids.tolist() for ids in self._kept.ids(list(zip(questions, contexts, strict=True)), render)]
