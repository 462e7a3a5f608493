"""A training run on stderr: a live table on a terminal, one line an event elsewhere.

Shows each loss, stage and K, routing top-1, answerability, tokens per second and the time left. Knows events by
their names alone; what they mean is `training`'s business.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from d2a_cli import _output

if TYPE_CHECKING:
    from rich.console import RenderableType

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]
# Fields of a step that have a place of their own; all others are losses.
_PLACED = frozenset(
    {"event", "step", "seconds", "epoch", "lr", "stage", "top_k", "top1", "tokens_per_s", "step_seconds", "eta_seconds"}
)
_BAR = 30
_EVALUATIONS = 4


@contextlib.contextmanager
def training_progress() -> Iterator[OnEvent]:
    """Yield the callback for the events of a run."""
    if not _output.is_terminal(sys.stderr):
        yield lambda event: _output.note(event_line(event))
        return
    from rich.console import Console
    from rich.live import Live

    board = Dashboard()
    console = Console(file=sys.stderr, markup=False, emoji=False, highlight=False)
    with Live(board.render(), console=console, refresh_per_second=4) as live:

        def show(event: Event) -> None:
            board.take(event)
            live.update(board.render())

        yield show


def event_line(event: Event) -> str:
    """Return `step 120: loss 2.31, routing 0.2114`: the event, its step, then its other plain fields."""
    name = " ".join(str(event[key]) for key in ("event", "step") if key in event)
    plain = {k: v for k, v in event.items() if k not in ("event", "step") and isinstance(v, str | int | float)}
    fields = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items()
    )
    return f"{name}: {fields}" if fields else name


class Dashboard:
    """The last of each kind of event, as tables."""

    def __init__(self) -> None:
        self.last: dict[str, Event] = {}
        self.before: Event = {}
        self.evaluations: list[Event] = []

    def take(self, event: Event) -> None:
        """Remember an event."""
        if event["event"] == "step":
            self.before = self.last.get("step", {})
        if event["event"] == "eval":
            self.evaluations = [*self.evaluations, event][-_EVALUATIONS:]
        self.last = {**self.last, event["event"]: event, "any": event}

    def render(self) -> RenderableType:
        """Return what the terminal shows."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        tables: list[RenderableType] = []
        if losses := self.losses():
            tables.append(_table(["loss", "now", "before"], losses))
        if self.evaluations:
            steps = [f"step {e['step']}" for e in self.evaluations]
            tables.append(_table(["held out", *steps], self.held_out()))
        beside = Table.grid(padding=(0, 4))  # one under the other they would not fit a small window
        if tables:
            beside.add_row(*tables)
        return Group(*(Text(line) for line in self.header()), beside)

    def header(self) -> list[str]:
        """Return the lines above the tables: what runs where, how far it is, and how fast."""
        start, step, latest = (self.last.get(name, {}) for name in ("start", "step", "any"))
        lines = []
        if start:
            lines.append(
                f"{_word(start, 'system')} on {_word(start, 'device')}, {start.get('processes', 1)} process(es), "
                f"{start.get('parameters', 0):,} parameters, {start.get('passages', 0):,} passages"
            )
        if step:
            seconds, left = step["seconds"], step["eta_seconds"]
            done = seconds / max(1e-9, seconds + left)
            filled = round(_BAR * done)
            lines.append(
                f"{'━' * filled}{'┄' * (_BAR - filled)} {done:4.0%}  {clock(seconds)} gone, {clock(left)} left"
            )
            lines.append(
                f"step {step['step']}  epoch {step['epoch']:.2f}  stage {step['stage']}  K {step['top_k']}  "
                f"lr {step['lr']:.2e}  {step['tokens_per_s']:,} tokens/s  {step['step_seconds']:.3f} s/step"
            )
            figures = {"routing top-1": step.get("top1"), "answerability AUROC": self._of_evaluation("auroc")}
            lines.append("  ".join(f"{k} {number(v)}" for k, v in figures.items() if v is not None))
        elif latest:
            lines.append(_output.sanitize(event_line(latest), one_line=True))
        return [line for line in lines if line]

    def losses(self) -> list[list[str]]:
        """Return a row for each loss: its name, its mean since the last line, and the one before."""
        step = self.last.get("step", {})
        names = [n for n, v in step.items() if n not in _PLACED and _is_number(v)]
        return [[name, number(step[name]), number(self.before.get(name))] for name in names]

    def held_out(self) -> list[list[str]]:
        """Return a row for each figure of the last evaluations."""
        names = [n for n, v in self.evaluations[-1].items() if n not in ("step", "seconds") and _is_number(v)]
        return [[name, *(number(e.get(name)) for e in self.evaluations)] for name in names]

    def _of_evaluation(self, name: str) -> Any:
        return self.evaluations[-1].get(name) if self.evaluations else None


def clock(seconds: float) -> str:
    """Return `1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def number(value: Any) -> str:
    """Return a number in few digits; nothing for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _word(event: Event, name: str) -> str:
    return _output.sanitize(event.get(name, ""), one_line=True)


def _table(headers: list[str] | tuple[str, ...], rows: list[list[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, header in enumerate(headers):
        grid.add_column(Text(header), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid
