"""Greedy decoding for a benchmark: batches by tokens, in which a finished answer no longer costs anything.

The answers are those of `models.generation`; what is added is that rows leave the batch, cache and adapter with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import FrozenBase, gpu_memory
from models.generation import Prefill, prefill
from models.injection import ComposedAdapter, attached
from models.prompts import end_ids
from training.bench.systems.replay import FixedStep, can_fix

# Answers are continued in stretches of so many steps, most in one. Between these, rows that have ended are dropped; and
# within one once no more than a share of them goes on, for dropping copies the cache.
STRETCH, COMPACT_SHARE = 16, 0.75
# Behind the first stretch a GPU takes the rest as one, recorded; in it fewer rows cost less only while many are left.
RECORDED_SHARE, RECORDED_ROWS = 0.25, 64
# What the keys and values of a batch may take, as a share of a GPU's memory and in bytes elsewhere. Reading prompts and
# dropping rows take about as much again for a while; where it is more, the batch is halved. Many rows are what a step
# wants: every batch costs as many steps as its longest answer has tokens, however few rows go on.
GPU_SHARE, CPU_BYTES = 0.25, 2**30
# Tokens that are read at once: a processor reads small batches faster, whose states stay in its caches.
GPU_READ_TOKENS, CPU_READ_TOKENS = 32768, 2048
# Plain attention holds L x L scores in float32, of every row and head.
MAX_SCORES = 2**31


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What a batch may hold.

    Args:
        tokens: Padding included.
        rows, squares: None for any number; squares are those of its rows' tokens.
    """

    tokens: int
    rows: int | None = None
    squares: int | None = None

    def allow(self, num_rows: int, length: int) -> bool:
        """Return whether so many rows of so many tokens fit."""
        limits = (self.tokens, num_rows * length), (self.rows, num_rows), (self.squares, num_rows * length**2)
        return all(limit is None or number <= limit for limit, number in limits)


def batch_limits(base: FrozenBase, rows: int | None = None) -> BatchLimits:
    """Return what a batch may hold on the base's device, by all of its memory and not by what is free just now."""
    config = base.model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * base.dtype.itemsize
    room = GPU_SHARE * gpu_memory(base.device) if base.device.type == "cuda" else CPU_BYTES
    return BatchLimits(tokens=int(room / token), rows=rows)


