"""Pictures of a run: F1 by suite, the risk-coverage curve and the operating curve of refusal.

Needs matplotlib, which is optional: without it nothing is drawn, and one line says how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.bench import refusal
from training.bench.results import Results
from training.bench.samples import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Paint = Callable[["Axes"], None]
INSTALL = "No pictures: matplotlib is not installed. pip install 'd2a[report]'"
COLUMNS = 3
PANEL_INCHES = (4.2, 3.2)
DPI = 110


def draw(results: Results, summary: Mapping[str, Any]) -> tuple[list[str], str]:
    """Write the pictures that the run has figures for into its folder.

    Returns:
        Names of the files, and a note where they could not be drawn.
    """
    try:
        from matplotlib import colormaps
    except ImportError:
        return [], INSTALL
    pairs = colormaps["tab20"].colors  # strong and pale of each hue in turn
    colours = dict(zip(results.systems, cycle((*pairs[::2], *pairs[1::2])), strict=False))
    bank = results.header.get("bank")
    asked = {
        suite: {system: refusal.certain(results.rows[suite, system], bank) for system in facts["systems"]}
        for suite, facts in summary["refusal"].items()
    }
    asked = {suite: rows for suite, rows in asked.items() if any(map(refusal.unanswerable_kinds, rows.values()))}
    panels = {
        "f1": {suite: _f1_panel(facts, colours) for suite, facts in summary["suites"].items()},
        "risk_coverage": {suite: _risk_panel(rows, colours) for suite, rows in asked.items()},
        "refusal": {suite: _operating_panel(rows, colours) for suite, rows in asked.items()},
    }
    return [_write(results.folder / f"{name}.png", found) for name, found in panels.items() if found], ""


def _write(path: Path, panels: Mapping[str, Paint]) -> str:
    """Write one picture, a panel a suite, and return its file's name."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows), layout="constrained")
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for place, (suite, paint) in zip(places, panels.items(), strict=False):
        paint(place)
        place.set_title(suite, fontsize="medium")
        place.grid(alpha=0.3)
    for unused in places[len(panels) :]:
        unused.set_visible(False)
    figure.savefig(path, dpi=DPI)
    return path.name


def _f1_panel(suite: Mapping[str, Any], colours: Mapping[str, Any]) -> Paint:
    systems: Mapping[str, Any] = suite["systems"]

    def paint(axes: Axes) -> None:
        means = [100 * facts["f1"] for facts in systems.values()]
        ends = [[100 * end for end in facts["f1_interval"]] for facts in systems.values()]
        # The interval of a resampled mean may miss the mean by a hair; the length of a bar cannot be negative.
        below = [max(0.0, mean - low) for mean, (low, _) in zip(means, ends, strict=True)]
        above = [max(0.0, high - mean) for mean, (_, high) in zip(means, ends, strict=True)]
        axes.barh(list(systems), means, xerr=[below, above], color=[colours[name] for name in systems], capsize=3)
        axes.invert_yaxis()
        axes.set(xlabel=f"F1, %, 95 % interval ({suite['label']})", xlim=(0, 100))
        axes.tick_params(axis="y", labelsize="small")

    return paint


def _risk_panel(rows: Mapping[str, Sequence[Row]], colours: Mapping[str, Any]) -> Paint:
    def paint(axes: Axes) -> None:
        for system, found in rows.items():
            if curve := refusal.risk_coverage(found):
                axes.plot(*zip(*curve, strict=True), label=system, color=colours[system])
        _dress(axes, "share answered", "risk, 1 - F1")

    return paint


def _operating_panel(rows: Mapping[str, Sequence[Row]], colours: Mapping[str, Any]) -> Paint:
    """Return a panel with the gate's curve over all thresholds, and a dot where each system stands as it is."""

    def paint(axes: Axes) -> None:
        for system, found in rows.items():
            if curve := refusal.operating_curve(found):
                axes.plot(*zip(*curve, strict=True), color=colours[system])
            if point := refusal.operating_point(found):
                axes.plot(*point, marker="o", linestyle="none", label=system, color=colours[system])
        _dress(axes, "unanswerable questions refused", "F1 of answerable questions")

    return paint


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
