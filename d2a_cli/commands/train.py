"""`d2a train`: encoder head, compiler and router of a preset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from d2a_cli import _options, _output, _settings


def train(
    data: Annotated[Path, typer.Option(help="Folder of training records, or of raw sets to make them from.")],
    name: Annotated[
        str | None,
        typer.Argument(
            help="Training config: a shipped one or the path of a TOML; default: the model's.", metavar="CONFIG"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/CONFIG.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    register: Annotated[bool, typer.Option(help="Let ingest and ask use the finished checkpoint from now on.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object an event to stdout.")] = False,
    model: _options.Model = None,
    device: _options.DeviceChoice = None,
) -> None:
    """Train the memory of a base model.

    Prints the folder of the checkpoint.
    """
    from training.run import TrainRequest
    from training.run import train as run_training

    settings = _settings.load({"preset": model, "device": device}).memory_config()
    name = name or settings.preset
    request = TrainRequest(
        config=name,
        data=data,
        out=out or Path("runs") / Path(name).stem,
        model=model,
        device=settings.device,
        max_steps=max_steps,
        max_minutes=max_minutes,
        seed=seed,
        base_path=settings.base_path,
        register=register,
    )
    folder = run_training(request, on_event=_write_event if json else _print_event)
    if not json:
        _output.line(folder)


def _write_event(event: dict[str, Any]) -> None:
    _output.emit_json(event, indent=None)


def _print_event(event: dict[str, Any]) -> None:
    _output.note(event_line(event))


def event_line(event: Mapping[str, Any]) -> str:
    """Return `step 120: loss 2.31, routing 0.2114`: the event, its step, then its other plain fields."""
    name = " ".join(str(event[key]) for key in ("event", "step") if key in event)
    plain = {k: v for k, v in event.items() if k not in ("event", "step") and isinstance(v, str | int | float)}
    fields = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items()
    )
    return f"{name}: {fields}" if fields else name
