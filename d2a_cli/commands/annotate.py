"""`d2a annotate`: question-answering sets into records to train on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from d2a_cli import _cost, _errors, _options, _output, _settings

if TYPE_CHECKING:
    from training.annotation.pipeline import AnnotationProgress, AnnotationSummary, OnProgress

# A log that nobody watches gets one line in so many contexts.
LINE_EVERY = 256


def annotate(
    dataset: Annotated[str, typer.Option(help="Name of the set: squad, hotpotqa, drop, qasper, ...")],
    out: Annotated[Path, typer.Option(help="Folder of the records, written as shards.")],
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A file of the set, its folder, or a folder of sets; default: the Hugging Face hub.",
            metavar="SOURCE",
            show_default=False,
        ),
    ] = None,
    split: Annotated[Literal["train", "dev"], typer.Option(help="Which split; of no matter for a file.")] = "train",
    annotator: Annotated[
        Literal["offline", "llm"],
        typer.Option(help="offline derives labels from the set's answers; llm asks the configured endpoint."),
    ] = "offline",
    atomizer: Annotated[
        Literal["rules", "openai"] | None,
        typer.Option(help="What makes the atoms; default: rules for offline, openai for llm."),
    ] = None,
    probes: Annotated[int, typer.Option(min=0, help="Irrelevant probes a context, of each kind.")] = 2,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first contexts only.")] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Contexts a shard.")] = 256,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on where an earlier run stopped, or start over.")
    ] = True,
    yes: _options.Yes = False,
    json: _options.Json = False,
) -> None:
    """Turn a question-answering set into training records.

    Takes each context apart into atoms, adds questions that it does not answer, and says which atoms are gold,
    supporting or distracting for each question. Prints the folder.
    """
    from training.annotation import build_annotator
    from training.annotation.pipeline import annotate_contexts, remaining
    from training.datasets import load

    backend = atomizer or ("openai" if annotator == "llm" else "rules")
    config = _settings.load({"atomizer.backend": backend}).memory_config().atomizer
    contexts = list(load(dataset, source, split))[:limit]
    if not contexts:
        raise _errors.UsageError(f"{source or dataset} holds no contexts", hint="Name another file or --split")
    worker = build_annotator(annotator, contexts, config=config, num_probes=probes)
    try:
        left = remaining(contexts, worker, out, shard_size=shard_size) if resume else contexts
        job = f"annotating {len(left)} contexts"
        _cost.confirm(worker.estimate(left), job, yes=yes, hint="Add --yes, or use --annotator offline")
        with _progress(len(contexts)) as on_progress:
            summary = annotate_contexts(
                contexts, worker, out, shard_size=shard_size, resume=resume, on_progress=on_progress
            )
    except KeyboardInterrupt:
        _output.note("stopped; finished shards and replies are kept. Run the same command again to go on")
        raise
    finally:
        worker.close()
    _show(summary, out, json=json)
    if not summary.num_records:
        raise typer.Exit(_errors.EXIT_ERROR)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[OnProgress]:
    """Yield the callback: a bar on a terminal, a line now and then elsewhere."""
    if not _output.is_terminal(sys.stderr):
        yield _plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("annotating", total=total)
        yield lambda progress: bar.update(task, description=_line(progress), completed=progress.done)


def _plain(progress: AnnotationProgress) -> None:
    if progress.done % LINE_EVERY == 0 or progress.done == progress.total:
        _output.note(_line(progress))


def _line(progress: AnnotationProgress) -> str:
    discarded = f", {progress.discarded} discarded" if progress.discarded else ""
    return f"{progress.done}/{progress.total} contexts{discarded}"


def _show(summary: AnnotationSummary, out: Path, *, json: bool) -> None:
    if json:
        _output.emit_json({"out": str(out), **asdict(summary)})
    else:
        _output.line(out)
    _output.note(
        f"{summary.num_records} records of {summary.num_contexts} contexts, {summary.num_discarded} discarded; "
        f"{summary.num_atoms} atoms; {summary.num_questions} questions, {summary.num_irrelevant} irrelevant, "
        f"{summary.num_warned} with warnings"
    )
