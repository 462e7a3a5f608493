"""The training loop: schedule, optimiser, parts of a global batch, evaluation, early stopping, training states.

It trains any system that turns a batch into losses, alone or beside other processes. Every loss is divided once, by
its count over the whole global batch. Events go to a callback; wrapping and sums over processes are `training.world`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.errors import ConfigError
from training.batches import Batch, Sampler
from training.config import TrainConfig
from training.curriculum import Phase
from training.held_out import HeldOut, check_use
from training.state import (
    TrainingState,
    copied,
    load_optimiser,
    load_state,
    optimiser_tensors,
    random_states,
    restore_random,
    save_state,
)
from training.world import World

Event = dict[str, Any]


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine from the peak to `final_rate_share` of it over the run."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * warm * (config.final_rate_share + (1 - config.final_rate_share) * cosine)


@dataclass(frozen=True, kw_only=True)
class StateFiles:
    """Where training states go, what run they belong to, and which of them to start from."""

    folder: Path
    identity: str
    start: Path | None = None


@dataclass(kw_only=True)
class Best:
    """The best evaluation so far; `strikes` without a better one have followed."""

    figures: dict[str, float] = field(default_factory=lambda: {"loss": math.inf})
    weights: dict[str, Tensor] = field(default_factory=dict)
    strikes: int = 0


class Trainer:
    """One run of one system.

    Args:
        system: An `nn.Module` whose parameters are trained; `forward(batch, phase)` returns `{loss: (sum, count)}`.
            It may bring `shared` (counts alone), `nearest` (atoms by cosine) and `loss_weights` of its own.
        states: None keeps no training states.
    """

    def __init__(
        self,
        system: nn.Module,
        sampler: Sampler,
        held_out: HeldOut,
        world: World,
        on_event: Callable[[Event], None],
        *,
        states: StateFiles | None = None,
    ) -> None:
        self.system, self.sampler, self.held_out, self.world = system, sampler, held_out, world
        self.config, self.on_event, self.states = sampler.config, on_event, states
        self.nearest = system.nearest if self.config.uses_library and hasattr(system, "nearest") else None
        self.parameters = [p for p in system.parameters() if p.requires_grad]
        self.num_parts = num_parts(self.config, world.size)
        optimiser = torch.optim.AdamW(
            self.parameters,
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
            fused=world.device == "cuda",
        )
        self.step, self.before, self.best = 0, 0.0, Best()
        self.totals: dict[str, tuple[Tensor, Tensor]] = {}
        restored = self._restore()
        self.module, self.optimiser = world.prepare(
            system, optimiser, num_parts=self.num_parts, max_grad_norm=self.config.max_grad_norm
        )
        if restored is not None and restored.optimiser:
            load_optimiser(self.optimiser, restored.optimiser)
        self.started = self.logged_at = time.monotonic()
        self.logged_step = self.step
        self.clock: float | None = None
        self.progress = self._progress()

    @property
    def seconds(self) -> float:
        """Time in the loop, earlier sittings included."""
        return self.before + time.monotonic() - self.started

    def run(self) -> dict[str, float]:
        """Train until steps, epochs, minutes or patience run out, and leave the best weights in the system.

        Returns:
            The held-out figures of those weights.

        Raises:
            ConfigError: The run diverged before its first evaluation.
            UnusedMemoryError: The system does not use its memory.
        """
        while self.progress < 1.0 and self.best.strikes < self.config.patience:
            phase = self.config.phase_at(self.step, self.progress)
            self._optimise(phase)
            self.step += 1
            self.progress = self._progress()
            if self.step % self.config.log_every == 0:
                self._log(phase)
            if self.step % self.config.eval_every == 0 or self.progress >= 1.0:
                self._evaluate(phase)
            if self.step % self.config.save_every == 0:
                self._save()
        if not self.best.weights:
            raise ConfigError(
                f"train: the held-out loss is not finite after {self.step} steps", hint="Lower learning_rate"
            )
        self._save()
        self.system.load_state_dict(self.best.weights)
        return self.best.figures

    def _optimise(self, phase: Phase) -> None:
        """Run one global batch, of which this process takes its parts, and update."""
        self.optimiser.param_groups[0]["lr"] = learning_rate(self.config, self.step, self.progress)
        self.optimiser.zero_grad(set_to_none=True)
        weights = self._weights(phase)
        batches = list(self._batches())
        shared = self._shared(batches, phase) if self.num_parts > 1 or self.world.size > 1 else {}
        extra = {"mean_gate_G": shared["gates"] / shared["sparse"].clamp(min=1)} if "gates" in shared else {}
        for index, batch in enumerate(batches):
            with self.world.part(self.module, is_last=index == len(batches) - 1):
                sums = self.module(batch, phase, **extra)
                means = {n: s / shared.get(n, c).clamp(min=1) for n, (s, c) in sums.items() if n in weights}
                loss = sum(weights[name] * mean for name, mean in means.items())
                self.world.backward(self.module, loss, num_parts=self.num_parts)
            self._count(sums)
        self.world.step(self.optimiser, self.parameters, max_grad_norm=self.config.max_grad_norm)

    def _weights(self, phase: Phase) -> Mapping[str, float]:
        """Return the losses that are on; a system with losses of its own brings their weights."""
        return getattr(self.system, "loss_weights", None) or phase.weights

    def _batches(self) -> Iterator[Batch]:
        plan, total = self.sampler.plan(self.step), self.num_parts * self.world.size
        for index in range(self.num_parts):
            part = plan.part(self.world.rank + self.world.size * index, total)
            yield self.sampler.collate(part, self.nearest)

    def _shared(self, batches: list[Batch], phase: Phase) -> dict[str, Tensor]:
        """Add up what parts of the global batch must know of each other before any of them runs backward."""
        count = getattr(self.system, "shared", None) or self._counts
        totals: dict[str, Tensor] = {}
        for batch in batches:
            for name, value in count(batch, phase).items():
                totals[name] = totals[name] + value if name in totals else value
        return self.world.add_up(totals)

    @torch.no_grad()
    def _counts(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Count by a forward pass, for systems that know no shorter way."""
        return {name: count for name, (_, count) in self.system(batch, phase).items()}

    def _count(self, sums: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Add up losses and figures on the device, until they are logged."""
        for name, (total, count) in sums.items():
            before = self.totals.get(name, (0.0, 0.0))
            self.totals[name] = (before[0] + total.detach().float(), before[1] + count.float())

    def _progress(self) -> float:
        """Return the share of the run that is over: that of steps, epochs or minutes, whichever is larger."""
        config = self.config
        shares = [self.step / config.max_steps, self.sampler.epochs(self.step) / config.max_epochs]
        if config.max_minutes is not None:
            # Several processes ask the first one's clock, but not in every step: that waits for the device.
            if self.clock is None or self.world.size == 1 or self.step % config.log_every == 0:
                self.clock = self.world.agree(self.seconds / (60 * config.max_minutes))
            shares.append(self.clock)
        return min(1.0, max(shares))

    def _log(self, phase: Phase) -> None:
        zeros = torch.zeros(2, device=self.world.device)
        names = {*self._weights(phase), "top1", "tokens"}
        pairs = {name: torch.stack(self.totals[name]) if name in self.totals else zeros for name in names}
        sums = {name: value.tolist() for name, value in self.world.add_up(pairs).items()}
        tokens, _ = sums.pop("tokens")
        figures = {name: round(total / count, 4) for name, (total, count) in sorted(sums.items()) if count > 0}
        now = time.monotonic()
        per_step = (now - self.logged_at) / max(1, self.step - self.logged_step)
        self.on_event(
            {
                "event": "step",
                "step": self.step,
                "seconds": round(self.seconds, 1),
                "epoch": round(self.sampler.epochs(self.step), 3),
                "lr": self.optimiser.param_groups[0]["lr"],
                "stage": phase.stage,
                "top_k": phase.top_k,
                **figures,
                "tokens_per_s": round(tokens / max(1e-9, now - self.logged_at)),
                "step_seconds": round(per_step, 4),
                "eta_seconds": round(self.seconds * (1 - self.progress) / max(1e-9, self.progress)),
            }
        )
        self.totals.clear()
        self.logged_at, self.logged_step = now, self.step

    def _evaluate(self, phase: Phase) -> None:
        was_training = self.system.training
        self.system.eval()
        figures = self.held_out.evaluate()
        self.system.train(was_training)
        self.on_event({"event": "eval", "step": self.step, "seconds": round(self.seconds, 1), **figures})
        if figures["loss"] < self.best.figures["loss"]:
            self.best = Best(figures={**figures, "step": self.step}, weights=copied(self.system.state_dict()))
        elif phase.is_last:
            self.best.strikes += 1
        if not math.isfinite(figures["loss"]):
            self.best.strikes = self.config.patience  # nothing comes back from there
        check_use(figures, self.step, self.config)

    def _save(self) -> None:
        """Write a training state; every process comes here, the first one writes."""
        if self.states is None:
            return
        if self.world.is_main:
            state = TrainingState(
                identity=self.states.identity,
                step=self.step,
                seconds=self.seconds,
                weights=copied(self.system.state_dict()),
                # DeepSpeed parts the moments among processes: a run that goes on under it begins with new ones.
                optimiser={} if self.world.uses_deepspeed else optimiser_tensors(self.optimiser),
                best=self.best.figures if self.best.weights else {},
                best_weights=self.best.weights,
                strikes=self.best.strikes,
                random=random_states(),
            )
            save_state(self.states.folder, state, keep=self.config.keep_states)
            self.on_event({"event": "state", "step": self.step})
        self.world.wait()

    def _restore(self) -> TrainingState | None:
        if self.states is None or self.states.start is None:
            return None
        state = load_state(self.states.start, identity=self.states.identity)
        self.system.load_state_dict(state.weights)
        self.step, self.before = state.step, state.seconds
        if state.best_weights:
            self.best = Best(figures=state.best, weights=state.best_weights, strikes=state.strikes)
        restore_random(state.random)
        self.on_event({"event": "resume", "step": state.step, "from": str(self.states.start)})
        return state


def num_parts(config: TrainConfig, num_processes: int) -> int:
    """Return how many forward passes a process makes a step.

    Raises:
        ConfigError: The global batch has fewer samples than there are processes.
    """
    if config.global_batch < num_processes:
        raise ConfigError(
            f"train: global_batch must be at least the {num_processes} processes, got {config.global_batch}"
        )
    share = -(-config.global_batch // num_processes)
    return -(-share // (config.micro_batch or share))
