"""Trained memories on disk: bf16 safetensors in pieces, with everything that is needed to use them.

A checkpoint is a folder with `memory.json` (preset, shape, base fingerprint, gate, how it was trained) and
`memory-0000N-of-0000M.safetensors`. Holds saving, loading and finding; the loop that makes one is `training`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import CheckpointError
from models.presets import MemorySpec, Preset

if TYPE_CHECKING:
    from models.base import FrozenBase
    from models.network import MemoryNetwork

logger = logging.getLogger(__name__)

FORMAT_VERSION = 3
MAX_PIECE_BYTES = 15_000_000
_META = "memory.json"


@dataclass(frozen=True, kw_only=True)
class CheckpointMeta:
    """What a checkpoint says of itself.

    Args:
        gate: The answerability gate, as `models.router.AnswerabilityGate` names its numbers.
        training: Configuration, data manifest and held-out figures of the run.
        fingerprint: 16 hex digits over weights, shape and gate; filled in on load.
    """

    preset: str
    spec: MemorySpec
    base_fingerprint: str
    gate: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""


def data_root() -> Path:
    """Return the user's data folder of d2a; `D2A_DATA` overrides it."""
    if override := os.environ.get("D2A_DATA"):
        return Path(override)
    from platformdirs import user_data_path

    return user_data_path("d2a")


def find_checkpoint(preset: Preset, explicit: Path | None = None) -> Path:
    """Return the checkpoint folder to use: the given one, the user's registered one, or the shipped one.

    Raises:
        CheckpointError: There is none, with the command that makes one.
    """
    if explicit is not None:
        if not (explicit / _META).is_file():
            raise CheckpointError(
                f"{explicit} is not a checkpoint ({_META} is missing)", hint="Pass the folder that `d2a train` wrote"
            )
        return explicit
    registered = data_root() / "checkpoints" / preset.name
    shipped = Path(str(resources.files("models") / "checkpoints" / preset.name))
    for folder in (registered, shipped):
        if (folder / _META).is_file():
            return folder
    raise CheckpointError(
        f"preset {preset.name} has no trained memory, and an untrained one would answer like the bare base",
        hint=f"Train one with `d2a train --model {preset.name}`, or pass one with --checkpoint PATH",
    )


def read_meta(folder: Path) -> CheckpointMeta:
    """Read what a checkpoint says of itself, without its weights.

    Raises:
        CheckpointError: Broken, or written by a newer or much older d2a.
    """
    try:
        data = json.loads((folder / _META).read_text("utf-8"))
        version = data.pop("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder} has format {version}, this d2a reads {FORMAT_VERSION}",
                hint="Update d2a" if version > FORMAT_VERSION else "Fetch or train it again",
            )
        data["spec"] = MemorySpec.from_dict(data["spec"])
        return CheckpointMeta(**{**data, "fingerprint": _fingerprint(folder)})
    except (OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder}: broken checkpoint: {error}", hint="Fetch or train it again") from error


def load_network(folder: Path, base: FrozenBase) -> tuple[MemoryNetwork, CheckpointMeta]:
    """Load a trained memory onto the base's device, in float32 and evaluation mode.

    Raises:
        CheckpointError: Made for another base, or weights that are missing or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from models.network import MemoryNetwork

    meta = read_meta(folder)
    if meta.base_fingerprint != base.fingerprint():
        raise CheckpointError(
            f"{folder} was trained on base {meta.base_fingerprint}, this base is {base.fingerprint()}",
            hint="Use the base that the preset names, or train a memory for this one",
        )
    network = MemoryNetwork(meta.spec, base)
    try:
        weights = {k: v for piece in sorted(folder.glob("memory-*.safetensors")) for k, v in load_file(piece).items()}
        network.load_state_dict({k: v.float() for k, v in weights.items()})
    except (SafetensorError, RuntimeError, OSError) as error:
        raise CheckpointError(
            f"{folder}: broken weights: {str(error).splitlines()[0]}", hint="Fetch or train it again"
        ) from error
    return network.to(base.device).eval().requires_grad_(False), meta


def save_network(folder: Path, network: MemoryNetwork, meta: CheckpointMeta) -> None:
    """Write a checkpoint; the folder is complete once `memory.json` stands in it, which is written last."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / _META).unlink(missing_ok=True)
    for stale in folder.glob("memory-*.safetensors"):
        stale.unlink()
    pieces: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in network.state_dict().items():
        narrow = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        if size + narrow.nbytes > MAX_PIECE_BYTES and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][name] = narrow
        size += narrow.nbytes
    for index, piece in enumerate(pieces):
        save_file(piece, folder / f"memory-{index + 1:05d}-of-{len(pieces):05d}.safetensors")
    data = {"format_version": FORMAT_VERSION, **asdict(meta), "spec": meta.spec.to_dict()}
    data.pop("fingerprint")
    scratch = folder / f"{_META}.tmp"
    scratch.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    scratch.replace(folder / _META)


def register_checkpoint(folder: Path, preset_name: str) -> Path:
    """Copy a finished checkpoint to where `find_checkpoint` looks first; return that folder."""
    import shutil

    target = data_root() / "checkpoints" / preset_name
    scratch = target.with_name(f"{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    return target


def _fingerprint(folder: Path) -> str:
    data = json.loads((folder / _META).read_text("utf-8"))
    identity = json.dumps({k: data[k] for k in ("preset", "spec", "base_fingerprint", "gate")}, sort_keys=True)
    digest = hashlib.sha256(identity.encode())
    for piece in sorted(folder.glob("memory-*.safetensors")):
        digest.update(hashlib.sha256(piece.read_bytes()).digest())
    return digest.hexdigest()[:16]
