"""`d2a train`: encoder head, compiler and router of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from d2a_cli import _options, _output, _settings


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A shipped training config such as smollm2, or the path of a TOML.", metavar="CONFIG"),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of training records.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/MODEL.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest state in the run's folder.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object an event to stdout.")] = False,
    model: _options.Model = None,
    device: _options.DeviceChoice = None,
) -> None:
    """Train the memory of a base model.

    Prints the folder of the checkpoint.
    """
    from training.run import TrainRequest
    from training.run import train as run_training

    config = _settings.load({"preset": model, "device": device}).memory_config()
    request = TrainRequest(
        config=recipe or config.preset,
        data=data,
        out=out or Path("runs") / Path(config.preset).stem,
        model=config.preset,
        device=config.device,
        max_steps=max_steps,
        max_minutes=max_minutes,
        seed=seed,
        resume=resume,
    )
    folder = run_training(request, on_event=_write_event if json else _print_event)
    if not json:
        _output.line(folder)


def _write_event(event: dict[str, Any]) -> None:
    _output.emit_json(event, indent=None)


def _print_event(event: dict[str, Any]) -> None:
    _output.note(event_line(event))


def event_line(event: Mapping[str, Any]) -> str:
    """Return `step 120: loss 2.31, routing 0.2114`: the event, its step, then every other field."""
    name = " ".join(str(event[key]) for key in ("event", "step") if key in event)
    fields = ", ".join(f"{key} {_short(value)}" for key, value in event.items() if key not in ("event", "step"))
    return f"{name}: {fields}" if fields else name


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name} {_short(inner)}" for name, inner in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
