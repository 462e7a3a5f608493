"""The report of a run: its events as curves and a page of figures, in a folder of its own.

Curves need matplotlib, which is optional; without it the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]
# One picture each: its name, which events, which of their fields by prefix.
PICTURES = (
    ("losses", "step", ("lm", "distill", "route", "rerank", "null_slot", "contrastive", "composition", "lora_l1")),
    ("regularisers", "step", ("irrelevant", "protect", "sparse", "conflict", "confidence")),
    ("held_out", "eval", ("loss", "lm_", "correct", "shuffled")),
    ("routing", "eval", ("top", "auroc", "distinct")),
    ("schedule", "step", ("lr", "top_k", "stage")),
)
_INSTALL = "pip install 'd2a[report]'"


def write_report(run: Path) -> dict[str, Any]:
    """Write `report/` into a run's folder from its events.

    Returns:
        The folder, the pictures, and a note where they could not be drawn.
    """
    events = read_events(run / "events.jsonl")
    folder = run / "report"
    folder.mkdir(exist_ok=True)
    try:
        pictures, note = _draw(events, folder), ""
    except ImportError:
        pictures, note = [], f"No curves: matplotlib is not installed. {_INSTALL}"
    lines = ["# Training run", "", *_summary(events), "", *([note] if note else [])]
    lines += [f"![{name}]({name}.png)" for name in pictures]
    (folder / "report.md").write_text("\n".join(lines) + "\n", "utf-8")
    return {"folder": str(folder), "pictures": pictures, **({"note": note} if note else {})}


def read_events(path: Path) -> list[Event]:
    """Return a run's events; where it went on from an earlier state, what that state undid is left out."""
    events: list[Event] = []
    for line in path.read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "resume":
            events = [e for e in events if e.get("step", 0) <= event["step"]]
        events.append(event)
    return events


def series(events: Sequence[Event], kind: str, prefixes: Sequence[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Return steps and values of each field that begins with one of the prefixes, where it is there."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for event in (e for e in events if e["event"] == kind):
        for name, value in event.items():
            if type(value) in (int, float) and name.startswith(tuple(prefixes)):
                steps, values = found.setdefault(name, ([], []))
                steps.append(event["step"])
                values.append(value)
    return found


def _draw(events: Sequence[Event], folder: Path) -> list[str]:
    from matplotlib.figure import Figure

    drawn = []
    for name, kind, prefixes in PICTURES:
        curves = series(events, kind, prefixes)
        if not curves:
            continue
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for label, (steps, values) in curves.items():
            axes.plot(steps, values, marker="." if len(steps) < 30 else None, label=label)
        axes.set(xlabel="optimiser step", title=name.replace("_", " "))
        if name in ("losses", "regularisers", "schedule"):
            axes.set_yscale("symlog", linthresh=1e-3)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        figure.savefig(folder / f"{name}.png", dpi=110)
        drawn.append(name)
    return drawn


def _summary(events: Sequence[Event]) -> list[str]:
    """Return a table of the evaluations and what the run began with."""
    start = next((e for e in events if e["event"] == "start"), {})
    facts = [f"- {name}: {start[name]}" for name in start if name not in ("event", "spec")]
    evaluations = [e for e in events if e["event"] == "eval"]
    if not evaluations:
        return facts
    names = [n for n, v in evaluations[-1].items() if type(v) in (int, float)]
    rows = [[_shown(e.get(n)) for n in names] for e in evaluations]
    table = [f"| {' | '.join(r)} |" for r in (names, ["---"] * len(names), *rows)]
    return [*facts, "", *table]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value if value is not None else "")
