"""The header of a run: everything that a reader of its figures must know, and what makes two runs the same one."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import D2AError
from training.bench.results import HEADER
from training.bench.samples import Suite
from training.datasets.manifest import DataManifest

if TYPE_CHECKING:
    from models.base import FrozenBase
    from training.bench.run import BenchRequest

UNKNOWN = "unknown"
_PACKAGES = ("d2a", "torch", "transformers", "safetensors", "bm25s", "numpy")
# Facts that a run which goes on may not change: the rows would not belong together.
_IDENTITY = ("model", "base", "checkpoint", "baselines", "seed", "limit", "bank", "k", "protocol", "chunk", "batch")


def domain_of(training: Mapping[str, Any], dataset: str) -> str:
    """Return `in-domain` or `zero-shot` for a set, from what a checkpoint says of its training; or `unknown`.

    Args:
        training: As in the checkpoint; its data manifest tells which sets took part.
    """
    data = training.get("data", {})
    manifest = data.get("manifest", {}) if isinstance(data, Mapping) else {}
    # Annotated shards carry the manifest of their sources below that of the annotation.
    manifest = manifest if "sources" in manifest else manifest.get("data", {})
    if "sources" not in manifest:
        return UNKNOWN
    return DataManifest.from_dict({"held_out": {}, **manifest}).in_domain(dataset)


def suite_facts(suite: Suite) -> dict[str, Any]:
    """Return what the header says of a suite before its atoms are known."""
    ids = hashlib.sha256("\n".join(sample.sample_id for sample in suite.samples).encode())
    return {
        "n": len(suite.samples),
        "num_total": suite.num_total,
        "is_complete": suite.is_complete and len(suite.samples) == suite.num_total,
        "dataset": suite.dataset,
        "metric": suite.metric,
        "note": suite.note,
        "num_documents": len(suite.contexts),
        "samples": ids.hexdigest()[:16],
    }


def machine(base: FrozenBase) -> dict[str, Any]:
    """Return versions and hardware."""
    import torch

    facts = {
        "platform": platform.platform(),
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "device": str(base.device),
        "dtype": str(base.dtype).removeprefix("torch."),
        "attention": base.attention,
    }
    if base.device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(base.device)
    return {"versions": {"python": platform.python_version(), **_versions()}, "hardware": facts}


def command_of(request: BenchRequest) -> str:
    """Return the command that makes this run again, where it was run: paths below that folder are named from there."""
    values = {
        "model": request.model,
        "systems": ",".join(request.systems) or None,
        "recipe": request.recipe,
        "checkpoint": request.checkpoint,
        "base": request.base_path,
        "data": request.data,
        "bank": request.bank,
        "k": request.k,
        "protocol": request.protocol,
        "limit": request.limit,
        "seed": request.seed,
        "batch": request.batch,
        "device": request.device,
        "out": request.out,
    }
    words = ["d2a", "bench", *request.suites]
    words += [word for name, value in values.items() if value is not None for word in (f"--{name}", _word(value))]
    words += [word for name, path in request.baselines.items() for word in ("--baseline", f"{name}={_word(path)}")]
    return shlex.join(words)


def _word(value: object) -> str:
    is_here = isinstance(value, Path) and value.is_relative_to(Path.cwd())
    return str(value.relative_to(Path.cwd()) if is_here else value)


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Raise D2AError unless a run may go on with the rows of another header."""

    def identity(header: Mapping[str, Any]) -> dict[str, Any]:
        facts = {name: header.get(name) for name in _IDENTITY}
        facts["samples"] = {name: s.get("samples") for name, s in header.get("suites", {}).items()}
        facts["systems"] = [name for name, s in header.get("systems", {}).items() if s.get("status") == "ok"]
        hardware = header.get("hardware", {})
        return {**facts, "device": hardware.get("device"), "dtype": hardware.get("dtype")}

    before, after = identity(old), json.loads(json.dumps(identity(new)))
    for name, value in after.items():
        if before[name] != value:
            raise D2AError(
                f"{folder} holds a run with {name} {before[name]}, this one has {value}",
                hint="Pass another --out, or start over: --no-resume",
            )


def write_header(folder: Path, header: Mapping[str, Any]) -> None:
    """Write the header; it is there whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f"{HEADER}.tmp"
    scratch.write_text(json.dumps(header, indent=2, ensure_ascii=False) + "\n", "utf-8")
    scratch.replace(folder / HEADER)


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a source tree that is not installed
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or UNKNOWN
