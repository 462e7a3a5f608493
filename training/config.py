"""Configuration of a training run, from sparse commented TOML; imports no torch."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from models.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Factors of the losses in their sum; 0 switches one off.

    Args:
        lm: Cross-entropy of the answer, nats a token.
        route: Weighted binary cross-entropy of the fused scores.
        null_slot: Listwise cross-entropy of the gold atoms against the others and a score of 0.
        contrastive: Listwise cross-entropy of the cosine alone against the best of the library: recall of stage 1.
        irrelevant: Norm of the adapter composed for off-topic questions.
    """

    lm: float = 1.0
    route: float = 1.0
    null_slot: float = 0.3
    contrastive: float = 0.5
    irrelevant: float = 1e-4


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A single-GPU run.

    Args:
        model: Preset.
        memory: Overrides of the recipe's `MemorySpec`, as nested tables.
        batch_lm: Questions a step that run the language model.
        batch_route: Further questions a step that only train the router; probes among them.
        share_library: Share of questions routed among all passages' atoms instead of their own passage's.
        share_sibling: Share of language-model questions asked of a sibling passage, with the refusal as target.
        share_absent: Share of language-model questions asked of all other passages, with the refusal as target.
        gold_forcing: Share of language-model questions given their gold atoms at first; falls to 0 linearly.
        top_k: Atoms a question, `(share of the run from which it holds, K)` in rising order.
        eval_every: Optimiser steps between evaluations on held-out passages.
        patience: Evaluations without a better held-out loss before the run stops.
        max_minutes: Wall clock of the loop, without the feature cache; the schedule follows whichever of
            steps and minutes is nearer its end.
    """

    model: str = "smollm2"
    recipe: str = "d2a"
    memory: dict[str, Any] = field(default_factory=dict)
    records: str = "train.jsonl.gz"
    holdout_passages: int = 800
    batch_lm: int = 128
    batch_route: int = 384
    share_library: float = 0.5
    share_sibling: float = 0.1
    share_absent: float = 0.1
    gold_forcing: float = 0.5
    top_k: tuple[tuple[float, int], ...] = ((0.0, 2), (0.2, 4), (0.5, 8))
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_steps: int = 200
    max_grad_norm: float = 1.0
    max_steps: int = 6000
    max_minutes: float = 30.0
    eval_every: int = 250
    patience: int = 4
    max_answer_tokens: int = 32
    cache_batch_tokens: int = 65536
    seed: int = 0
    loss: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        counts = ("batch_lm", "batch_route", "warmup_steps", "max_steps", "eval_every", "patience", "max_answer_tokens")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"train: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("share_library", "share_sibling", "share_absent", "gold_forcing"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"train: {name} must be in [0, 1], got {getattr(self, name)}")
        shares = [share for share, _ in self.top_k]
        if not shares or shares[0] != 0.0 or shares != sorted(shares):
            raise ConfigError(f"train: top_k must be pairs (share, K) that rise from share 0, got {self.top_k}")

    def top_k_at(self, progress: float) -> int:
        """Return K at `progress` in [0, 1] of the run."""
        return [k for start, k in self.top_k if start <= progress][-1]

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain data for the run's folder."""
        return asdict(self)

    def with_overrides(self, assignments: dict[str, Any]) -> TrainConfig:
        """Return a copy with dotted keys set, such as `loss.lm` or `memory.num_memory_layers`."""
        data = self.to_dict()
        for key, value in assignments.items():
            *path, last = key.split(".")
            table = data
            for part in path:
                table = table.setdefault(part, {})
            table[last] = value
        return _from_dict(data, where="override")


def load_config(name: str) -> TrainConfig:
    """Load a shipped configuration by name, or any by the path of its TOML file.

    Raises:
        ConfigError: No such file, broken TOML, or an unknown key.
    """
    shipped = resources.files("training") / "configs" / f"{name}.toml"
    path = Path(name)
    if shipped.is_file():
        text = shipped.read_text("utf-8")
    elif path.is_file():
        text = path.read_text("utf-8")
    else:
        raise ConfigError(
            f"no training configuration {name!r}", hint="Pass the path of a TOML file, or a preset's name"
        )
    try:
        return _from_dict(tomllib.loads(text), where=f"config {name}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config {name}: not valid TOML: {error}") from error


def _from_dict(data: dict[str, Any], *, where: str) -> TrainConfig:
    data = dict(data)
    loss = data.pop("loss", {})
    _check_keys(where, data, TrainConfig)
    _check_keys(f"{where}: loss", loss, LossWeights)
    if "top_k" in data:
        data["top_k"] = tuple((float(s), int(k)) for s, k in data["top_k"])
    return replace(TrainConfig(**data), loss=LossWeights(**loss))


def _check_keys(where: str, table: dict[str, Any], kind: type) -> None:
    known = {f.name for f in fields(kind)}
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}. Known keys: {', '.join(sorted(known))}")
