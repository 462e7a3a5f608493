"""A tiny preset on disk, with base and checkpoint, so that `DocumentMemory` runs whole in a test."""

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from models.base import quiet_transformers
from models.checkpoint import CheckpointMeta, save_network
from models.config import MemoryConfig
from models.memory import DocumentMemory
from models.presets import MemorySpec
from tests.models.tiny import tiny_base, tiny_network, tiny_spec

GATE = {"coefficients": [0.0, 6.0, 0.0, 0.0], "bias": -2.0, "threshold": 0.5}

SPECS = {
    "d2a": tiny_spec("d2a"),
    "d2a in int8": tiny_spec("d2a", kv={"store": "int8"}),
    "d2a in int6": tiny_spec("d2a", kv={"store": "int6"}),
    "d2a with one LoRA": tiny_spec("d2a", lora="static"),
    "paper": tiny_spec("paper"),
    "paper with latent micro-KV": tiny_spec("paper", kv={"source": "latent"}),
}

QUESTION = "Who was born in Marn?"
TOWN = "Ilse Kant was born in Marn. She built nine bridges there in 1920.\n\nThe town of Marn burned in 1953."
ZOO = "Otters live in lake Tor. The zoo keeps forty otters. Visitors feed the otters at noon."


@functools.cache
def base_folder(family: str) -> Path:
    """Return a folder with a tiny base of `family`, saved once a test run."""
    folder = Path(tempfile.mkdtemp(prefix=f"tiny-{family}-"))
    base = tiny_base(family)
    # Under its plain attention: the memory's own is registered anew wherever the base is loaded.
    base.model.set_attn_implementation("eager")
    quiet_transformers()
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def write_preset(folder: Path, family: str, specs: dict[str, MemorySpec] | None = None, *, name: str = "tiny") -> Path:
    """Write a TOML preset whose base is the tiny one of `family`; the first recipe is the default."""
    specs = specs or {"d2a": tiny_spec("d2a")}
    lines = [f'name = "{name}"', f'default_recipe = "{next(iter(specs))}"', "[base]"]
    lines += [f'source = "nowhere/{name}"', f'family = "{family}"', 'install = "fetch it"']
    for recipe, spec in specs.items():
        tables = spec.to_dict()
        nested = {key: tables.pop(key) for key in ("kv", "router")}
        tables.pop("recipe")
        lines += [f"[recipes.{recipe}]", *(_assignment(*item) for item in tables.items())]
        for key, table in nested.items():
            lines += [f"[recipes.{recipe}.{key}]", *(_assignment(*item) for item in table.items())]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _assignment(key: str, value: object) -> str:
    return f"{key} = {json.dumps(value)}"


def write_checkpoint(
    folder: Path, family: str, spec: MemorySpec | None = None, *, name: str = "tiny", seed: int = 1, gate: dict = GATE
) -> Path:
    """Write the checkpoint of a seeded random memory for the tiny base of `family`."""
    base = tiny_base(family)
    network = tiny_network(base, spec, seed=seed)
    meta = CheckpointMeta(preset=name, spec=network.spec, base_fingerprint=base.fingerprint(), gate=gate)
    save_network(folder, network, meta)
    return folder


def memory_config(
    folder: Path, family: str = "llama", *, spec: MemorySpec | None = None, **changes: object
) -> MemoryConfig:
    """Return the configuration of a memory whose preset, checkpoint and bank lie in `folder`."""
    spec = spec or tiny_spec("d2a")
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, family, spec)
    settings = {
        "bank": folder / "bank",
        "preset": str(write_preset(folder, family, {spec.recipe: spec})),
        "checkpoint": checkpoint,
        "base_path": base_folder(family),
        "device": "cpu",
        "max_new_tokens": 6,
    }
    return MemoryConfig(**{**settings, **changes})


def filled(folder: Path, family: str = "llama", **changes: object) -> DocumentMemory:
    """Return a memory of two documents that refuses nothing."""
    for name, text in (("town.txt", TOWN), ("zoo.txt", ZOO)):
        (folder / name).write_text(text, "utf-8")
    memory = DocumentMemory(memory_config(folder, family, **{"threshold": 0.0, **changes}))
    memory.ingest([str(folder / "town.txt"), str(folder / "zoo.txt")])
    return memory


def changed(memory: DocumentMemory, **changes: object) -> DocumentMemory:
    """Return another memory over the same bank."""
    return DocumentMemory(replace(memory.config, **changes))
