"""Configuration of a training run, from sparse commented TOML in layers; imports no torch.

A run's values come from the recipe's file (`configs/recipes`), then the model's file, then the model's tables for
that recipe and for what is trained, then overrides: so that every model takes both recipes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from models.errors import ConfigError
from models.presets import RECIPES, MemorySpec, load_preset
from training.curriculum import LossWeights, Phase, Stage, check_weight, parse_stages, phase_at

# The systems that can be trained, and what each reads: the first choice is the default.
READS = {"doc2atom": ("atoms",), "d2l": ("raw", "atoms"), "reader": ("atoms", "document"), "blind": ("",)}
# What a file may hold tables for, beside its own values.
_TABLES: dict[str, Iterable[str]] = {"recipes": RECIPES, "systems": READS}
PROTECT_FORMS = ("l2", "null_space")
BANKS = ("passage", "library")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A training run. A sample is one document with at most `questions_per_document` of its questions.

    Args:
        model: Preset.
        memory: Overrides of the recipe's `MemorySpec`, as nested tables.
        mixture: Relative shares of the sources of records; empty takes every record once.
        global_batch: Samples a step, over all processes.
        micro_batch: Samples a process takes at once; None takes its whole share. It changes memory, not results.
        batch_route: Further questions a step that only train the router; probes among them.
        share_library: Share of questions routed among all passages' atoms instead of their own passage's.
        share_sibling: Share of language-model questions that are near misses, with the refusal as target: half asked
            of a sibling passage, half of their own that does not answer them; all of one kind where there is no other.
        share_absent: Share of language-model questions asked of all other passages, with the refusal as target.
        share_withheld: Share of language-model questions asked of their passage without its gold and supporting atoms,
            with the refusal as target; none for systems that read it whole.
        foreign_probes: Keep the probes of records made offline that are other documents' questions; a run with
            `share_sibling` or `batch_route` draws such questions by itself.
        refuse_near_miss: Unanswerable questions of a passage train the model to refuse, instead of suppressing the
            adapter like off-topic ones.
        supporting_as_negative: Supporting atoms count as negatives of the router, instead of not at all.
        gold_forcing: Share of language-model questions given their gold atoms at first; falls to 0 linearly.
        rescue_gold: Put the best gold atom in the last place where the router misses every one.
        distill_temperature: tau, at which the memory is distilled; `training.systems.d2l` has its own.
        distill_top_k: The teacher's best tokens that are kept; all others share one bucket.
        target_density: rho, the mean gate that the sparse loss pulls towards.
        protect_form: `l2` or `null_space`, with a basis of `protect_size` directions a site.
        final_rate_share: Where the cosine ends, as a share of `learning_rate`.
        max_steps: Horizon of the cosine, in optimiser steps.
        max_epochs: Passes over the samples after which the run ends in any case.
        max_minutes: Wall clock of the loop, without the feature cache, or None; the schedule follows whichever of
            steps, epochs and minutes is nearest its end.
        eval_every: Optimiser steps between evaluations on held-out passages.
        eval_top_k: K by bank (`passage`, `library`); the held-out loss is the mean over these banks.
        patience: Evaluations in the last stage without a better held-out loss before the run stops.
        probe_margin: Nats a token by which another document's memory must be worse than the right one's,
            from `probe_from_step` on; a run that fails is stopped.
        max_context_tokens: Of the document that the teacher reads, and that Doc-to-LoRA or the reader is given.
        cache_atom_layers: Keep token micro-KV's inputs at every memory layer: as many times the memory as there are
            such layers, and no pass over the atoms in a step.
        feature_home: Where frozen features are kept: `device`, `pinned` (page-locked host memory), `disk`, `auto` by
            their size, or `live` for none, which computes them in every step.
        save_every: Optimiser steps between training states, of which the newest `keep_states` are kept.
    """

    model: str = "smollm2"
    recipe: str = "d2a"
    memory: dict[str, Any] = field(default_factory=dict)
    records: str = "train.jsonl.gz"
    mixture: dict[str, float] = field(default_factory=dict)
    holdout_passages: int = 800
    global_batch: int = 128
    questions_per_document: int = 1
    micro_batch: int | None = None
    batch_route: int = 384
    share_library: float = 0.5
    share_sibling: float = 0.1
    share_absent: float = 0.1
    share_withheld: float = 0.0
    foreign_probes: bool = True
    refuse_near_miss: bool = True
    supporting_as_negative: bool = False
    gold_forcing: float = 0.5
    rescue_gold: bool = True
    distill_temperature: float = 1.5
    distill_top_k: int = 32
    target_density: float = 0.5
    protect_form: str = "l2"
    protect_size: int = 64
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    warmup_steps: int = 200
    max_grad_norm: float = 1.0
    final_rate_share: float = 0.02
    max_steps: int = 6000
    max_epochs: int = 50
    max_minutes: float | None = None
    log_every: int = 50
    eval_every: int = 250
    eval_top_k: dict[str, int] = field(default_factory=lambda: {"passage": 3, "library": 8})
    patience: int = 4
    probe_margin: float = 0.05
    probe_from_step: int = 1000
    save_every: int = 500
    keep_states: int = 2
    max_answer_tokens: int = 32
    max_context_tokens: int = 8192
    cache_batch_tokens: int = 65536
    cache_atom_layers: bool = False
    feature_home: str = "auto"
    seed: int = 0
    loss: LossWeights = field(default_factory=LossWeights)
    stages: tuple[Stage, ...] = (Stage(top_k=8),)

    def __post_init__(self) -> None:
        for f in fields(self):
            _check_kind(f.name, f.type, getattr(self, f.name))
        for name in (
            "share_library",
            "share_sibling",
            "share_absent",
            "share_withheld",
            "gold_forcing",
            "target_density",
        ):
            _require(0.0 <= getattr(self, name) <= 1.0, name, "in [0, 1]", getattr(self, name))
        refused = self.share_sibling + self.share_absent + self.share_withheld
        _require(refused < 1.0, "share_sibling", "below 1 with share_absent and share_withheld", refused)
        _require(self.recipe in RECIPES, "recipe", f"one of {', '.join(RECIPES)}", self.recipe)
        _require(
            self.protect_form in PROTECT_FORMS, "protect_form", f"one of {', '.join(PROTECT_FORMS)}", self.protect_form
        )
        _require(
            all(_is_number(v) and v >= 0 for v in self.mixture.values()), "mixture", "a table of numbers", self.mixture
        )
        known = bool(self.eval_top_k) and all(b in BANKS and type(k) is int for b, k in self.eval_top_k.items())
        _require(known, "eval_top_k", f"a table of K by {' and '.join(BANKS)}", self.eval_top_k)

    @property
    def uses_library(self) -> bool:
        """Whether candidates from other passages take part."""
        return "contrastive" in self.active_losses or self.share_library > 0 or self.share_absent > 0

    @property
    def active_losses(self) -> frozenset[str]:
        """Return the losses that any stage switches on."""
        return frozenset().union(*(stage.active(asdict(self.loss)) for stage in self.stages))

    def memory_spec(self) -> MemorySpec:
        """Return the memory's shape: that of preset and recipe, with this configuration's overrides."""
        shape = load_preset(self.model).spec(self.recipe).to_dict()
        return MemorySpec.from_dict(_overlaid(shape, self.memory))

    def phase_at(self, step: int, progress: float) -> Phase:
        """Return what holds at optimiser step `step` and share `progress` of the run."""
        return phase_at(self.stages, asdict(self.loss), step, progress, gold_forcing=self.gold_forcing)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain data for the run's folder."""
        return asdict(self)

    def with_overrides(self, assignments: Mapping[str, Any]) -> TrainConfig:
        """Return a copy with dotted keys set, such as `loss.lm` or `memory.num_memory_layers`."""
        data = self.to_dict()
        for key, value in assignments.items():
            *path, last = key.split(".")
            table = data
            for part in path:
                table = table.setdefault(part, {})
            table[last] = value
        return _from_dict(data, where="override")


