"""Doc-to-LoRA as a trained system: the document goes into a LoRA, the question into the prompt.

Its objective is cross-entropy against the 16 best tokens of a teacher that reads the document, averaged over the
tokens of an answer, then over a document's questions, then over documents; and the mean absolute value of what the
hypernetwork writes. Where distillation is off, and for refusals that no teacher gave, it is the language model's
cross-entropy. States of documents and prompts are computed live: the LoRA stands in every layer, and the states of
all layers of all documents would fit no cache.

Source: Doc-to-LoRA (Charakorn et al., 2026). Its noise on input embeddings is left out.
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

TEACHER_TOKENS = 16


class D2LSystem(nn.Module):
    """The hypernetwork with everything that its training needs.

    Args:
        features: Only token ids of prompts and answers are read, and the teacher where distillation is on.
        documents: What becomes a LoRA.
        temperature: The one that the teacher's targets were made at; published is 1.
    """

    own_weights = MappingProxyType({"lora_l1": 0.1})

    def __init__(
        self,
        base: FrozenBase,
        hyper: HyperLora,
        features: FeatureCache | LiveFeatures,
        documents: Documents,
        *,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        self.base, self.hyper, self.features, self.temperature = base, hyper, features, temperature
        self.passage_of_atom_N = torch.tensor(documents.passage_of_atom, device=base.device)
        limit = hyper.config.max_chunk_tokens
        self.chunks = [document_chunks(base.tokenizer, text, max_chunk_tokens=limit) for text in documents.texts]

    def forward(self, batch: Batch, phase: Phase) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the language-model loss, distillation where the phase has it on, and the size of the LoRA."""
        passage_B = asked_passages(batch, self.passage_of_atom_N)
        factors, adapter = self.adapters(passage_B)
        answer = self._answer(batch, adapter)
        out = {"lora_l1": l1_loss(factors)}
        if "distill" in phase.weights:
            teacher = self.features.teacher(self._target_rows(batch))
            taught = answer.where(teacher.taught_A)
            nats_T = topk_cross_entropy(taught.logits_TV, teacher.best, temperature=self.temperature)
            out["distill"] = nested_mean(nats_T, taught.row_T, passage_B)
            answer = answer.where(~teacher.taught_A)
        out["lm"] = lm_loss(answer.logits_TV, answer.target_T)
        return out

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows; a document is taken whole, whatever `top_k`."""
        _, adapter = self.adapters(asked_passages(batch, self.passage_of_atom_N))
        return self._answer(batch, adapter)

    def adapters(self, passage_B: Tensor) -> tuple[ChunkFactors, ComposedAdapter]:
        """Read each distinct passage once; return its chunks' LoRA, and an adapter with one row a question."""
        distinct_M, row_B = passage_B.unique(return_inverse=True)
        documents = [self.chunks[p] for p in distinct_M.tolist()]
        factors = chunk_factors(self.base, self.hyper, [chunk for chunks in documents for chunk in chunks])
        of_document = self.hyper.adapter(factors, [len(chunks) for chunks in documents])
        lora = {site: (a[row_B], b[row_B]) for site, (a, b) in of_document.lora.items()}
        return factors, ComposedAdapter(lora=lora)

    def _answer(self, batch: Batch, adapter: ComposedAdapter) -> AnswerLogits:
        targets = self.features.targets(self._target_rows(batch))
        embedded = replace(targets, state_BLD=self.base.embed(targets.token_BL))
        return answer_logits(self.base, embedded, adapter, first_layer=0)

    def _target_rows(self, batch: Batch) -> Tensor:
        return self.features.target_rows(batch.question_B[: batch.num_lm], batch.refuse_B[: batch.num_lm])


def topk_cross_entropy(logits_TV: Tensor, teacher: TeacherTopK, *, temperature: float) -> Tensor:
    """Return `-sum_k p_k log q_k` a token, nats, over the teacher's 16 best tokens, `[T]`.

    q is over the whole vocabulary, and p is not normalised again.
    """
    log_q_TV = (logits_TV.float() / temperature).log_softmax(-1)
    log_q_TK = log_q_TV.gather(-1, teacher.token_TK[:, :TEACHER_TOKENS])
    return -(teacher.log_p_TK[:, :TEACHER_TOKENS].float().exp() * log_q_TK).sum(-1)


def nested_mean(nats_T: Tensor, row_T: Tensor, document_B: Tensor) -> tuple[Tensor, Tensor]:
    """Average over the tokens of a row, then over a document's rows.

    Args:
        row_T: The row of each token.
        document_B: The document of each row; a row without tokens has no part.

    Returns:
        The sum over documents, and their number.
    """
    nats_B, held_B = _group_means(nats_T, row_T, len(document_B))
    distinct_M, column_B = document_B[held_B].unique(return_inverse=True)
    nats_M, _ = _group_means(nats_B[held_B], column_B, len(distinct_M))
    return nats_M.sum(), torch.tensor(len(distinct_M), device=nats_T.device)


def _group_means(value_X: Tensor, group_X: Tensor, number: int) -> tuple[Tensor, Tensor]:
    total = value_X.new_zeros(number).index_add(0, group_X, value_X)
    members = torch.bincount(group_X, minlength=number)
    return total / members.clamp(min=1), members > 0


def l1_loss(factors: ChunkFactors) -> tuple[Tensor, Tensor]:
    """Return `mean_l (mean |A_l| + mean |B_l|)`, summed over chunks, and the number of chunks."""
    size_N = factors.a_NLRI.abs().mean((1, 2, 3)) + factors.b_NLRO.abs().mean((1, 2, 3))
    return size_N.sum(), torch.tensor(len(size_N), device=size_N.device)