def read_limits(base: FrozenBase) -> BatchLimits:
    """Return what is read at once on the base's device."""
    tokens = GPU_READ_TOKENS if base.device.type == "cuda" else CPU_READ_TOKENS
    is_plain = base.attention == "eager"
    return BatchLimits(tokens=tokens, squares=MAX_SCORES // base.model.config.num_attention_heads if is_plain else None)


def batches(lengths: Sequence[int], limits: BatchLimits) -> Iterator[list[int]]:
    """Yield places in batches of similar length, short ones first; a place that is too long alone is a batch.

    Args:
        lengths: Tokens of each, prompt, answer and adapter together.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for run in _runs([lengths[place] for place in order], limits):
        yield order[run]


def _runs(lengths: Sequence[int], limits: BatchLimits) -> Iterator[slice]:
    """Yield neighbours as batches, as many as fit."""
    begin = longest = 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if place > begin and not limits.allow(place + 1 - begin, longest):
            yield slice(begin, place)
            begin, longest = place, length
    if lengths:
        yield slice(begin, len(lengths))


class Decoded(NamedTuple):
    """One entry a prompt.

    Args:
        ids: Tokens of the answer, without its end.
        refusal_logprob: Log-probability that it begins with the refusal, nats.
        refuses: Left to itself, the model would refuse.
        question_logprob_BQ: Log-probability of each of the question's tokens, nats, where questions were given.
    """

    ids: list[list[int]]
    refusal_logprob: list[float]
    refuses: list[bool]
    question_logprob_BQ: Tensor | None = None


@torch.no_grad()
def decode(
    base: FrozenBase,
    prompts: Sequence[Sequence[int]],
    adapter: ComposedAdapter | None,
    *,
    refusal: Sequence[int],
    max_new_tokens: int,
    may_refuse: bool = True,
    questions: Sequence[str] | None = None,
) -> Decoded:
    """Answer prompts greedily.

    Args:
        refusal: Token ids with which a refusal begins.
        may_refuse: False lets what would be refused begin otherwise.
        questions: What the prompts ask, to score that as well.
    """
    start = _read(base, prompts, adapter, refusal, questions)
    begun = start if may_refuse else start.answering(base.tokenizer)
    ids = _continue(base, begun, adapter, max_new_tokens)
    return Decoded(ids, start.refusal_logprob_B.tolist(), start.refuses_B.tolist(), start.question_logprob_BQ)


def _read(
    base: FrozenBase,
    prompts: Sequence[Sequence[int]],
    adapter: ComposedAdapter | None,
    refusal: Sequence[int],
    questions: Sequence[str] | None,
) -> Prefill:
    parts = []
    for run in _runs([len(prompt) + len(refusal) for prompt in prompts], read_limits(base)):
        with attached(base, _rows(adapter, run)):
            parts.append(prefill(base, prompts[run], refusal, questions=questions and questions[run]))
    return _joined(parts)


def _joined(parts: Sequence[Prefill]) -> Prefill:
    """Make one batch of several, which are left without their caches."""
    longest = max(parts, key=lambda part: part.mask_BL.shape[1])
    for layers in zip(*(part.cache.layers for part in parts), strict=True):
        keys, values = _stacked([x.keys for x in layers], -2), _stacked([x.values for x in layers], -2)
        for part, layer in zip(parts, layers, strict=True):
            if part is longest:
                layer.keys, layer.values = keys, values
            else:
                layer.reset()
    questions = [part.question_logprob_BQ for part in parts]
    return Prefill(
        cache=longest.cache,
        mask_BL=_stacked([part.mask_BL for part in parts], -1),
        next_logits_BV=torch.cat([part.next_logits_BV for part in parts]),
        refusal_logprob_B=torch.cat([part.refusal_logprob_B for part in parts]),
        refuses_B=torch.cat([part.refuses_B for part in parts]),
        question_logprob_BQ=None if questions[0] is None else _stacked(questions, -1),
    )


def _stacked(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Put batches one under another, aligned on the right of `dim`, -1 or -2, behind zeros."""
    if len(parts) == 1:
        return parts[0]
    width = max(x.shape[dim] for x in parts)
    behind = (0, 0) * (-dim - 1)
    return torch.cat([F.pad(x, (*behind, width - x.shape[dim], 0)) for x in parts])


class _Answers:
    """Answers under way: those that go on are rows of the batch, by their places among all."""

    def __init__(self, base: FrozenBase, start: Prefill, adapter: ComposedAdapter | None) -> None:
        self.base, self.adapter = base, adapter
        self.mask_BL, self.cache = start.mask_BL, start.cache
        self.next_B = start.next_logits_BV.argmax(-1)
        self.ids: list[list[int]] = [[] for _ in start.mask_BL]
        self.rows = list(range(len(self.ids)))
        self.live = set(self.rows)
        self._fixed: FixedStep | None = None
        self._ends = end_ids(base.tokenizer, base.model.generation_config.eos_token_id)

    @property
    def is_sparse(self) -> bool:
        """So many rows have ended that dropping them pays."""
        if self._fixed is not None and self._fixed.record:
            return len(self.live) <= RECORDED_SHARE * len(self.rows) and len(self.rows) > RECORDED_ROWS
        return len(self.live) <= COMPACT_SHARE * len(self.rows)

    def take(self) -> None:
        """Add the next token to every answer that goes on."""
        for row, token in zip(self.rows, self.next_B.tolist(), strict=True):
            if row in self.live and token not in self._ends:
                self.ids[row].append(token)
            else:
                self.live.discard(row)

    def fix(self, room: int, *, record: bool) -> None:
        """Give what follows, `room` steps at most, its place; the adapter stays attached until then."""
        self._fixed = FixedStep(self.base, self.mask_BL, self.cache, self.next_B, room=room, record=record)
        self.next_B = self._fixed.next_B

    def step(self) -> None:
        """Find the next token of every row."""
        if self._fixed is not None:
            self._fixed()
            return
        self.mask_BL = torch.cat([self.mask_BL, torch.ones_like(self.mask_BL[:, :1])], dim=1)
        out = self.base.model(
            input_ids=self.next_B[:, None],
            attention_mask=self.mask_BL,
            position_ids=self.mask_BL.long().sum(-1, keepdim=True) - 1,
            cache=self.cache,
            use_cache=True,
        )
        self.next_B = out.logits[:, -1].argmax(-1)

    def compact(self) -> None:
        """Drop the rows that have ended; what had its place may grow again."""
        if self._fixed is None and len(self.live) == len(self.rows):
            return
        places = [place for place, row in enumerate(self.rows) if row in self.live]
        keep_C = torch.tensor(places, device=self.base.device)
        self.rows = [self.rows[place] for place in places]
        if self._fixed is not None:
            self.mask_BL, self.cache, self.next_B = self._fixed.kept(keep_C)
            self._fixed = None
        else:
            self.cache.batch_select_indices(keep_C)
            self.mask_BL, self.next_B = self.mask_BL[keep_C], self.next_B[keep_C]
        self.adapter = _rows(self.adapter, keep_C)


def _continue(base: FrozenBase, start: Prefill, adapter: ComposedAdapter | None, limit: int) -> list[list[int]]:
    answers = _Answers(base, start, adapter)
    answers.take()
    num_tokens = 1
    while answers.live and num_tokens < limit:
        answers.compact()
        room, record = limit - num_tokens, base.device.type == "cuda" and num_tokens >= STRETCH
        if not record:
            room = min(room, STRETCH)
        until = num_tokens + room
        with attached(base, answers.adapter):
            if can_fix(base):
                answers.fix(room, record=record)
            while answers.live and num_tokens < until and not answers.is_sparse:
                answers.step()
                answers.take()
                num_tokens += 1
    return answers.ids


def _rows(adapter: ComposedAdapter | None, rows: Tensor | slice) -> ComposedAdapter | None:
    """Take some rows of an adapter; what broadcasts stays."""
    if adapter is None:
        return None

    def kept(x: Tensor) -> Tensor:
        return x if len(x) == 1 else x[rows]

    # Layers share their bias, and stay those of one mask only while they do.
    bias = {id(p.bias_BS): kept(p.bias_BS) for p in adapter.prefix.values()}
    return ComposedAdapter(
        lora={site: (kept(a), kept(b)) for site, (a, b) in adapter.lora.items()},
        prefix={
            layer: replace(p, key_BHSF=kept(p.key_BHSF), value_BHSF=kept(p.value_BHSF), bias_BS=bias[id(p.bias_BS)])
            for layer, p in adapter.prefix.items()
        },
    )
