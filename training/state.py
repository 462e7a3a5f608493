"""Training states on disk: everything that a run needs to go on after it was killed.

A state is a folder `step-00002000` of safetensors and `state.json`. It is written under another name, synced and
renamed, and carries a mark that is written last, so that a state is whole or is not there. A step's samples depend
on the seed and the step alone, so a run may go on with another number of processes. Holds no loop and no schedule.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.errors import CheckpointError

FORMAT_VERSION = 2
RESUME_CHOICES = ("auto", "never")
_MARK = "complete"
_META = "state.json"
_SCRATCH = ".writing-"


@dataclass(kw_only=True)
class TrainingState:
    """A run between two steps.

    Args:
        identity: Of configuration and data; a state goes on only in the run that wrote it.
        seconds: Spent in the loop so far, over all sittings.
        weights: Of what is trained, float32 on the CPU; `best_weights` those of the best evaluation, if there was one.
        optimiser: Its tensors as `<parameter's number>.<name>`.
        best: Figures of the best evaluation; `strikes` evaluations without a better one have followed.
        random: States of torch's random number generators.
    """

    identity: str
    step: int
    seconds: float
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    best: dict[str, float] = field(default_factory=dict)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    strikes: int = 0
    random: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the files of a state that hold tensors, by name."""
        return {
            "weights": self.weights,
            "best_weights": self.best_weights,
            "optimiser": self.optimiser,
            "random": self.random,
        }


def save_state(folder: Path, state: TrainingState, *, keep: int) -> Path:
    """Write a state into `folder`, whole or not at all, and drop all but the newest `keep`.

    Returns:
        The state's own folder.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(stale)
    target = folder / f"step-{state.step:08d}"
    scratch = folder / f"{_SCRATCH}{target.name}"
    scratch.mkdir()
    for name, tensors in state.tensors().items():
        save_file({k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, scratch / f"{name}.safetensors")
    meta = {k: getattr(state, k) for k in ("identity", "step", "seconds", "best", "strikes")}
    (scratch / _META).write_text(json.dumps({"format_version": FORMAT_VERSION, **meta}, indent=2) + "\n", "utf-8")
    for file in scratch.iterdir():
        _sync(file)
    (scratch / _MARK).touch()
    _sync(scratch)
    shutil.rmtree(target, ignore_errors=True)
    scratch.rename(target)
    _sync(folder)
    for old in complete_states(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def complete_states(folder: Path) -> list[Path]:
    """Return the states in `folder` that were written whole, oldest first."""
    return sorted(p.parent for p in folder.glob(f"step-*/{_MARK}"))


def find_state(folder: Path, resume: str) -> Path | None:
    """Return the state to go on from: the newest whole one for `auto`, none for `never`, or the one at a path.

    Args:
        resume: `auto`, `never`, or the path of a state, of a folder of states, or of a run.

    Raises:
        CheckpointError: No state at the given path.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return next(reversed(complete_states(folder)), None)
    path = Path(resume)
    if (path / _MARK).is_file():
        return path
    found = complete_states(path) or complete_states(path / "states")
    if not found:
        raise CheckpointError(
            f"{path} holds no complete training state", hint="Pass the folder of a run, or --resume never"
        )
    return found[-1]


def load_state(path: Path, *, identity: str) -> TrainingState:
    """Read a state.

    Args:
        identity: Of the run that wants to go on.

    Raises:
        CheckpointError: Broken, of another format, or of another run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        meta = json.loads((path / _META).read_text("utf-8"))
        version = meta.pop("format_version")
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format {version}, this d2a reads {FORMAT_VERSION}",
                hint="Update d2a" if version > FORMAT_VERSION else "Start anew with --resume never",
            )
        names = ("weights", "best_weights", "optimiser", "random")
        tensors = {name: load_file(path / f"{name}.safetensors") for name in names}
        state = TrainingState(**meta, **tensors)
    except (OSError, KeyError, TypeError, json.JSONDecodeError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: broken training state: {error}", hint="Delete it, or start anew with --resume never"
        ) from error
    if state.identity != identity:
        raise CheckpointError(
            f"{path} belongs to a run with another configuration or other data",
            hint="Pass another --out, or start anew with --resume never",
        )
    return state


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimiser's state flat; learning rates are no part of it, the schedule sets them."""
    entries = optimiser.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, entry in entries.items() for name, tensor in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def random_states() -> dict[str, Tensor]:
    """Return the states of torch's random number generators on this process's devices."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(states: Mapping[str, Tensor]) -> None:
    """Put back what `random_states` gave, as far as this machine has the devices."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def copied(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a copy of a module's state on the CPU, which later steps leave alone."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
