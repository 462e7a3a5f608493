"""`d2a ingest`: documents into the memory."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from d2a_cli import _cost, _errors, _options, _output, _progress
from models.config import Store
from models.results import IngestItem, IngestReport

if TYPE_CHECKING:
    from models.memory import DocumentMemory


def ingest(
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files, folders, globs, or - for standard input.", metavar="SOURCES", show_default=False),
    ] = None,
    password: Annotated[str | None, typer.Option(help="Password of encrypted documents.")] = None,
    atomizer: Annotated[
        Literal["rules", "openai"] | None,
        typer.Option(help="rules works offline; openai asks the configured endpoint."),
    ] = None,
    store: Annotated[
        Store | None,
        typer.Option(help="How micro-LoRAs are kept: as latents, or materialised. No effect where atoms share one."),
    ] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Also ingest what is unchanged; without SOURCES, recompile the stored atoms under this checkpoint.",
        ),
    ] = False,
    yes: _options.Yes = False,
    json: _options.Json = False,
    bank: _options.Bank = None,
    model: _options.Model = None,
    checkpoint: _options.Checkpoint = None,
    device: _options.DeviceChoice = None,
    attn: _options.AttentionChoice = None,
) -> None:
    """Compile documents into the memory.

    Reads them, takes them apart into atoms and compiles each atom into parameters. Unchanged documents
    are skipped. Ends in exit code 1 if any document failed.
    """
    if not sources and not rebuild:
        raise _errors.UsageError("there is nothing to ingest", hint="Name a file or a folder: d2a ingest paper.pdf")
    memory = _options.open_memory(
        bank=bank,
        preset=model,
        checkpoint=checkpoint,
        device=device,
        attention=attn,
        store=store,
        **{"atomizer.backend": atomizer},
    )
    try:
        report = _recompile(memory) if not sources else _ingest(memory, sources, password, rebuild=rebuild, yes=yes)
    except KeyboardInterrupt:
        _output.note("stopped; what was finished is stored. Run the same command again to go on")
        raise
    _show(report, json=json)
    if report.failed:
        raise typer.Exit(_errors.EXIT_ERROR)


def _recompile(memory: DocumentMemory) -> IngestReport:
    with _progress.ingest_progress() as on_progress:
        return memory.rebuild(on_progress=on_progress)


def _ingest(
    memory: DocumentMemory, sources: list[str], password: str | None, *, rebuild: bool, yes: bool
) -> IngestReport:
    stdin = _read_stdin() if "-" in sources else None
    estimate = memory.estimate(sources, password=password, stdin=stdin)
    _cost.confirm(estimate, "the atomizer", yes=yes, hint="Add --yes, or use --atomizer rules")
    with _progress.ingest_progress() as on_progress:
        return memory.ingest(sources, password=password, stdin=stdin, on_progress=on_progress, rebuild=rebuild)


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise _errors.UsageError("standard input is closed", hint="Pipe a document in: d2a ingest - < notes.txt")
    if _output.is_terminal(sys.stdin):
        _output.note("reading a document from the terminal; end it with Ctrl-D")
    return sys.stdin.buffer.read()


def _show(report: IngestReport, *, json: bool) -> None:
    if json:
        _output.emit_json({"items": [asdict(item) for item in report.items]})
    for item in report.items:
        if item.outcome == "failed":
            _output.note(f"failed: {_named(item)}")
            continue
        if not json:
            _output.line(_item_line(item))
        if item.message and item.outcome in ("partial", "duplicate"):
            _output.note(f"{item.outcome}: {_named(item)}")
        if item.document and item.outcome != "unchanged":
            for warning in item.document.warnings:
                _output.note(f"warning: {item.source}: {warning}")
    stored = [i.document for i in report.items if i.document and i.outcome in ("added", "replaced", "partial")]
    num_atoms = sum(document.num_atoms for document in stored)
    counts = {o: sum(i.outcome == o for i in report.items) for o in dict.fromkeys(i.outcome for i in report.items)}
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in counts.items()) or "no documents"
    _output.note(f"{outcomes}; {_count(num_atoms, 'atom')}; {sum(i.seconds for i in report.items):.1f} s")


def _named(item: IngestItem) -> str:
    """The message, with the source in front where it does not name it already."""
    return item.message if item.message.startswith(item.source) else f"{item.source}: {item.message}"


def _item_line(item: IngestItem) -> str:
    document = item.document
    if document is None:
        return f"{item.outcome}\t-\t{_output.sanitize(item.source, one_line=True)}"
    title = _output.sanitize(document.title, one_line=True)
    pages, atoms = _count(document.num_pages, "page"), _count(document.num_atoms, "atom")
    return f"{item.outcome}\t{document.document_id}\t{title}\t{pages}\t{atoms}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
