"""From what a system gives to replies: one prompt, one decoding and one gate for all systems.

A question that fails is a reply with an error, and the others of its batch are asked again without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FrozenBase
from models.prompts import refusal_ids
from models.router import AnswerabilityGate
from training.bench.bank import SuiteBank, taken
from training.bench.systems.decoding import Decoded, batch_limits, batches, decode
from training.bench.systems.prompts import Prompts
from training.bench.systems.system import Given, System
from training.library import RoutedAsks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a system makes of a sample.

    Args:
        text: What the model says, whatever the gate does.
        refused: The gate refuses.
        overruled: The model would have refused, and was kept from it.
        is_routed: Atoms were chosen for it.
        gold_rank: Rank of the best gold atom among those that were routed with weight.
        error: One line; nothing else holds then.
    """

    text: str = ""
    refusal_logprob: float | None = None
    answerability: float | None = None
    refused: bool = False
    overruled: bool = False
    is_routed: bool = False
    gold_rank: int | None = None
    error: str | None = None


class Answerer:
    """Answers the samples of a bank with any system.

    Args:
        gate: None where no memory was trained.
        max_rows: Of a batch, beside what fits by tokens.
    """

    def __init__(
        self,
        base: FrozenBase,
        gate: AnswerabilityGate | None,
        prompts: Prompts,
        *,
        max_rows: int | None = None,
    ) -> None:
        self.base, self.gate, self.prompts = base, gate, prompts
        self._refusal = refusal_ids(base.tokenizer)
        self._limits = batch_limits(base, max_rows)

    def answer(
        self, system: System, bank: SuiteBank, rows: Sequence[int], *, on_done: Callable[[int], None] = lambda n: None
    ) -> list[Reply]:
        """Return one reply a sample, in the order of `rows`.

        Args:
            on_done: Called after each batch with the number of its samples.
        """
        try:
            given = system.give(bank, rows)
            questions = [bank.asks[row].question.question for row in rows]
            prompts = self.prompts.ids(questions, given.texts, is_trained=system.is_trained)
        except Exception as error:
            if len(rows) > 1:
                return [reply for row in rows for reply in self.answer(system, bank, [row], on_done=on_done)]
            on_done(1)
            return [_failed(error)]
        replies: dict[int, Reply] = {}
        weights = given.weights or [0] * len(rows)
        lengths = [len(p) + w + self.prompts.max_new_tokens for p, w in zip(prompts, weights, strict=True)]
        for places in batches(lengths, self._limits):
            replies |= self._batch(bank, rows, given, prompts, places)
            on_done(len(places))
        return [replies[place] for place in range(len(rows))]

    def _batch(
        self,
        bank: SuiteBank,
        rows: Sequence[int],
        given: Given,
        prompts: Sequence[Sequence[int]],
        places: Sequence[int],
    ) -> dict[int, Reply]:
        """Answer some places; out of memory halves them, another failure takes them one by one."""
        is_judged = given.routed is not None and given.gated and self.gate is not None
        questions = [bank.asks[rows[place]].question.question for place in places]
        try:
            decoded = decode(
                self.base,
                [prompts[place] for place in places],
                given.adapter(places),
                refusal=self._refusal,
                max_new_tokens=self.prompts.max_new_tokens,
                may_refuse=given.may_refuse,
                questions=questions if is_judged else None,
            )
            gain_B = bank.library.gains(questions, decoded.question_logprob_BQ) if is_judged else None
        except Exception as error:
            if len(places) == 1:
                return {places[0]: _failed(error)}
            size = 1
            if isinstance(error, torch.OutOfMemoryError):
                size = (len(places) + 1) // 2
        else:
            return self._replies(bank, rows, given, places, decoded, gain_B)
        # Outside of the handler, whose traceback would keep the batch's tensors.
        logger.warning("a batch of %d failed, retrying by %d", len(places), size)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        replies: dict[int, Reply] = {}
        for begin in range(0, len(places), size):
            replies |= self._batch(bank, rows, given, prompts, places[begin : begin + size])
        return replies

    def _replies(
        self,
        bank: SuiteBank,
        rows: Sequence[int],
        given: Given,
        places: Sequence[int],
        decoded: Decoded,
        gain_B: Tensor | None,
    ) -> dict[int, Reply]:
        """Put a batch's answers beside what the gate and the routing say of them; one copy from the device for all.

        Args:
            gain_B: Of the questions, nats, where the gate judges them.
        """
        texts = self.base.tokenizer.batch_decode(decoded.ids, skip_special_tokens=True)
        nothing = [None] * len(places)
        sure, ranks = nothing, nothing
        if given.routed is not None:
            routed = taken(given.routed, places)
            ranks = _gold_ranks(routed, [bank.asks[rows[place]].gold for place in places])
            if gain_B is not None:
                sure = self.gate(routed.gate_features(torch.tensor(decoded.refusal_logprob), gain_B)).tolist()
        found = zip(places, texts, decoded.refusal_logprob, decoded.refuses, sure, ranks, strict=True)
        return {
            place: Reply(
                text=text.strip(),
                refusal_logprob=logprob,
                answerability=answerability,
                refused=answerability is not None and answerability < self.gate.threshold,
                overruled=refuses and not given.may_refuse,
                is_routed=given.routed is not None,
                gold_rank=rank,
            )
            for place, text, logprob, refuses, answerability, rank in found
        }


def _gold_ranks(routed: RoutedAsks, golds: Sequence[Sequence[int]]) -> list[int | None]:
    """Return the rank of the best gold atom that was routed with weight, for each question."""

    def rank(atoms: Sequence[int], weights: Sequence[float], gold: Sequence[int]) -> int | None:
        pairs = enumerate(zip(atoms, weights, strict=True), start=1)
        return next((n for n, (atom, weight) in pairs if atom in gold and weight > float("-inf")), None)

    return [*map(rank, routed.row_BK.tolist(), routed.log_weight_BK.tolist(), golds)]


def _failed(error: Exception) -> Reply:
    line = (str(error).strip().splitlines() or [""])[0]
    return Reply(error=f"{type(error).__name__}: {line}"[:300])
