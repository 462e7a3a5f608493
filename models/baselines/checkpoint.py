"""Trained baselines on disk: `baseline.json` and `baseline.safetensors` in bf16, in a folder of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.base import FrozenBase
from models.baselines.d2l import D2LConfig, HyperLora
from models.errors import CheckpointError, D2AError
from models.presets import MemorySpec
from models.static_lora import StaticLora

FORMAT_VERSION = 1
_META, _WEIGHTS = "baseline.json", "baseline.safetensors"
SYSTEMS = ("d2l", "reader", "blind")


@dataclass(frozen=True, kw_only=True)
class BaselineMeta:
    """What a trained baseline says of itself.

    Args:
        system: One of `SYSTEMS`.
        reads: `raw` or `atoms` for d2l, `atoms` or `document` for the reader, empty for the blind control.
        shape: Constructor's arguments: of `D2LConfig` for d2l, of `MemorySpec` for the others.
        training: Configuration, data manifest and held-out figures of the run.
    """

    system: str
    preset: str
    base_fingerprint: str
    shape: dict[str, Any]
    reads: str = ""
    training: dict[str, Any] = field(default_factory=dict)


def save_baseline(folder: Path, module: nn.Module, meta: BaselineMeta) -> None:
    """Write a baseline; the folder is complete once `baseline.json` stands in it, which is written last."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / _META).unlink(missing_ok=True)
    weights = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}
    save_file(weights, folder / _WEIGHTS)
    scratch = folder / f"{_META}.tmp"
    scratch.write_text(json.dumps({"format_version": FORMAT_VERSION, **asdict(meta)}, indent=2) + "\n", "utf-8")
    scratch.replace(folder / _META)


def load_baseline(folder: Path, base: FrozenBase) -> tuple[HyperLora | StaticLora, BaselineMeta]:
    """Load a baseline onto the base's device, in float32 and evaluation mode.

    Raises:
        CheckpointError: Missing, broken, written by a newer d2a, or made for another base.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    meta = _read_meta(folder)
    if meta.base_fingerprint != base.fingerprint():
        raise CheckpointError(
            f"{folder} was trained on base {meta.base_fingerprint}, this base is {base.fingerprint()}",
            hint="Use the base that the preset names, or train a baseline for this one",
        )
    try:
        if meta.system == "d2l":
            module = HyperLora.over(base, D2LConfig(**meta.shape))
        else:
            module = StaticLora(MemorySpec.from_dict(meta.shape), base)
        module.load_state_dict({k: v.float() for k, v in load_file(folder / _WEIGHTS).items()})
    except (SafetensorError, RuntimeError, TypeError, OSError, D2AError) as error:
        raise CheckpointError(
            f"{folder}: broken baseline: {str(error).splitlines()[0]}", hint="Train it again"
        ) from error
    return module.eval().requires_grad_(False), meta


def _read_meta(folder: Path) -> BaselineMeta:
    if not (folder / _META).is_file():
        raise CheckpointError(f"{folder} is no trained baseline ({_META} is missing)", hint="Pass a run's folder")
    try:
        data = json.loads((folder / _META).read_text("utf-8"))
        version = data.pop("format_version")
        if version > FORMAT_VERSION:
            raise CheckpointError(f"{folder} has format {version}, this d2a reads {FORMAT_VERSION}", hint="Update d2a")
        meta = BaselineMeta(**data)
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder}: broken baseline: {error}", hint="Train it again") from error
    if meta.system not in SYSTEMS:
        raise CheckpointError(f"{folder}: system must be one of {', '.join(SYSTEMS)}, got {meta.system!r}")
    return meta