def load_config(name: str, *, recipe: str | None = None, system: str = "doc2atom") -> TrainConfig:
    """Load a shipped configuration by name, or any by the path of its TOML file.

    Args:
        recipe: None takes the file's own.
        system: What is trained, of `READS`.

    Raises:
        ConfigError: No such file, broken TOML, an unknown key, or a value of the wrong kind.
    """
    shipped = resources.files("training") / "configs"
    path = Path(name)
    if (shipped / f"{name}.toml").is_file():
        text = (shipped / f"{name}.toml").read_text("utf-8")
    elif path.is_file():
        text = path.read_text("utf-8")
    else:
        raise ConfigError(
            f"no training configuration {name!r}", hint="Pass the path of a TOML file, or a preset's name"
        )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config {name}: not valid TOML: {error}") from error
    chosen = recipe or data.get("recipe", TrainConfig.recipe)
    _require(chosen in RECIPES, "recipe", f"one of {', '.join(RECIPES)}", chosen)
    merged = tomllib.loads((shipped / "recipes" / f"{chosen}.toml").read_text("utf-8"))
    tables = {key: _tables(data, key, known, where=f"config {name}") for key, known in _TABLES.items()}
    for layer in (data, tables["recipes"].get(chosen, {}), tables["systems"].get(system, {})):
        merged = _merged(merged, layer)
    return _from_dict({**merged, "recipe": chosen}, where=f"config {name}")


