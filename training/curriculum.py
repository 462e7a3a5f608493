"""The curriculum as data: stages with their K and losses, and what of them holds at one step. Imports no torch.

Paper, appendix, "Curriculum": stages begin at optimiser steps. A run that is limited by time gives shares of the
run instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from models.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Factors of the losses in their sum; 0 switches one off, and it is then not computed.

    Args:
        lm: Cross-entropy of the answer, nats a token.
        distill: Divergence from the base that reads the document, nats a token.
        route: Weighted binary cross-entropy of the fused scores.
        rerank: Listwise cross-entropy of the fused scores where the reranker is on.
        null_slot: Listwise cross-entropy of the gold atoms against the others and a score of 0.
        contrastive: Listwise cross-entropy of the cosine alone against the best of the library: recall of stage 1.
        irrelevant: Norm of the adapter composed for off-topic questions.
        protect: Norm of the update.
        sparse: Squared distance of the mean gates from the target density.
        composition: Divergence between the routed atoms and the gold atoms alone, nats a token.
        conflict: Cross-entropy inside each conflict group.
        confidence: Divergence of the weights of gold atoms from their annotated confidence.
    """

    lm: float = 1.0
    distill: float = 0.0
    route: float = 1.0
    rerank: float = 0.0
    null_slot: float = 0.3
    contrastive: float = 0.5
    irrelevant: float = 1e-4
    protect: float = 0.0
    sparse: float = 0.0
    composition: float = 0.0
    conflict: float = 0.0
    confidence: float = 0.0


LOSSES = tuple(f.name for f in fields(LossWeights))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the run; it ends where the next begins.

    Args:
        top_k: Atoms a question.
        until_step: Optimiser step at which the stage ends, or
        until_share: share of the run; the last stage has neither.
        losses: Those that are on; the others weigh 0.
        weights: Weights that differ in this stage from those of the run.
    """

    top_k: int
    until_step: int | None = None
    until_share: float | None = None
    losses: tuple[str, ...] = LOSSES
    weights: dict[str, float] = field(default_factory=dict)

    def active(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the losses that are on, with their weights, given those of the run."""
        merged = {**weights, **self.weights}
        return {name: merged[name] for name in self.losses if merged[name] > 0}

    def ends_before(self, step: int, progress: float) -> bool:
        """Return whether the stage is over at optimiser step `step` and share `progress` of the run."""
        if self.until_step is not None:
            return step >= self.until_step
        return self.until_share is not None and progress >= self.until_share


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What holds at one optimiser step.

    Args:
        stage: Number of the stage, from 1; in the last one early stopping is armed.
        weights: Of the losses that are on, all positive.
        gold_forcing: Share of the language-model questions that are given their gold atoms.
    """

    stage: int
    is_last: bool
    top_k: int
    weights: dict[str, float]
    gold_forcing: float = 0.0


def phase_at(
    stages: tuple[Stage, ...], weights: Mapping[str, float], step: int, progress: float, *, gold_forcing: float
) -> Phase:
    """Return what holds at a step.

    Args:
        weights: Of every loss, before a stage changes them.
        progress: Share of the run that is over, in [0, 1].
        gold_forcing: At the start of the run; it falls to 0 linearly.
    """
    number = sum(stage.ends_before(step, progress) for stage in stages[:-1])
    stage = stages[number]
    return Phase(
        stage=number + 1,
        is_last=number == len(stages) - 1,
        top_k=stage.top_k,
        weights=stage.active(weights),
        gold_forcing=gold_forcing * (1 - progress),
    )


def parse_stages(tables: Any, *, where: str) -> tuple[Stage, ...]:
    """Return the stages of a TOML array of tables.

    Raises:
        ConfigError: Unknown names, values of the wrong kind, or ends that do not rise.
    """
    if not isinstance(tables, list | tuple) or not tables:
        raise ConfigError(f"{where}: stages must be tables [[stages]], got {tables!r}")
    stages = tuple(
        _parse_stage(t, where=f"{where}: stages[{i}]", is_last=t is tables[-1]) for i, t in enumerate(tables)
    )
    for unit in ("until_step", "until_share"):
        ends = [getattr(s, unit) for s in stages[:-1]]
        if None not in ends and ends != sorted(set(ends)):
            raise ConfigError(f"{where}: stages must rise in {unit}, got {ends}")
    if len({s.until_step is None for s in stages[:-1]}) > 1:
        raise ConfigError(f"{where}: stages must all end by until_step or all by until_share")
    return stages


def _parse_stage(table: Any, *, where: str, is_last: bool) -> Stage:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    table = {k: v for k, v in table.items() if v is not None}
    known = {f.name for f in fields(Stage)}
    if unknown := table.keys() - known:
        raise ConfigError(f"{where}: unknown key {min(unknown)!r}. Known keys: {', '.join(sorted(known))}")
    if type(table.get("top_k")) is not int or table["top_k"] < 1:
        raise ConfigError(f"{where}: top_k must be at least 1, got {table.get('top_k')!r}")
    has_step, has_share = "until_step" in table, "until_share" in table
    if has_step + has_share != (0 if is_last else 1):
        wanted = "no end, for it is the last" if is_last else "one of until_step and until_share"
        raise ConfigError(f"{where}: must have {wanted}")
    if has_step and (type(table["until_step"]) is not int or table["until_step"] < 1):
        raise ConfigError(f"{where}: until_step must be a whole number from 1, got {table['until_step']!r}")
    if has_share and not (type(table["until_share"]) in (int, float) and 0 < table["until_share"] < 1):
        raise ConfigError(f"{where}: until_share must be between 0 and 1, got {table['until_share']!r}")
    losses, weights = table.get("losses", LOSSES), table.get("weights", {})
    if not isinstance(losses, list | tuple) or not isinstance(weights, dict):
        raise ConfigError(f"{where}: losses must be a list of names and weights a table")
    for name in (*losses, *weights):
        if name not in LOSSES:
            raise ConfigError(f"{where}: unknown loss {name!r}. Known losses: {', '.join(LOSSES)}")
    for name, value in weights.items():
        check_weight(f"{where}: weights", name, value)
    return Stage(**{**table, "losses": tuple(losses), "weights": {k: float(v) for k, v in weights.items()}})


def check_weight(where: str, name: str, value: Any) -> None:
    """Raise ConfigError unless `value` can be the weight of a loss."""
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ConfigError(f"{where}: {name} must be a number from 0, got {value!r}")
