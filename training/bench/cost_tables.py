"""The tables of a measurement of cost, from one run of `efficiency.json`.

Parts that failed or were left out say so in a note; what the parts hold beyond these tables is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from training.bench.tables import Table, percent

Figures = Mapping[str, Any]
MIB_A_GB = 1000**3 / 2**20


def cost_tables(name: str, run: Figures) -> Iterator[Table]:
    """Yield what was judged, then the tables of compiling, of questions and of generation, where they were measured."""
    yield targets_table(name, run)
    parts = run.get("parts", {})
    if rows := [*_compile_rows(parts), *_paper_rows(run.get("paper", {}))]:
        headers = ["document", "", "n", "mean, s", "p50, s", "p95, s", "memory added, MiB"]
        yield Table(title=f"{name}: compiling a document", headers=headers, rows=rows)
    if banks := parts.get("questions", {}).get("banks"):
        headers = ["atoms", "routing p50, ms", "routing p95, ms", "question p50, s", "memory added, MiB", "words"]
        yield Table(title=f"{name}: questions to a growing bank", headers=headers, rows=[_bank_row(b) for b in banks])
    if kinds := parts.get("generation", {}).get("kinds"):
        yield _generation(name, parts["generation"], kinds)


def targets_table(name: str, run: Figures) -> Table:
    """Return what a measurement is judged by: the value, and the limit that was set for one H100."""
    rows = [
        [
            row["name"],
            _figure(row["value"]),
            _figure(row["limit"]),
            row["unit"],
            _met(row["passed"]),
            row.get("note", ""),
        ]
        for row in run["targets"]
    ]
    headers = ["figure", "measured", "limit", "unit", "within", "note"]
    return Table(title=f"Efficiency, {name}", headers=headers, rows=rows, notes=list(_notes(run)))


def _notes(run: Figures) -> Iterator[str]:
    machine = run.get("machine", {})
    if machine:
        versions = ", ".join(f"{package} {number}" for package, number in machine.get("versions", {}).items())
        yield f"on {machine['device']}, {machine['threads']} threads, {run['dtype']}, {run['memory']}; {versions}"
        yield f"memory is {run['memory_measure']}"
    for part, found in run.get("parts", {}).items():
        if why := found.get("failed") or found.get("left_out"):
            yield f"{part}: {why}"
    if store := run.get("parts", {}).get("store", {}).get("compact"):
        yield f"an atom takes {store['bytes_an_atom']:,.0f} bytes in the bank"


def _compile_rows(parts: Figures) -> Iterator[list[str]]:
    for group in ("benchmark", "invented"):
        if ours := parts.get("compile", {}).get(group):
            yield [group, "doc2atom", *_seconds(ours)]
            yield from _first_row(group, "doc2atom", ours)
            for part, found in ours.get("parts", {}).items():
                yield [group, f"of which {part}", *_seconds(found)]
        for mode, found in parts.get("d2l", {}).get(group, {}).items():
            if isinstance(found, Mapping) and "mean_ms" in found:
                yield [group, f"Doc-to-LoRA, {mode}", *_seconds(found)]
                yield from _first_row(group, f"Doc-to-LoRA, {mode}", found)


def _first_row(group: str, label: str, found: Figures) -> Iterator[list[str]]:
    """Yield the times of documents that the process has not seen yet: a GPU's libraries plan for every new shape."""
    if "first" in found:
        yield [group, f"{label}, for the first time", *_seconds(found["first"])]


def _paper_rows(paper: Figures) -> Iterator[list[str]]:
    for system, label in (("doc2atom", "doc2atom"), ("d2l", "Doc-to-LoRA")):
        if f"{system}_s" in paper:
            added = f"{paper[f'{system}_gb'] * MIB_A_GB:,.0f}"
            yield ["paper, one A100", label, "", f"{paper[f'{system}_s']:.2f}", "", "", added]


def _seconds(found: Figures) -> list[str]:
    times = [f"{found[key] / 1e3:.4f}" if key in found else "" for key in ("mean_ms", "p50_ms", "p95_ms")]
    return [str(found.get("n", "")), *times, _figure(found.get("added_mib"))]


def _bank_row(bank: Figures) -> list[str]:
    routing, question = bank["routing"], bank.get("question", {})
    seconds = f"{question['p50_ms'] / 1e3:.4g}" if "p50_ms" in question else ""
    times = [_figure(routing["p50_ms"]), _figure(routing["p95_ms"])]
    return [f"{bank['num_atoms']:,}", *times, seconds, _figure(question.get("added_mib")), bank.get("words", "")]


def _generation(name: str, part: Figures, kinds: Figures) -> Table:
    overhead = part.get("overhead_of", {})
    rows = [
        [kind, _figure(found["tokens_per_s"]), _figure(found["tokens_per_s_whole"]), percent(overhead.get(kind))]
        for kind, found in kinds.items()
    ]
    headers = ["in the model", "tokens/s after the first", "tokens/s of the answer", "time added, %"]
    notes = [f"{part['new_tokens']} tokens an answer, K = {part['top_k']}"]
    if "overhead_quartiles" in part:
        low, high = (percent(share) for share in part["overhead_quartiles"])
        notes.append(f"the middle half of the turns lies between {low} and {high} % of time added")
    return Table(title=f"{name}: generation", headers=headers, rows=rows, notes=notes)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _met(passed: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[passed]
