"""Greedy decoding for a benchmark: batches by tokens, in which a finished answer no longer costs anything.

The answers are those of `models.generation`; what is added is that rows leave the batch, cache and adapter with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from models.base import FrozenBase, gpu_memory
from models.generation import Prefill, prefill
from models.injection import ComposedAdapter, attached
from models.prompts import end_ids
from training.bench.systems.replay import FixedStep, can_replay

# Rows are dropped once no more than this share of them goes on: dropping copies the cache, as a step does.
COMPACT_SHARE = 0.75
# Most answers end within these steps. Then recording the next pays, which takes about as long as five, and with it
# fewer rows cost less only while many are left.
EAGER_STEPS, FIXED_SHARE, FIXED_ROWS = 12, 0.25, 64
# On one core a step of a 135M base takes 0.09 s for 8 rows and 0.15 s for 64.
CPU_BATCH_TOKENS = 16384
# Share of a GPU's memory for the keys and values of a batch. What composing an adapter or reading a prompt takes for a
# while is about as much again; where it is more, the batch is halved. On 139 GiB, SmolLM2 answers 2,255 questions with
# three atoms each at once: every batch costs as many steps as its longest answer has tokens, however few rows go on.
GPU_SHARE = 0.25
# Attention masks of a batch, L x L a row; plain attention holds scores of that size for every head.
MAX_MASK_ENTRIES = 2**31


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """What a batch may hold.

    Args:
        tokens: Padding included.
        mask_entries: Of all rows, each as many as its tokens squared.
        rows: None for any number.
    """

    tokens: int
    mask_entries: int = MAX_MASK_ENTRIES
    rows: int | None = None

    def allow(self, num_rows: int, length: int) -> bool:
        """Return whether so many rows of so many tokens fit."""
        fits = num_rows * length <= self.tokens and num_rows * length**2 <= self.mask_entries
        return fits and (self.rows is None or num_rows <= self.rows)


def batch_limits(base: FrozenBase, rows: int | None = None) -> BatchLimits:
    """Return what a batch may hold on the base's device, by all of its memory and not by what is free just now."""
    config = base.model.config
    heads = config.num_attention_heads if base.attention == "eager" else 1
    entries = MAX_MASK_ENTRIES // heads
    if base.device.type != "cuda":
        return BatchLimits(tokens=CPU_BATCH_TOKENS, mask_entries=entries, rows=rows)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim + 4 * config.intermediate_size
    tokens = int(GPU_SHARE * gpu_memory(base.device) / (values * base.dtype.itemsize))
    return BatchLimits(tokens=tokens, mask_entries=entries, rows=rows)


def batches(lengths: Sequence[int], limits: BatchLimits) -> Iterator[list[int]]:
    """Yield places in batches of similar length, short ones first; a place that is too long alone is a batch.

    Args:
        lengths: Tokens of each, prompt, answer and adapter together.
    """
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and not limits.allow(len(batch) + 1, lengths[place]):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


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
    with attached(base, adapter):
        start = prefill(base, prompts, refusal, questions=questions)
    begun = start if may_refuse else start.answering(base.tokenizer)
    ids = _continue(base, begun, adapter, max_new_tokens)
    return Decoded(ids, start.refusal_logprob_B.tolist(), start.refuses_B.tolist(), start.question_logprob_BQ)


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
        if self._fixed is None:
            return len(self.live) <= COMPACT_SHARE * len(self.rows)
        return len(self.live) <= FIXED_SHARE * len(self.rows) and len(self.rows) > FIXED_ROWS

    def take(self) -> None:
        """Add the next token to every answer that goes on."""
        for row, token in zip(self.rows, self.next_B.tolist(), strict=True):
            if row in self.live and token not in self._ends:
                self.ids[row].append(token)
            else:
                self.live.discard(row)

    def fix(self, room: int) -> None:
        """Let what follows, `room` steps at most, replay one of them; the adapter stays attached until then."""
        self._fixed = FixedStep(self.base, self.mask_BL, self.cache, self.next_B, room=room)
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
        """Drop the rows that have ended."""
        places = [place for place, row in enumerate(self.rows) if row in self.live]
        keep_C = torch.tensor(places, device=self.base.device)
        self.rows = [self.rows[place] for place in places]
        if self._fixed is not None:
            self.mask_BL, self.cache, self.next_B = self._fixed.kept(keep_C)
            self._fixed = None
        else:
            self.cache.batch_select_indices(keep_C)
            self.mask_BL, self.next_B = self.mask_BL[keep_C], self.next_B[keep_C]
        self.adapter = None if self.adapter is None else _rows(self.adapter, keep_C)


def _continue(base: FrozenBase, start: Prefill, adapter: ComposedAdapter | None, limit: int) -> list[list[int]]:
    answers = _Answers(base, start, adapter)
    answers.take()
    num_tokens = 1
    while answers.live and num_tokens < limit:
        if answers.is_sparse:
            answers.compact()
        until = limit
        with attached(base, answers.adapter):
            if can_replay(base) and num_tokens < EAGER_STEPS:
                until = min(limit, EAGER_STEPS)
            elif can_replay(base):
                answers.fix(limit - num_tokens)
            while answers.live and num_tokens < until and not answers.is_sparse:
                answers.step()
                answers.take()
                num_tokens += 1
    return answers.ids


def _rows(adapter: ComposedAdapter, keep_C: Tensor) -> ComposedAdapter:
    """Take some rows of an adapter; what broadcasts stays."""

    def kept(x: Tensor) -> Tensor:
        return x if len(x) == 1 else x[keep_C]

    # Layers share their bias, and stay those of one mask only while they do.
    bias = {id(p.bias_BS): kept(p.bias_BS) for p in adapter.prefix.values()}
    return ComposedAdapter(
        lora={site: (kept(a), kept(b)) for site, (a, b) in adapter.lora.items()},
        prefix={
            layer: replace(p, key_BHSF=kept(p.key_BHSF), value_BHSF=kept(p.value_BHSF), bias_BS=bias[id(p.bias_BS)])
            for layer, p in adapter.prefix.items()
        },
    )
