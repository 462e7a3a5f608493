"""Evaluation during training, on passages that are held out: loss, routing, and whether the memory is used at all.

It asks every kind of system alike: what a system answers when a batch is put to it. Processes share the chunks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.errors import D2AError
from training.batches import Batch, Sampler, fixed_plan
from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC
from training.metrics import auroc
from training.systems.answers import AnswerLogits
from training.systems.sensitivity import context_sensitivity
from training.world import World

if TYPE_CHECKING:
    from training.step import TrainStep

HELD_OUT_QUESTIONS = 768
HELD_OUT_CHUNK = 128


class UnusedMemoryError(D2AError):
    """A system answers from the question alone: what it reads makes no difference."""


class Answering(Protocol):
    """A system that can be asked."""

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits at the answers of a batch's language-model rows."""
        ...


@dataclass(kw_only=True)
class HeldOut:
    """Held-out passages with the system that is asked about them.

    Args:
        router: The same system where it routes, for figures of routing; None for systems that do not.
        article_N: The article of each atom; the probe takes another document from another article. None for a
            system that reads nothing.
    """

    system: Answering
    sampler: Sampler
    article_N: Tensor | None
    router: TrainStep | None = None
    world: World = field(default_factory=lambda: World("cpu"))

    @property
    def config(self) -> TrainConfig:
        """Return the run's configuration."""
        return self.sampler.config

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Ask the same questions as always.

        Returns:
            `loss`, nats a token and the mean over banks of `lm_<bank>`; `correct` and `shuffled`, the loss with the
            right and with another article's document; `distinct`, the share of questions whose answer that moves;
            and with a router its top-1 and top-K hits by bank, `lm_gold` with the gold atoms alone, and `auroc` of
            its best score, own questions against off-topic ones.
        """
        sums: dict[str, list[Tensor]] = defaultdict(list)
        chunks = self._chunks(self.sampler.answered)
        for bank, top_k in self.config.eval_top_k.items():
            for rows in chunks:
                nearest = self.router.nearest if self.router is not None and bank == "library" else None
                batch = self.sampler.collate(fixed_plan(rows, library=bank == "library"), nearest)
                self._ask(batch, bank, top_k, sums)
        zero = torch.zeros(2, dtype=torch.float64)
        totals = self.world.add_up({k: sum(v, zero) for k, v in self._all_names(sums, zero).items()})
        figures = {name: round(float(s / n), 4) for name, (s, n) in totals.items() if n > 0}
        losses = [figures[f"lm_{bank}"] for bank in self.config.eval_top_k]
        if self.router is not None:
            figures |= self._answerability()
        return {"loss": sum(losses) / len(losses), **figures}

    def _ask(self, batch: Batch, bank: str, top_k: int, sums: dict[str, list[Tensor]]) -> None:
        answer = self.system.answer(batch, top_k=top_k)
        sums[f"lm_{bank}"].append(_nats(answer))
        if self.router is not None:
            routed = self.router.route(batch, top_k=top_k)
            hit_BK = batch.gold_BC.gather(1, routed.routing.index_BK)
            sums[f"top1_{bank}"].append(_share(hit_BK[:, 0]))
            sums[f"top{top_k}_{bank}"].append(_share(hit_BK.any(-1)))
        if bank != next(iter(self.config.eval_top_k)):
            return
        if self.router is not None:
            sums["lm_gold"].append(_nats(self.router.answer_with_gold(batch, top_k=top_k)))
        if self.article_N is None:
            return
        sensitivity = context_sensitivity(
            lambda asked: answer if asked is batch else self.system.answer(asked, top_k=top_k), batch, self.article_N
        )
        if n := sensitivity.num_questions:
            sums["correct"].append(_pair(sensitivity.correct_nats * n, n))
            sums["shuffled"].append(_pair(sensitivity.shuffled_nats * n, n))
            sums["distinct"].append(_pair(sensitivity.moved * n, n))

    def _answerability(self) -> dict[str, float]:
        """Return the AUROC of the best score in a passage, where there are off-topic questions."""
        top_k = next(iter(self.config.eval_top_k.values()))
        scores: list[list[float]] = []
        for kind in (ANSWERABLE, OFF_TOPIC):
            found: list[float] = []
            for rows in self._chunks(self.sampler.rows[kind]):
                batch = self.sampler.collate(fixed_plan(rows, library=False), None)
                found += self.router.route(batch, top_k=top_k).routing.score_BC.amax(-1).tolist()
            scores.append(self.world.gather(found))
        return {"auroc": round(auroc(*scores), 4)} if all(scores) else {}

    def _chunks(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return this process's chunks of the first questions."""
        rows = rows[:HELD_OUT_QUESTIONS]
        starts = range(0, len(rows), HELD_OUT_CHUNK)
        return [rows[i : i + HELD_OUT_CHUNK] for i in starts][self.world.rank :: self.world.size]

    def _all_names(self, sums: dict[str, list[Tensor]], zero: Tensor) -> dict[str, list[Tensor]]:
        """Return the sums on one device, under the names that every process has."""
        names = {"correct", "shuffled", "distinct"}
        for bank, top_k in self.config.eval_top_k.items():
            names.add(f"lm_{bank}")
            if self.router is not None:
                names |= {f"top1_{bank}", f"top{top_k}_{bank}", "lm_gold"}
        return {name: [t.to(zero) for t in sums.get(name, [])] for name in sorted(names)}


def check_use(figures: dict[str, float], step: int, config: TrainConfig) -> None:
    """Stop a run whose system does not use what it is given.

    Raises:
        UnusedMemoryError: From `probe_from_step` on, another document is not worse by `probe_margin`.
    """
    if step < config.probe_from_step or "shuffled" not in figures:
        return
    gap = figures["shuffled"] - figures["correct"]
    if gap < config.probe_margin:
        raise UnusedMemoryError(
            f"train: at step {step} another document's memory costs {gap:.3f} nats a token more than the right one, "
            f"less than probe_margin = {config.probe_margin}: the answers do not come from the memory",
            hint="Use more memory layers or another learning rate; or train on with a later probe_from_step",
        )


def _nats(answer: AnswerLogits) -> Tensor:
    total = F.cross_entropy(answer.logits_TV.float(), answer.target_T, reduction="sum")
    return _pair(total, len(answer.target_T))


def _share(hit_B: Tensor) -> Tensor:
    return _pair(hit_B.sum(), len(hit_B))


def _pair(total: Tensor | float, count: int) -> Tensor:
    total = torch.as_tensor(total)
    return torch.stack([total.float(), torch.tensor(float(count), device=total.device)])
