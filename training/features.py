"""The frozen-feature cache: everything below the memory layers, computed once.

Atoms keep their pooled state and, ragged, the states that enter the first memory layer; questions keep their
pooled state; prompts with answers keep their entering states. A step then runs only the upper layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FrozenBase
from models.encoder import pad, text_features
from models.presets import MemorySpec
from models.prompts import REFUSAL, end_ids, prompt_ids
from training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Rows of different length, flat `[T, D]` (or `[T]`), with their offsets."""

    flat_TD: Tensor
    offset_N1: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Ragged:
        """Concatenate rows `[S_i, D]`."""
        lengths = torch.tensor([0, *(len(r) for r in rows)], device=rows[0].device)
        return cls(flat_TD=torch.cat(list(rows)), offset_N1=lengths.cumsum(0))

    def padded(self, index_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows `[U, S, D]`, zero-padded to the longest, and their lengths `[U]`."""
        start, length = self.offset_N1[index_U], self.offset_N1[index_U + 1] - self.offset_N1[index_U]
        steps = torch.arange(int(length.max()), device=start.device)
        valid = steps < length[:, None]
        rows = self.flat_TD[(start[:, None] + steps).masked_fill(~valid, 0)]
        return rows * valid.view(*valid.shape, *[1] * (rows.dim() - 2)).to(rows.dtype), length


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Prompts with one answer each, as the upper layers see them.

    Args:
        states: Entering the first memory layer.
        token: Ragged ids of prompt and answer; `answer_start` is where the answer begins in each.
    """

    states: Ragged
    token: Ragged
    answer_start: Tensor


@dataclass(frozen=True, kw_only=True)
class FeatureCache:
    """Frozen features of a set of atoms and questions.

    Args:
        targets: `2 Q` rows: question q with its answer at q, with the refusal at Q + q.
    """

    atom_pooled_ND: Tensor
    atom_entry: Ragged
    question_pooled_QD: Tensor
    targets: Targets

    def target_rows(self, question_B: Tensor, refuse_B: Tensor) -> Tensor:
        """Return the target rows of some questions, the refusal's where `refuse_B`."""
        return question_B + refuse_B.long() * len(self.question_pooled_QD)


def build_cache(
    base: FrozenBase,
    spec: MemorySpec,
    config: TrainConfig,
    *,
    atoms: Sequence[str],
    questions: Sequence[str],
    answers: Sequence[str],
    on_progress: Callable[[str], None] = lambda _: None,
) -> FeatureCache:
    """Run the frozen base over everything once.

    Args:
        answers: One target a question; unanswerable ones give the refusal.
    """
    with_entry = spec.kv.source == "tokens"
    atom = text_features(base, spec, atoms, with_entry=with_entry, batch_tokens=config.cache_batch_tokens)
    on_progress("atoms")
    question = text_features(base, spec, questions, with_entry=False, batch_tokens=config.cache_batch_tokens)
    on_progress("questions")
    replies = [*answers, *[REFUSAL] * len(questions)]
    targets = _targets(base, spec, config, [*questions, *questions], replies)
    on_progress("targets")
    empty = [torch.empty(0, base.hidden_size, device=base.device, dtype=base.dtype)]
    entry = Ragged.of(atom.entry or empty)
    atom.entry.clear()
    if base.device.type == "cuda":
        torch.cuda.empty_cache()
    return FeatureCache(
        atom_pooled_ND=atom.pooled_ND,
        atom_entry=entry,
        question_pooled_QD=question.pooled_ND,
        targets=targets,
    )


@torch.no_grad()
def _targets(
    base: FrozenBase, spec: MemorySpec, config: TrainConfig, questions: Sequence[str], answers: Sequence[str]
) -> Targets:
    end = min(end_ids(base.tokenizer, base.model.generation_config.eos_token_id))
    prompts = [prompt_ids(base.tokenizer, q) for q in questions]
    replies = base.tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    replies = [[*r[: config.max_answer_tokens], end] for r in replies]
    sequences = [p + r for p, r in zip(prompts, replies, strict=True)]
    boundary = base.num_layers - spec.num_memory_layers
    offset_N1 = torch.tensor([0, *map(len, sequences)], device=base.device).cumsum(0)
    # Written in place: a list of 90,000 rows and its concatenation would hold everything twice.
    flat_TD = torch.empty(int(offset_N1[-1]), base.hidden_size, device=base.device, dtype=base.dtype)
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    rows_a_batch = max(1, config.cache_batch_tokens // max(map(len, sequences)))
    for begin in range(0, len(order), rows_a_batch):
        rows = order[begin : begin + rows_a_batch]
        ids_BL, mask_BL = pad([sequences[r] for r in rows], base.device)
        entering = base.run_layers(base.embed(ids_BL), mask_BL, start=0, stop=boundary)
        place_BL = offset_N1[rows][:, None] + torch.arange(ids_BL.shape[1], device=base.device)
        flat_TD[place_BL[mask_BL]] = entering[mask_BL]
    return Targets(
        states=Ragged(flat_TD=flat_TD, offset_N1=offset_N1),
        token=Ragged(flat_TD=torch.tensor([t for s in sequences for t in s], device=base.device), offset_N1=offset_N1),
        answer_start=torch.tensor([len(p) for p in prompts], device=base.device),
    )
