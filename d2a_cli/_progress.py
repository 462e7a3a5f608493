"""Progress of an ingest on stderr: one bar on a terminal, one line a document elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from d2a_cli import _output

if TYPE_CHECKING:
    from rich.progress import Progress

    from models.results import IngestProgress

OnProgress = Callable[["IngestProgress"], None]


@contextlib.contextmanager
def ingest_progress() -> Iterator[OnProgress]:
    """Yield the callback for `DocumentMemory.ingest`."""
    if not _output.is_terminal(sys.stderr):
        yield _plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _bar(bar)


def _plain() -> OnProgress:
    begun: set[int] = set()

    def show(progress: IngestProgress) -> None:
        if progress.source_index not in begun:
            begun.add(progress.source_index)
            _output.note(f"{_position(progress)} {progress.source}")

    return show


def _bar(bar: Progress) -> OnProgress:
    task = bar.add_task("starting", total=None)

    def show(progress: IngestProgress) -> None:
        is_compiling = progress.stage in ("compile", "store")
        done, total = (progress.atoms, progress.num_atoms) if is_compiling else (progress.pages, progress.num_pages)
        bar.update(task, description=describe(progress), completed=done, total=total)

    return show


def describe(progress: IngestProgress) -> str:
    """Return `[2/5] paper.pdf  compile  12/41 pages  30/140 atoms`."""
    name = _output.sanitize(progress.source, one_line=True).replace("\\", "/").rpartition("/")[2][-40:]
    counts = f"{_count(progress.pages, progress.num_pages)} pages  {_count(progress.atoms, progress.num_atoms)} atoms"
    return f"{_position(progress)} {name}  {progress.stage}  {counts}"


def _position(progress: IngestProgress) -> str:
    return f"[{progress.source_index + 1}/{progress.num_sources}]"


def _count(done: int, total: int | None) -> str:
    return str(done) if total is None else f"{done}/{total}"
