"""A benchmark on the terminal: its progress on stderr, its figures on stdout."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2a_cli import _output
from d2a_cli._dashboard import OnEvent, event_line

if TYPE_CHECKING:
    from training.bench.tables import Table

# A log that nobody watches gets a line of rows in so many seconds.
LINE_EVERY_S = 15.0


@contextlib.contextmanager
def bench_progress() -> Iterator[OnEvent]:
    """Yield the callback for the events of a run: a bar on a terminal, a line now and then elsewhere."""
    if not _output.is_terminal(sys.stderr):
        yield _plain(time.monotonic)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("loading", total=None)

        def show(event: Mapping[str, Any]) -> None:
            if event["event"] == "system" and event["status"] == "started":
                bar.reset(task, description=describe(event), total=None)  # the time left is one system's
            else:
                bar.update(task, description=describe(event), completed=event.get("done", 0), total=event.get("total"))

        yield show


def _plain(clock: Callable[[], float]) -> OnEvent:
    last = clock()

    def show(event: Mapping[str, Any]) -> None:
        nonlocal last
        if event["event"] == "rows" and event["done"] < event["total"] and clock() - last < LINE_EVERY_S:
            return
        last = clock()
        _output.note(describe(event))

    return show


def describe(event: Mapping[str, Any]) -> str:
    """Return `squad doc2atom 12/100` and the like; an event that it does not know with its fields."""
    match event["event"]:
        case "suite":
            text = f"{event['suite']}: {event['total']:,} questions, {len(event['systems'])} systems"
        case "system" if event["status"] == "started":
            text = f"{event['suite']} {event['system']}"
        case "system":
            text = f"{event['system']} {event['status']}"
        case "rows":
            text = f"{event['suite']} {event['system']} {event['done']:,}/{event['total']:,}"
        case _:
            text = event_line(event)
    return _output.sanitize(text, one_line=True)


def show_tables(tables: Sequence[Table]) -> None:
    """Write tables to stdout, each under its title."""
    for index, table in enumerate(tables):
        if index:
            _output.line()
        _output.line(table.title)
        for note in table.notes:
            _output.note(note)
        _output.table(table.headers, table.rows)


def show_faults(summary: Mapping[str, Any]) -> None:
    """Say on stderr what the figures leave out."""
    for system, why in summary["unavailable"].items():
        _output.note(f"{system} could not run: {why}")
    if summary["num_missing"]:
        _output.note(f"unfinished: {summary['num_missing']} row(s) are still to come; the same command goes on")
    if summary["num_errors"]:
        _output.note(f"warning: {summary['num_errors']} row(s) failed and score 0; predictions.jsonl says why")
    if note := summary.get("note"):
        _output.note(note)
    _output.note(f"report: {Path(summary['folder']) / 'report.md'}")
