"""Presets: which frozen base, and how its memory is shaped under each recipe.

A preset is a TOML file with a `[base]` table and one table a recipe. `MemorySpec`'s defaults are the
published configuration (paper, appendix, hyper-parameter table), so a recipe lists only what differs.
Imports nothing heavy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from models.errors import ConfigError

RECIPES = ("paper", "d2a")
FAMILIES = ("llama", "gemma2", "qwen3")


@dataclass(frozen=True, kw_only=True)
class KVSpec:
    """Shape of the micro-KV.

    Args:
        source: `none`; `latent`, a head on the trunk latent; `tokens`, the atom's token states.
        num_slots: Slots an atom: the token limit for `tokens`, the head's width for `latent`.
        scale: How a routing weight acts: `logits` adds log w to the slots' attention logits, so that a
            weight of 0 removes them exactly; `values` multiplies the values, as published.
        depth: Whose token states make the keys and values: `layer`, the states entering each memory layer;
            `entry`, the states entering the first one, for all layers.
        store: How a bank keeps the token states of `tokens`: `bfloat16`, or `int8` or `int6` in 52 or 39 % of its
            room, with one scale a block of 64 channels.
    """

    source: str = "none"
    num_slots: int = 96
    scale: str = "values"
    depth: str = "layer"
    store: str = "bfloat16"

    def __post_init__(self) -> None:
        _choice("memory.kv", "source", self.source, ("none", "latent", "tokens"))
        _choice("memory.kv", "scale", self.scale, ("logits", "values"))
        _choice("memory.kv", "depth", self.depth, ("layer", "entry"))
        _choice("memory.kv", "store", self.store, ("bfloat16", "int8", "int6"))
        _check_fields("memory.kv", self)

    @property
    def kept_as(self) -> str:
        """What a bank keeps of an atom's micro-KV, as its identity names it."""
        if self.source != "tokens":
            return self.source
        return "entry" if self.store == "bfloat16" else f"entry-{self.store}"


@dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """How atoms are chosen.

    Args:
        num_candidates: K1 of the paper: what stage 1 hands to stage 2, per retriever.
        top_k: K of the paper: atoms that are composed.
        lexical: Unite cosine with BM25 candidates, and add their normalised score.
        null_slot: Softmax against a slot of score 0, so that weights can vanish.
        reranker: Name of the frozen cross-encoder of stage 2.
        max_rerank_tokens: Limit of a question-atom pair.
        num_read: The best candidates that the model reads one by one before K of them are composed; 0 reads none.
        gate_alone: The gate alone decides what is refused: what it lets through is answered, even where the model
            would begin with the refusal. The gate weighs that refusal too, and knows at which price.
    """

    num_candidates: int = 32
    top_k: int = 8
    temperature: float = 1.0
    lexical: bool = False
    null_slot: bool = False
    reranker: str = "BAAI/bge-reranker-base"
    max_rerank_tokens: int = 192
    num_read: int = 0
    gate_alone: bool = False

    def __post_init__(self) -> None:
        _check_fields("memory.router", self)


@dataclass(frozen=True, kw_only=True)
class MemorySpec:
    """Shape of a memory for one base.

    Args:
        num_memory_layers: n_L, the last decoder layers, where memory is written.
        num_encoder_layers: L_enc, the first layers, whose pooled states describe a text.
        d_embed: Width of the encoder head and of the trunk.
        d_key: Width of provenance and query keys.
        d_latent: Width of what the micro-LoRA and mask heads read.
        gate: `factors` multiplies A and B by the sparse gate, as published; `update` multiplies B alone.
        composition: `linear` sums factors, as published; `concat` sums updates exactly, at rank K * r.
        lora: `atom` for a micro-LoRA of each atom's own, as published; `static` for one LoRA that all atoms share, in
            which no atom says anything.
        target_modules: Linear layers that carry a micro-LoRA, by the last part of their name.
    """

    recipe: str
    num_memory_layers: int = 4
    num_encoder_layers: int = 4
    d_embed: int = 256
    d_key: int = 256
    d_latent: int = 256
    rank: int = 8
    alpha: float = 16.0
    gate: str = "factors"
    composition: str = "linear"
    lora: str = "atom"
    max_atom_tokens: int = 96
    target_modules: tuple[str, ...] = ("q_proj", "v_proj", "o_proj", "down_proj")
    kv: KVSpec = field(default_factory=KVSpec)
    router: RouterSpec = field(default_factory=RouterSpec)

    @property
    def latent_size(self) -> int:
        """Width of an atom's latent as a bank keeps it; 0 where nothing reads latents."""
        return self.d_latent if self.lora == "atom" or self.kv.source == "latent" else 0

    def __post_init__(self) -> None:
        _choice("memory", "recipe", self.recipe, RECIPES)
        _choice("memory", "gate", self.gate, ("factors", "update"))
        _choice("memory", "composition", self.composition, ("linear", "concat"))
        _choice("memory", "lora", self.lora, ("atom", "static"))
        _check_fields("memory", self)

    @classmethod
    def from_dict(cls, data: dict[str, Any], *, where: str = "memory") -> MemorySpec:
        """Build from nested tables; an unknown key is an error."""
        _known(where, data, {f.name for f in fields(cls)})
        data = dict(data)
        for name, kind in (("kv", KVSpec), ("router", RouterSpec)):
            table = data.get(name, {})
            _known(f"{where}.{name}", table, {f.name for f in fields(kind)})
            data[name] = kind(**table)
        if isinstance(data.get("target_modules"), list):
            data["target_modules"] = tuple(data["target_modules"])
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain data, as `from_dict` takes it."""
        return {**asdict(self), "target_modules": list(self.target_modules)}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A frozen base and the memories that fit it.

    Args:
        base: Hub repository; `wheel:<package>` for a GGUF inside an installed wheel.
        install: Command that adds the base, for error messages.
        default_recipe: What is used where nobody asks for another.
    """

    name: str
    base: str
    family: str
    install: str
    default_recipe: str
    recipes: dict[str, MemorySpec]

    def spec(self, recipe: str | None = None) -> MemorySpec:
        """Return the memory's shape under `recipe`."""
        name = recipe or self.default_recipe
        if name not in self.recipes:
            raise ConfigError(f"preset {self.name}: recipe must be one of {', '.join(self.recipes)}, got {name!r}")
        return self.recipes[name]


