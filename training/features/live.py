"""Features computed when they are asked for: the uncached path, and what fills the cache.

Both training paths give the same three kinds of answer, so one training step runs with either: pooled states of
texts, the states of atoms and targets that enter the memory layers, and the teacher's distribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FrozenBase
from models.microkv import layer_inputs
from models.presets import MemorySpec
from training.config import TrainConfig
from training.features.ragged import Ragged, batches, mask_of, offsets, ranges
from training.features.texts import Texts, Tokens, tokenise
from training.losses import TeacherTopK, teacher_topk

LOGIT_ROWS = 1024  # a teacher's logits at a time: a vocabulary of 256,000 takes 1 GiB in float32


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Prompts with one answer each, as the upper layers see them, padded on the right.

    Args:
        state_BLD: States entering the first memory layer.
        answer_BL: True at the answer's tokens.
    """

    state_BLD: Tensor
    token_BL: Tensor
    mask_BL: Tensor
    answer_BL: Tensor


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The base's own distribution over answer tokens with the document in its prompt.

    Args:
        best: At the T answer tokens that it speaks of.
        taught_A: Which of all the asked targets' answer tokens these are, in the order of a batch's logits; the
            added refusals have no teacher.
    """

    best: TeacherTopK
    taught_A: Tensor


class LiveFeatures:
    """Frozen features of some texts, computed anew for just the rows that are asked for."""

    def __init__(self, base: FrozenBase, spec: MemorySpec, config: TrainConfig, texts: Texts) -> None:
        self.base, self.spec, self.config = base, spec, config
        self.tokens: Tokens = tokenise(base, spec, config, texts)
        self.boundary = base.num_layers - spec.num_memory_layers
        self.teacher_top_k = min(config.distill_top_k, base.model.config.vocab_size)
        self._refusal_Q = self.tokens.refusal_Q.to(base.device)

    @property
    def atom_pooled_ND(self) -> Tensor:
        """Pooled states of every atom; what looks through the whole library pays for all of it."""
        return self.atom_pooled(torch.arange(len(self.tokens.atom.length_N)))

    def atom_pooled(self, row_U: Tensor) -> Tensor:
        """Return the mean states of some atoms after the encoder's layers, `[U, D]`, float32."""
        return self._pooled(self.tokens.atom, row_U)

    def question_pooled(self, row_B: Tensor) -> Tensor:
        """Return the mean states of some questions, `[B, D]`, float32."""
        return self._pooled(self.tokens.question, row_B)

    def atom_inputs(self, row_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return what enters the attention of every memory layer, `[M, U, S, D]`, and the lengths `[U]`."""
        # Training reads exact states: what a bank rounds (`models.stored_states`) is measured by evaluation alone.
        row_U = row_U.cpu()
        length_U = self.tokens.atom.length_N[row_U]
        entry_USD = self._zeros(len(length_U), int(length_U.max()), self.base.hidden_size, dtype=self.base.dtype)
        for chunk in batches(length_U, self.config.cache_batch_tokens):
            _, part_VSD, _ = self.encode(self.tokens.atom, row_U[chunk], with_entry=True)
            entry_USD[chunk.to(self.base.device), : part_VSD.shape[1]] = part_VSD
        length_U = length_U.to(self.base.device)
        return layer_inputs(self.base, self.spec, entry_USD), length_U

    def target_rows(self, question_B: Tensor, refuse_B: Tensor) -> Tensor:
        """Return the target rows of some questions, the refusal's where `refuse_B`."""
        return torch.where(refuse_B, self._refusal_Q[question_B], question_B)

    def answer_length(self, row_B: Tensor) -> Tensor:
        """Return how many answer tokens some targets have, the one that ends them included."""
        return self.tokens.reply.length_N[row_B.cpu()].to(self.base.device)

    def is_taught(self, row_B: Tensor) -> Tensor:
        """Return which targets have a teacher: all but the added refusals."""
        return row_B < len(self.tokens.refusal_Q)

    @torch.no_grad()
    def targets(self, row_B: Tensor) -> Targets:
        """Return prompts with answers as the upper layers see them."""
        row_B = row_B.cpu()
        token_BL, mask_BL, start_B = self._sequences(self.tokens.prompt, row_B)
        state_BLD = self.base.run_layers(self.base.embed(token_BL), start=0, stop=self.boundary)
        answer_BL = mask_BL & (torch.arange(mask_BL.shape[1], device=mask_BL.device) >= start_B[:, None])
        return Targets(state_BLD=state_BLD, token_BL=token_BL, mask_BL=mask_BL, answer_BL=answer_BL)

    @torch.no_grad()
    def teacher(self, row_B: Tensor) -> Teacher:
        """Return the teacher's targets at the answer tokens of some targets."""
        assert self.tokens.teacher is not None, "features without contexts have no teacher"
        row_B = row_B.cpu()
        taught_B, answer_B = self.is_taught(row_B), self.tokens.reply.length_N[row_B]
        row_B, begin_B = row_B[taught_B], offsets(answer_B[taught_B])
        num_taught = int(begin_B[-1])
        best = TeacherTopK(
            token_TK=self._zeros(num_taught, self.teacher_top_k, dtype=torch.long),
            log_p_TK=self._zeros(num_taught, self.teacher_top_k),
            log_tail_T=self._zeros(num_taught),
        )
        length_B = self.tokens.teacher.length_N[row_B] + self.tokens.reply.length_N[row_B]
        for chunk in batches(length_B, self.config.cache_batch_tokens):
            place = ranges(begin_B[chunk], begin_B.diff()[chunk]).to(self.base.device)
            for part, found in self._teach(row_B[chunk]):
                for name, values in vars(found).items():
                    getattr(best, name)[place[part]] = values
        return Teacher(best=best, taught_A=taught_B.repeat_interleave(answer_B).to(self.base.device))

    @torch.no_grad()
    def encode(self, ids: Ragged, row_U: Tensor, *, with_entry: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Run texts behind the shared prefix, whose own positions are dropped, in one batch.

        Returns:
            Pooled states `[U, D]`, float32; where asked the states entering the memory layers, `[U, S, D]`, else
            those after the encoder; and the mask of both, `[U, S]`.
        """
        base, encoder = self.base, self.spec.num_encoder_layers
        skip = len(base.prefix_ids)
        ids_US, length_U = ids.padded(row_U)
        prefix_UP = torch.tensor(base.prefix_ids, dtype=torch.int32).expand(len(row_U), -1)
        ids_BL = torch.cat([prefix_UP, ids_US], dim=1).to(base.device)
        mask_BL = mask_of(length_U + skip).to(base.device)
        lower = min(encoder, self.boundary)
        state_BLD = base.run_layers(base.embed(ids_BL), start=0, stop=lower)
        entry_BLD = base.run_layers(state_BLD, start=lower, stop=self.boundary) if with_entry else state_BLD
        encoded_BLD = base.run_layers(state_BLD, start=lower, stop=encoder)
        mask_US = mask_BL[:, skip:]
        pooled_UD = (encoded_BLD[:, skip:] * mask_US[..., None]).float().sum(1) / mask_US.sum(1, keepdim=True)
        return pooled_UD, entry_BLD[:, skip:] * mask_US[..., None], mask_US

    def _pooled(self, ids: Ragged, row_U: Tensor) -> Tensor:
        row_U = row_U.cpu()
        pooled_UD = self._zeros(len(row_U), self.base.hidden_size)
        for chunk in batches(ids.length_N[row_U], self.config.cache_batch_tokens):
            pooled_UD[chunk.to(self.base.device)] = self.encode(ids, row_U[chunk], with_entry=False)[0]
        return pooled_UD

    def _sequences(self, prompt: Ragged, row_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Prompts with their replies `[B, L]`, the mask, and where the replies begin `[B]`."""
        question_B = self.tokens.question_R[row_B]
        start_B, answer_B = prompt.length_N[question_B], self.tokens.reply.length_N[row_B]
        mask_BL = mask_of(start_B + answer_B)
        token_BL = torch.zeros(mask_BL.shape, dtype=torch.int32)
        in_prompt = torch.arange(mask_BL.shape[1]) < start_B[:, None]
        token_BL[in_prompt] = prompt.joined(question_B)
        token_BL[mask_BL & ~in_prompt] = self.tokens.reply.joined(row_B)
        device = self.base.device
        return token_BL.long().to(device), mask_BL.to(device), start_B.to(device)

    def _teach(self, row_B: Tensor) -> Iterator[tuple[slice, TeacherTopK]]:
        """Yield slices of the rows' answer tokens with the teacher's targets at them."""
        token_BL, mask_BL, start_B = self._sequences(self.tokens.teacher, row_B)
        out_BLD = self.base.run_layers(self.base.embed(token_BL), start=0, stop=self.base.num_layers)
        before_BL = mask_BL & (torch.arange(1, mask_BL.shape[1] + 1, device=mask_BL.device) >= start_B[:, None])
        before_BL &= mask_BL.roll(-1, dims=1)
        before_BL[:, -1] = False
        state_TD = out_BLD[before_BL]
        for begin in range(0, len(state_TD), LOGIT_ROWS):
            part = slice(begin, begin + LOGIT_ROWS)
            logits_PV = self.base.logits(state_TD[part])
            yield part, teacher_topk(logits_PV, k=self.teacher_top_k, temperature=self.config.distill_temperature)

    def _zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=self.base.device)
