"""`d2a train`: encoder head, compiler and router of a preset, or one of the systems it is measured against."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from d2a_cli import _cost, _options, _output, _settings
from d2a_cli._dashboard import OnEvent, event_line, training_progress


def train(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of training records (JSONL, plain, gzipped or in shards), or of raw sets to make them from; "
            "default: the paper's five sets, from the hub."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Training config: a shipped one or the path of a TOML; default: the model's.")
    ] = None,
    recipe: Annotated[
        Literal["paper", "d2a"] | None, typer.Option(help="Published recipe or ours; default: the config's.")
    ] = None,
    system: Annotated[
        Literal["doc2atom", "d2l", "reader", "blind"],
        typer.Option(help="The memory, or what it is measured against, in the same loop."),
    ] = "doc2atom",
    documents: Annotated[
        Literal["raw", "atoms"] | None, typer.Option(help="What --system d2l reads; default: raw.")
    ] = None,
    prompt: Annotated[
        Literal["atoms", "document"] | None, typer.Option(help="What --system reader reads; default: atoms.")
    ] = None,
    annotator: Annotated[
        Literal["offline", "llm"],
        typer.Option(help="Who labels raw sets: the answers that they come with, or the configured endpoint."),
    ] = "offline",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/CONFIG.")] = None,
    resume: Annotated[
        str, typer.Option(metavar="auto|never|PATH", help="Go on from the newest training state of --out, or another.")
    ] = "auto",
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after this many steps.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    tracker: Annotated[
        Literal["tensorboard", "wandb", "trackio"] | None, typer.Option(help="Also log to this tracker.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check configuration and data, estimate memory and time, train nothing.")
    ] = False,
    register: Annotated[bool, typer.Option(help="Let ingest and ask use the finished checkpoint from now on.")] = True,
    yes: _options.Yes = False,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object an event to stdout.")] = False,
    model: _options.Model = None,
    base: Annotated[Path | None, typer.Option("--base", help="Local folder of the base model.")] = None,
    device: _options.DeviceChoice = None,
) -> None:
    """Train the memory of a base model.

    Prints the folder of the checkpoint. On several GPUs: torchrun --nproc_per_node 8 -m d2a_cli.app train …
    """
    from training.config import config_for
    from training.corpus import Annotation
    from training.run import TrainRequest
    from training.run import train as run_training

    backend = "openai" if annotator == "llm" else "rules"
    settings = _settings.load(
        {"preset": model, "device": device, "base_path": base, "atomizer.backend": backend}
    ).memory_config()
    name = config or config_for(settings.preset)
    request = TrainRequest(
        config=name,
        data=data,
        out=out or Path("runs") / Path(config or settings.preset).stem,
        model=model if config is not None else settings.preset,
        recipe=recipe,
        system=system,
        reads={"d2l": documents, "reader": prompt}.get(system),
        device=settings.device,
        max_steps=max_steps,
        max_minutes=max_minutes,
        seed=seed,
        base_path=settings.base_path,
        resume=resume,
        tracker=tracker,
        register=register,
        annotation=Annotation(
            annotator=annotator,
            config=settings.atomizer,
            approve=lambda estimate: _cost.confirm(
                estimate, "annotating", yes=yes, hint="Add --yes, or use --annotator offline"
            ),
        ),
    )
    if annotator == "llm" and _speaks():
        from training.sources import ensure_records

        # Before the dashboard: a large job asks for consent.
        ensure_records(
            data,
            request.resolved(),
            lambda event: _output.note(event_line(event)),
            out=request.out,
            annotation=request.annotation,
        )
    if dry_run:
        _show_estimate(request, json)
        return
    with _progress(json) as on_event:
        folder = run_training(request, on_event=on_event)
    if not json and _speaks():
        _output.line(folder)


def _speaks() -> bool:
    """Return whether this process talks to the user: of several under a launcher the first one."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _progress(json: bool) -> Iterator[OnEvent]:
    if not _speaks():
        yield lambda event: None
        return
    if json:
        yield lambda event: _output.emit_json(event, indent=None)
        return
    with training_progress() as on_event:
        yield on_event


def _show_estimate(request: Any, json: bool) -> None:
    from training.dry_run import dry_run

    found = dry_run(request, on_event=lambda event: _output.note(event_line(event)))
    if json:
        _output.emit_json(found)
        return
    for line in estimate_lines(found):
        _output.line(line)


def estimate_lines(found: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return `memory.features: 1.2 GiB` and the like; nested tables by dotted names, bytes and seconds readable."""
    lines: list[str] = []
    for key, value in found.items():
        if isinstance(value, Mapping):
            lines += estimate_lines(value, f"{prefix}{key}.")
        elif key.endswith("_bytes"):
            lines.append(f"{prefix}{key.removesuffix('_bytes')}: {value / 2**30:.2f} GiB")
        elif isinstance(value, float):
            lines.append(f"{prefix}{key}: {value:.4g}")
        else:
            lines.append(f"{prefix}{key}: {value}")
    return lines