def shipped_presets() -> tuple[str, ...]:
    """Return the names of the presets that come with the package, sorted."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def load_preset(name: str) -> Preset:
    """Load a shipped preset by name, or any preset by the path of its TOML file.

    Raises:
        ConfigError: No such preset, broken TOML, or an unknown key or value.
    """
    if name in shipped_presets():
        text = (resources.files(__package__) / f"{name}.toml").read_text("utf-8")
    elif name.endswith(".toml") and Path(name).is_file():
        text = Path(name).read_text("utf-8")
    else:
        raise ConfigError(
            f"model: must be one of {', '.join(shipped_presets())} or the path of a TOML preset, got {name!r}"
        )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"preset {name}: not valid TOML: {error}") from error
    return _parse_preset(data, where=f"preset {name}")


def _parse_preset(data: dict[str, Any], *, where: str) -> Preset:
    _known(where, data, {"name", "default_recipe", "base", "recipes"})
    base, recipes = data.get("base", {}), data.get("recipes", {})
    _known(f"{where}: base", base, {"source", "family", "install"})
    _known(f"{where}: recipes", recipes, set(RECIPES))
    missing = [k for k in ("name", "base", "recipes") if k not in data] + [
        k for k in ("source", "family") if k not in base
    ]
    if missing or not recipes:
        raise ConfigError(f"{where}: must name {', '.join(missing) or 'at least one recipe'}")
    _choice(f"{where}: base", "family", base["family"], FAMILIES)
    _choice(where, "default_recipe", data.get("default_recipe", next(iter(recipes))), tuple(recipes))
    specs = {r: MemorySpec.from_dict({"recipe": r, **t}, where=f"{where}: recipes.{r}") for r, t in recipes.items()}
    return Preset(
        name=data["name"],
        base=base["source"],
        family=base["family"],
        install=base.get("install", f"pip install huggingface_hub && hf download {base['source']}"),
        default_recipe=data.get("default_recipe", next(iter(specs))),
        recipes=specs,
    )


def _known(where: str, table: dict[str, Any], known: set[str]) -> None:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}. Known keys: {', '.join(sorted(known))}")


def _choice(where: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{where}: {name} must be one of {', '.join(allowed)}, got {value!r}")


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda v: type(v) is int, "a whole number"),
    "float": (lambda v: type(v) in (int, float), "a number"),
    "bool": (lambda v: type(v) is bool, "true or false"),
    "str": (lambda v: type(v) is str, "text"),
    "tuple[str, ...]": (lambda v: type(v) is tuple and v and all(type(n) is str for n in v), "a list of names"),
}


_FROM_ZERO = frozenset({"num_read"})


def _check_fields(where: str, spec: KVSpec | RouterSpec | MemorySpec) -> None:
    """Check every field's kind, and that numbers are positive."""
    for f in (f for f in fields(spec) if f.type in _KINDS):
        value = getattr(spec, f.name)
        fits, constraint = _KINDS[f.type]
        if not fits(value):
            raise ConfigError(f"{where}: {f.name} must be {constraint}, got {value!r}")
        if f.type in ("int", "float") and value <= 0 and not (f.name in _FROM_ZERO and value == 0):
            constraint = "at least 1" if f.type == "int" else "positive"
            raise ConfigError(f"{where}: {f.name} must be {constraint}, got {value}")
