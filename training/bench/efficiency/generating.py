"""Part 4: how much slower a base answers with memory in it, and which part of the memory that is.

The same prompt is read and continued by the same number of tokens without an adapter, with micro-LoRA alone, with
micro-KV alone, and with both. The kinds take short turns, so that a machine that slows down slows all of them down: a
turn reads the prompt and generates a few tokens, and a whole answer is its first token and the rest at that pace.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.engine import Engine
from models.injection import ComposedAdapter
from training.bench.efficiency.meters import Meter, Reading, summary
from training.bench.efficiency.questions import (
    QUESTION_WORDS,
    AskedBank,
    KeyBlocks,
    few_atoms,
    never_ending,
    new_tokens_of,
)
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.subjects import Subject
from training.bench.efficiency.texts import words

_SAME_VALUES = (torch.ops.aten._unsafe_view.default, torch.ops.aten.detach.default)
NOTHING, EVERYTHING = "no adapter", "adapter"
# Tokens of a turn: long enough that most of it is not reading the prompt, short enough for many turns.
TURN_TOKENS = 8


class CountOps(TorchDispatchMode):
    """Counts the operations that torch carries out; on a GPU nearly every one but a view launches a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Count an operation that makes new values, and carry it out."""
        self.count += not (getattr(func, "is_view", False) or func in _SAME_VALUES)
        return func(*args, **(kwargs or {}))


def generation_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Measure reading a prompt and generating under every kind of adapter."""
    rng, engine = random.Random(request.seed), subject.engine
    question = words(QUESTION_WORDS, rng)
    adapter, compose = _composed(subject, request, meter, question)
    kinds = variants(adapter)
    tokens = new_tokens_of(request, subject)
    turn = min(TURN_TOKENS, tokens)
    order = [*kinds, *reversed(kinds)]  # there and back: none is always the first
    readings = meter.repeat(
        [partial(generate, engine, question, kinds[name], meter, new_tokens=turn) for name in order],
        budget_s=request.share_s("generation"),
        least=3 * len(kinds),
        most=60 * len(kinds),
        warm_up=len(kinds),
    )
    by_kind: dict[str, list[Reading]] = {name: [] for name in kinds}
    for reading, name in zip(readings, cycle(order), strict=False):
        by_kind[name].append(reading)
    ops = {name: ops_of_a_token(engine, question, kind) for name, kind in kinds.items()}
    answers = {name: [answer(r, turn, tokens) for r in found] for name, found in by_kind.items()}
    return {
        "new_tokens": tokens,
        "turn_tokens": turn,
        "top_k": subject.spec.router.top_k,
        "compose": compose,
        "kinds": {
            name: {**speed(found, tokens), "ops_a_token": ops[name], **summary(found)}
            for name, found in answers.items()
        },
        **overheads(answers, compose_s=compose["p50_ms"] / 1e3),
    }


def variants(adapter: ComposedAdapter) -> dict[str, ComposedAdapter | None]:
    """Return what is compared; parts that this memory does not have are left out."""
    found: dict[str, ComposedAdapter | None] = {NOTHING: None}
    if adapter.prefix:
        found["micro-LoRA alone"] = replace(adapter, prefix={})
        found["micro-KV alone"] = replace(adapter, lora={})
    return {**found, EVERYTHING: adapter}


def generate(engine: Engine, question: str, adapter: ComposedAdapter | None, meter: Meter, *, new_tokens: int) -> None:
    """Read the prompt and generate."""
    with meter.part("first token"):
        started = engine.start(question, adapter)
    with meter.part("other tokens"), never_ending():
        engine.finish(started, max_new_tokens=new_tokens)


def answer(turn: Reading, turn_tokens: int, new_tokens: int) -> Reading:
    """Return what an answer of `new_tokens` takes at the pace of a turn of `turn_tokens`."""
    share = (new_tokens - 1) / (turn_tokens - 1) if turn_tokens > 1 else 0.0
    parts = {**turn.parts, "other tokens": share * turn.parts["other tokens"]}
    return Reading(seconds=sum(parts.values()), parts=parts, added_bytes=turn.added_bytes)


def ops_of_a_token(engine: Engine, question: str, adapter: ComposedAdapter | None) -> int:
    """Return how many operations the second generated token takes."""

    def count(new_tokens: int) -> int:
        started = engine.start(question, adapter)
        with never_ending(), CountOps() as ops:
            engine.finish(started, max_new_tokens=new_tokens)
        return ops.count

    return count(2) - count(1)


def speed(readings: Sequence[Reading], new_tokens: int) -> dict[str, float]:
    """Return tokens a second after the first one, and of the whole answer, from median times."""
    whole = _median([r.seconds for r in readings])
    later = _median([r.parts["other tokens"] for r in readings])
    return {
        "tokens_per_s": round((new_tokens - 1) / later, 3) if new_tokens > 1 else 0.0,
        "tokens_per_s_whole": round(new_tokens / whole, 3),
    }


def overheads(by_kind: Mapping[str, Sequence[Reading]], *, compose_s: float) -> dict[str, Any]:
    """Return how much longer an answer takes under each adapter, as a share of the time without.

    Answers of one turn are compared with each other, and the median turn counts: a machine that others use slows down
    and speeds up between turns. `overhead_quartiles` tell how far the turns lie apart. Composing is outside of
    `overhead` and inside of `overhead_with_compose`.
    """

    def shares(name: str) -> list[float]:
        pairs = zip(by_kind[name], by_kind[NOTHING], strict=False)  # the last turn may not be complete
        return [under.seconds / without.seconds - 1 for under, without in pairs]

    low, overhead, high = _quantiles(shares(EVERYTHING), 0.25, 0.5, 0.75)
    base_s = _median([r.seconds for r in by_kind[NOTHING]])
    return {
        "overhead": round(overhead, 4),
        "overhead_quartiles": [round(low, 4), round(high, 4)],
        "overhead_with_compose": round(overhead + compose_s / base_s, 4),
        "overhead_of": {name: round(_median(shares(name)), 4) for name in by_kind if name != NOTHING},
    }


def _composed(
    subject: Subject, request: EfficiencyRequest, meter: Meter, question: str
) -> tuple[ComposedAdapter, dict[str, Any]]:
    atoms, shard = few_atoms(request, subject)
    keys = KeyBlocks.invented(len(atoms), subject.spec.d_key, subject.base.device)
    bank = AskedBank(engine=subject.engine, keys=keys, index=None, atoms=atoms, shard=shard)
    routed = bank.route(question, meter)
    readings = meter.repeat([partial(bank.compose, routed)], budget_s=0.1 * request.share_s("generation"))
    return bank.compose(routed), summary(readings)


def _median(values: Sequence[float]) -> float:
    return _quantiles(values, 0.5)[0]


def _quantiles(values: Sequence[float], *shares: float) -> list[float]:
    return np.quantile(values, shares).tolist()