def _tables(data: dict[str, Any], key: str, known: Iterable[str], *, where: str) -> dict[str, Mapping[str, Any]]:
    """Take the tables at `key` out of a file's values; all of them are checked, whichever is wanted."""
    tables = data.pop(key, {})
    _check_keys(f"{where}: {key}", tables, set(known))
    for name, table in tables.items():
        _check_keys(f"{where}: {key}.{name}", table, {f.name for f in fields(TrainConfig)} - {"model", "recipe"})
    return tables


def config_for(model: str) -> str:
    """Return the name of the configuration that trains a preset where none is named: its own, or its recipe's."""
    if (resources.files("training") / "configs" / f"{model}.toml").is_file():
        return model
    return f"recipes/{load_preset(model).default_recipe}"


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, `over` winning; tables merge key by key, but what is chosen whole replaces."""
    both = {k: (under[k], v) for k, v in over.items() if k in ("loss", "memory") and isinstance(under.get(k), dict)}
    nested = {k: _merged(u, v) if isinstance(v, dict) else v for k, (u, v) in both.items()}
    return {**under, **over, **nested}


def _overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tables with those of `over` on top; a key that only `over` has is kept, to be refused by name."""
    nested = {k: _overlaid(under[k], v) for k, v in over.items() if isinstance(v, dict) and k in under}
    return {**under, **over, **nested}


def parse_overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` pairs of a command line; a value that is no JSON is text.

    Raises:
        ConfigError: A pair without `=`.
    """
    overrides = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"--set must be KEY=VALUE, got {pair!r}")
        try:
            overrides[key] = json.loads(value)
        except json.JSONDecodeError:
            overrides[key] = value
    return overrides


def _from_dict(data: Mapping[str, Any], *, where: str) -> TrainConfig:
    data = dict(data)
    _check_keys(where, data, {f.name for f in fields(TrainConfig)})
    loss = data.pop("loss", {})
    _check_keys(f"{where}: loss", loss, {f.name for f in fields(LossWeights)})
    for key, value in loss.items():
        check_weight(f"{where}: loss", key, value)
    if "stages" in data:
        data["stages"] = parse_stages(data["stages"], where=where)
    if isinstance(data.get("betas"), list):
        data["betas"] = tuple(data["betas"])
    return TrainConfig(**data, loss=LossWeights(**loss))


def _check_keys(where: str, table: Any, known: set[str]) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}. Known keys: {', '.join(sorted(known))}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


# Whole numbers count things, so they start at 1 unless listed here.
_FROM_ZERO = frozenset({"seed", "batch_route", "probe_from_step"})
_POSITIVE = frozenset({"learning_rate", "max_grad_norm", "distill_temperature"})
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda v: type(v) is int, "a whole number"),
    "int | None": (lambda v: v is None or (type(v) is int and v >= 1), "a whole number from 1"),
    "float": (_is_number, "a number"),
    "float | None": (lambda v: v is None or (_is_number(v) and v > 0), "a number above 0"),
    "bool": (lambda v: type(v) is bool, "true or false"),
    "str": (lambda v: type(v) is str, "text"),
    "dict[str, Any]": (lambda v: isinstance(v, dict), "a table"),
    "dict[str, float]": (lambda v: isinstance(v, dict), "a table"),
    "dict[str, int]": (lambda v: isinstance(v, dict), "a table"),
    "tuple[float, float]": (
        lambda v: isinstance(v, tuple) and len(v) == 2 and all(_is_number(b) and 0 <= b < 1 for b in v),
        "two numbers in [0, 1)",
    ),
}


def _check_kind(name: str, kind: str, value: Any) -> None:
    if kind not in _KINDS:
        return
    fits, constraint = _KINDS[kind]
    _require(fits(value), name, constraint, value)
    if kind == "int":
        least = 0 if name in _FROM_ZERO else 1
        _require(value >= least, name, f"at least {least}", value)
    if kind == "float":
        _require(
            value > 0 if name in _POSITIVE else value >= 0, name, "above 0" if name in _POSITIVE else "from 0", value
        )


def _require(fits: bool, name: str, constraint: str, value: Any) -> None:
    if not fits:
        raise ConfigError(f"train: {name} must be {constraint}, got {value!r}")
