"""Doc-to-LoRA as a trained system: the document goes into a LoRA, the question into the prompt.

Its objective is cross-entropy against the 16 best tokens of a teacher that reads the document, averaged over the
tokens of an answer and then over answers; and the mean absolute value of what the hypernetwork writes. Where
distillation is off, and for refusals that no teacher gave, it is the language model's cross-entropy. States of
documents and prompts are computed live: the LoRA stands in every layer, and the states of all layers of all
documents would fit no cache.

Source: Doc-to-LoRA (Charakorn et al., 2026). The authors average over a document's questions before they average
over documents, which is the same where all have as many. Their noise on input embeddings is left out.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.base import FrozenBase
from models.baselines.d2l import ChunkFactors, HyperLora, chunk_factors, document_chunks
from models.injection import ComposedAdapter
from training.batches import Batch
from training.features import FeatureCache, LiveFeatures
from training.losses import TeacherTopK, lm_loss
from training.systems.answers import AnswerLogits, answer_logits
from training.systems.documents import Documents
from training.systems.evidence import asked_passages

if TYPE_CHECKING:
    from training.curriculum import Phase

# As published; what the teacher's targets are made with.
TEACHER_TOKENS, TEACHER_TEMPERATURE = 16, 1.0


class D2LSystem(nn.Module):
    """The hypernetwork with everything that its training needs.

    Args:
        features: Only token ids of prompts and answers are read, and where distillation is on the teacher, at
            `TEACHER_TEMPERATURE`.
        documents: What becomes a LoRA.
    """

    loss_weights = MappingProxyType({"lm": 1.0, "distill": 1.0, "lora_l1": 0.1})

    def __init__(
        self,
        base: FrozenBase,
        hyper: HyperLora,
        features: FeatureCache | LiveFeatures,
        documents: Documents,
    ) -> None:
        super().__init__()
        self.base, self.hyper, self.features = base, hyper, features
        self.passage_of_atom_N = torch.tensor(documents.passage_of_atom, device=base.device)
        limit = hyper.config.max_chunk_tokens
        self.chunks = [document_chunks(base.tokenizer, text, max_chunk_tokens=limit) for text in documents.texts]

    def forward(self, batch: Batch, phase: Phase) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the language-model loss, distillation where the phase has it on, and the size of the LoRA.

        `tokens` are those of prompts and answers, without the documents'.
        """
        adapter, size_B = self.adapter(asked_passages(batch, self.passage_of_atom_N))
        answer, num_tokens = self._answer(batch, adapter)
        out = {"lora_l1": (size_B.sum(), num_tokens.new_tensor(len(size_B)))}
        if "distill" in phase.weights:
            teacher = self.features.teacher(self._target_rows(batch))
            taught = answer.where(teacher.taught_A)
            nats_T = topk_cross_entropy(taught.logits_TV, teacher.best)
            out["distill"] = mean_by_row(nats_T, taught.row_T, num_rows=batch.num_lm)
            answer = answer.where(~teacher.taught_A)
        out["lm"] = lm_loss(answer.logits_TV, answer.target_T)
        out["tokens"] = (num_tokens, torch.ones_like(num_tokens))
        return out

    def shared(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return what each loss is divided by."""
        row_B = self._target_rows(batch)
        length_B, taught_B = self.features.answer_length(row_B), self.features.is_taught(row_B)
        counts = {"lora_l1": length_B.new_tensor(len(row_B)), "lm": length_B.sum()}
        if "distill" in phase.weights:
            counts |= {"distill": taught_B.sum(), "lm": (length_B * ~taught_B).sum()}
        return counts

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows; a document is taken whole, whatever `top_k`."""
        adapter, _ = self.adapter(asked_passages(batch, self.passage_of_atom_N))
        return self._answer(batch, adapter)[0]

    def adapter(self, passage_B: Tensor) -> tuple[ComposedAdapter, Tensor]:
        """Read each distinct passage once.

        Returns:
            An adapter with one row a question, and the mean absolute value `[B]` of what was written for it.
        """
        distinct_M, row_B = passage_B.unique(return_inverse=True)
        documents = [self.chunks[p] for p in distinct_M.tolist()]
        num_chunks = [len(chunks) for chunks in documents]
        factors = chunk_factors(self.base, self.hyper, [chunk for chunks in documents for chunk in chunks])
        of_document = self.hyper.adapter(factors, num_chunks)
        lora = {site: (a[row_B], b[row_B]) for site, (a, b) in of_document.lora.items()}
        size_M = torch.stack([size.mean() for size in l1_sizes(factors).split(num_chunks)])
        return ComposedAdapter(lora=lora), size_M[row_B]

    def _answer(self, batch: Batch, adapter: ComposedAdapter) -> tuple[AnswerLogits, Tensor]:
        targets = self.features.targets(self._target_rows(batch))
        embedded = replace(targets, state_BLD=self.base.embed(targets.token_BL))
        return answer_logits(self.base, embedded, adapter, first_layer=0), targets.mask_BL.sum()

    def _target_rows(self, batch: Batch) -> Tensor:
        return self.features.target_rows(batch.question_B[: batch.num_lm], batch.refuse_B[: batch.num_lm])


def topk_cross_entropy(logits_TV: Tensor, teacher: TeacherTopK) -> Tensor:
    """Return `-sum_k p_k log q_k` a token, nats, over the teacher's 16 best tokens, `[T]`.

    q is over the whole vocabulary, and p is not normalised again.
    """
    log_q_TV = (logits_TV.float() / TEACHER_TEMPERATURE).log_softmax(-1)
    log_q_TK = log_q_TV.gather(-1, teacher.token_TK[:, :TEACHER_TOKENS])
    return -(teacher.log_p_TK[:, :TEACHER_TOKENS].float().exp() * log_q_TK).sum(-1)


def mean_by_row(nats_T: Tensor, row_T: Tensor, *, num_rows: int) -> tuple[Tensor, Tensor]:
    """Average over the tokens of each row; return the sum over rows that have tokens, and their number."""
    total_B = nats_T.new_zeros(num_rows).index_add(0, row_T, nats_T)
    length_B = torch.bincount(row_T, minlength=num_rows)
    return (total_B / length_B.clamp(min=1)).sum(), (length_B > 0).sum()


def l1_sizes(factors: ChunkFactors) -> Tensor:
    """Return `mean_l (mean |A_l| + mean |B_l|)` of each chunk, `[N]`."""
    return factors.a_NLRI.abs().mean((1, 2, 3)) + factors.b_NLRO.abs().mean((1, 2, 3))
