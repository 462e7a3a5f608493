"""Experiment trackers beside the run's own events, each an optional package: TensorBoard, Weights & Biases, trackio."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from models.errors import ConfigError

TRACKERS = ("tensorboard", "wandb", "trackio")


class Tracker(Protocol):
    """Takes a run's events."""

    def log(self, event: Mapping[str, Any]) -> None:
        """Take one event; those without a step are of no interest to most trackers."""
        ...


class NoTracker:
    """Takes events and drops them."""

    def log(self, event: Mapping[str, Any]) -> None:
        """Drop the event."""


class TensorBoard:
    """Scalars as TensorBoard's event files in the run's folder."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, event: Mapping[str, Any]) -> None:
        """Write the event's numbers."""
        for name, value in figures(event).items():
            self.writer.add_scalar(name, value, event["step"])


class Hosted:
    """Weights & Biases, or trackio, which has the same interface."""

    def __init__(self, module: ModuleType, folder: Path, config: Mapping[str, Any]) -> None:
        self.module = module
        module.init(project="d2a", name=folder.name, config=dict(config))

    def log(self, event: Mapping[str, Any]) -> None:
        """Send the event's numbers."""
        if found := figures(event):
            self.module.log(found, step=event["step"])


def figures(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a step or an evaluation, as `step/lm` or `eval/loss`; of other events nothing."""
    if event["event"] not in ("step", "eval"):
        return {}
    numbers = {k: v for k, v in event.items() if k != "step" and type(v) in (int, float)}
    return {f"{event['event']}/{name}": value for name, value in numbers.items()}


@contextmanager
def open_tracker(name: str | None, folder: Path, config: Mapping[str, Any]) -> Iterator[Tracker]:
    """Open a tracker for the length of a run.

    Args:
        name: One of `TRACKERS`; None for none.
        folder: The run's.

    Raises:
        ConfigError: An unknown tracker, or one whose package is not installed.
    """
    if name is None:
        yield NoTracker()
        return
    if name not in TRACKERS:
        raise ConfigError(f"train: tracker must be one of {', '.join(TRACKERS)}, got {name!r}")
    try:
        if name == "tensorboard":
            board = TensorBoard(folder)
        else:
            hosted = Hosted(__import__(name), folder, config)
    except ImportError as error:
        raise ConfigError(f"tracker {name} is not installed", hint=f"pip install {name}") from error
    try:
        yield board if name == "tensorboard" else hosted
    finally:
        board.writer.close() if name == "tensorboard" else hosted.module.finish()
