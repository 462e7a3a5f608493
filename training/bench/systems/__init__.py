"""The systems of the benchmark by name, each with what it takes to build it.

    from training.bench.systems import DEFAULT_SYSTEMS, build_system
    system = build_system("doc2atom", base, network, preset="smollm2")

One that lacks its trained weights raises an error that names the command to train them: its row says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.base import FrozenBase
from models.baselines.checkpoint import BaselineMeta, load_baseline
from models.checkpoint import data_root
from models.errors import CheckpointError, ConfigError
from models.network import MemoryNetwork
from training.bench.systems.baselines import DocToLora, Reader
from training.bench.systems.memory import Memory
from training.bench.systems.system import Given, System
from training.bench.systems.text import NoContext, Retrieval, WholeDocument

__all__ = ["DEFAULT_SYSTEMS", "SYSTEMS", "Given", "System", "build_system"]

DEFAULT_SYSTEMS = ("no-context", "base+ctx", "doc2atom", "shuffled-document", "retrieval")

_MEMORIES: dict[str, dict[str, Any]] = {
    "doc2atom": {},
    "doc2atom+atoms": {"text": "atoms"},
    "doc2atom+ctx": {"text": "document"},
    "shuffled-document": {"routing": "strange"},
    "gold-atoms": {"routing": "gold"},
    "kv+static-lora": {"writes": "static"},
    "lora-only": {"writes": "lora"},
}
_SEARCHES = {"retrieval": ("words", "keys"), "retrieval-bm25": ("words",), "retrieval-dense": ("keys",)}
# What a checkpoint must be, and the options that train one.
_TRAINED = {
    "blind": (("blind", ""), "--system blind"),
    "tuned+atoms": (("reader", "atoms"), "--system reader --prompt atoms"),
    "tuned+ctx": (("reader", "document"), "--system reader --prompt document"),
    "d2l-raw": (("d2l", "raw"), "--system d2l --documents raw"),
    "d2l-atom": (("d2l", "atoms"), "--system d2l --documents atoms"),
}
SYSTEMS = (
    "no-context",
    "base+ctx",
    "doc2atom",
    "doc2atom+atoms",
    "doc2atom+ctx",
    "shuffled-document",
    "blind",
    "gold-atoms",
    "kv+static-lora",
    "lora-only",
    "tuned+atoms",
    "tuned+ctx",
    "d2l-raw",
    "d2l-atom",
    "d2l-ckpt",
    *_SEARCHES,
)


def build_system(
    name: str, base: FrozenBase, network: MemoryNetwork | None, *, preset: str, checkpoint: Path | None = None
) -> tuple[System, BaselineMeta | None]:
    """Build a system.

    Args:
        network: The trained memory, None where there is none.
        checkpoint: Of the system's own training; None takes the registered one.

    Returns:
        The system, and for one with a checkpoint of its own what that says of itself.

    Raises:
        ConfigError: An unknown name.
        CheckpointError: It needs weights that are not there, or that were trained for something else; or with these it
            would be another system once more.
    """
    if name not in SYSTEMS:
        raise ConfigError(f"bench: system must be one of {', '.join(SYSTEMS)}, got {name!r}")
    if network is None and (name in _MEMORIES or name == "tuned+atoms" or "keys" in _SEARCHES.get(name, ())):
        raise CheckpointError(
            f"{name} needs the trained memory of {preset}", hint=f"Train one with `d2a train --model {preset}`"
        )
    if name == "kv+static-lora" and network.spec.lora == "static":
        raise CheckpointError(
            f"{name} is doc2atom itself: all atoms of this memory share one LoRA", hint="Read the row of doc2atom"
        )
    if name in _MEMORIES:
        return Memory(name, **_MEMORIES[name]), None
    if name in _SEARCHES:
        return Retrieval(name, by=_SEARCHES[name]), None
    if name in _TRAINED:
        return _trained(name, base, preset, checkpoint)
    if name == "d2l-ckpt":
        return _released(name, base, preset, checkpoint)
    return {"no-context": NoContext, "base+ctx": WholeDocument}[name](name), None


def _trained(name: str, base: FrozenBase, preset: str, checkpoint: Path | None) -> tuple[System, BaselineMeta]:
    (kind, reads), options = _TRAINED[name]
    folder = checkpoint or data_root() / "baselines" / preset / name
    run = f"runs/{preset}-{name}"
    train = f"d2a train --model {preset} {options} --out {run}"
    if checkpoint is None and not folder.is_dir():
        raise CheckpointError(
            f"{name} has no trained weights",
            hint=f"Train them with `{train}`, then pass `--baseline {name}={run}/checkpoint`",
        )
    module, meta = load_baseline(folder, base)
    if (meta.system, meta.reads) != (kind, reads):
        raise CheckpointError(
            f"{folder} is a {meta.system} that reads {meta.reads or 'nothing'}, {name} needs a {kind} that reads "
            f"{reads or 'nothing'}",
            hint=f"Train it with `{train}`",
        )
    if kind == "d2l":
        return DocToLora(name, base, module, form=reads), meta
    return Reader(name, module, text=reads or "none"), meta


def _released(name: str, base: FrozenBase, preset: str, checkpoint: Path | None) -> tuple[System, BaselineMeta]:
    """Load the official release of Doc-to-LoRA, which `models.baselines.release` has converted."""
    convert = f"python -m models.baselines.release pytorch_model.bin --model {preset} --out FOLDER"
    folder = checkpoint or data_root() / "baselines" / preset / name
    if checkpoint is None and not folder.is_dir():
        raise CheckpointError(
            "the official release of Doc-to-LoRA is not here, and nothing is downloaded",
            hint=f"Convert it with `{convert}`, then pass `--baseline {name}=FOLDER`",
        )
    module, meta = load_baseline(folder, base)
    if meta.system != "d2l" or "release" not in meta.training:
        raise CheckpointError(f"{folder} is no converted release of Doc-to-LoRA", hint=f"Convert it with `{convert}`")
    return DocToLora(name, base, module, form="raw"), meta
