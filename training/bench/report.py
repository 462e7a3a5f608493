"""The report of a run, `report.md`, `summary.json` and pictures, all from its header and its rows.

What a table leaves out the page says: systems that could not run, rows that failed, sets that are not whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from training.bench import short_tables
from training.bench.charts import draw
from training.bench.compare import compare_systems
from training.bench.cost_tables import cost_tables, targets_table
from training.bench.results import Results, read_results
from training.bench.samples import is_refusal_suite
from training.bench.summary import summarize
from training.bench.tables import (
    Table,
    auroc_table,
    comparison_table,
    overall_table,
    refusal_table,
    routing_table,
    scores_table,
    types_table,
    unavailable_table,
)

REPORT, SUMMARY = "report.md", "summary.json"
# The paper's comparison of reading the document with and without its memory.
IN_CONTEXT = ("base+ctx", "doc2atom+ctx")
# Parts of the header that tables show.
TABULATED = ("suites", "systems", "seconds")
READING = """\
Scores are percentages. F1, ROUGE-L and EM are the same for every suite, but that F1 of Chinese counts the words of the
official metric; the official column is the set's own metric.
Intervals are 95 % percentile bootstrap over samples (2,000 draws, seed 0), which takes samples as independent although
several may ask of one document. A row that failed scores 0 and stays in the mean. In-domain means that a training
split of the set's family is in the checkpoint's data manifest; zero-shot, that none is; unknown, that there is no such
manifest."""


def write_report(folder: Path) -> dict[str, Any]:
    """Write the report of a run into its folder.

    Returns:
        The summary, with `folder`, `pictures` and a `note` where they could not be drawn.

    Raises:
        D2AError: The folder holds no run, or one that cannot be read.
    """
    results = read_results(folder)
    summary = summarize(results)
    pictures, note = draw(results, summary)
    (folder / SUMMARY).write_text(json.dumps(summary, ensure_ascii=False, indent=2) + "\n", "utf-8")
    page = [*_head(summary), *_body(results, summary), *([note, ""] if note else [])]
    page += [f"![{name}]({name})\n" for name in pictures]
    (folder / REPORT).write_text("\n".join(page).rstrip("\n") + "\n", "utf-8")
    return {**summary, "folder": str(folder), "pictures": pictures, **({"note": note} if note else {})}


def tables(results: Results, summary: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of a run in the order of reading."""
    for name, suite in summary["suites"].items():
        yield scores_table(name, suite, results.header.get("systems", {}))
        for more in (types_table(name, suite), routing_table(name, suite)):
            if more:
                yield more
    if summary["overall"]:
        yield overall_table(summary["overall"])
    if in_context := _in_context(results):
        yield in_context
    for name, found in summary["refusal"].items():
        yield refusal_table(name, found)
        if areas := auroc_table(name, found):
            yield areas
    for name, run in summary["efficiency"].get("runs", {}).items():
        yield from cost_tables(name, run)
    if summary["unavailable"]:
        yield unavailable_table(summary["unavailable"])


def terminal_tables(folder: Path, summary: Mapping[str, Any]) -> list[Table]:
    """Return what of a run a terminal has room for."""
    shown = {"suites": short_tables.scores, "overall": short_tables.overall, "refusal": short_tables.refusal}
    found = [make(summary[part]) for part, make in shown.items() if summary[part]]
    found += [in_context] if (in_context := _in_context(read_results(folder))) else []
    return found + [targets_table(name, run) for name, run in summary["efficiency"].get("runs", {}).items()]


def _in_context(results: Results) -> Table | None:
    """Return the paper's comparison of the document with and without its memory, where both were measured."""
    if not set(IN_CONTEXT) <= set(results.systems):
        return None
    before, after = IN_CONTEXT
    found = [row for row in compare_systems(results, before, after) if not is_refusal_suite(row.suite)]
    title = "The memory beside the document, F1"
    return comparison_table(title, found, a=before, b=after) if found else None


def markdown(table: Table) -> list[str]:
    """Return the lines of a table as Markdown."""
    lines = [f"## {table.title}", "", *(f"{note[0].upper()}{note[1:]}.\n" for note in table.notes)]
    rows = [table.headers, ["---"] * len(table.headers), *table.rows]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows), ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def facts(header: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the plain values of a header under dotted names."""
    for key, value in header.items():
        if isinstance(value, Mapping):
            yield from facts(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _head(summary: Mapping[str, Any]) -> list[str]:
    header = {key: value for key, value in summary["header"].items() if key not in TABULATED}
    command = header.pop("command", "d2a bench efficiency")
    lines = ["# Benchmark", "", *(f"    {line}" for line in command.splitlines()), ""]
    lines += [f"- {name}: {_cell(text)}" for name, text in facts(header)]
    if seconds := summary["header"].get("seconds"):
        lines.append(f"- answering, seconds: {sum(s for of_suite in seconds.values() for s in of_suite.values()):,.0f}")
    if summary["num_missing"]:
        lines.append(f"- **unfinished**: {summary['num_missing']:,} rows are still to come; the same command goes on")
    if summary["num_errors"]:
        lines.append(f"- **{summary['num_errors']} row(s) failed** and score 0; `predictions.jsonl` says why")
    return [*lines, "", READING, ""]


def _body(results: Results, summary: Mapping[str, Any]) -> Iterator[str]:
    for table in tables(results, summary):
        yield from markdown(table)
