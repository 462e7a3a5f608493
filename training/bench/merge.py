"""One run from several that measured other suites or systems of the same memory, and its report.

    python -m training.bench.merge runs/all runs/squad runs/drop runs/longbench --page docs/results/bench_tables.md

Several processes make a large table side by side, each in a folder of its own; here their rows come together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.errors import D2AError
from training.bench.header import write_header
from training.bench.report import REPORT, write_report
from training.bench.results import EFFICIENCY, ROWS, Results, read_results
from training.bench.samples import REFUSAL_SUITES, Row, is_refusal_suite
from training.bench.suites import SUITES
from training.bench.systems import SYSTEMS

# What must be equal for rows to stand in one table; of the rest, what differs is left out of the header.
SAME = ("model", "base", "protocol", "bank", "k", "seed")
# Of the memory, which only a run of systems that it takes no part in may have another of.
OF_MEMORY = ("checkpoint", "recipe", "threshold")
WITHOUT_MEMORY = {"no-context", "base+ctx", "retrieval-bm25"}


def merge_runs(folders: Sequence[Path], out: Path) -> Path:
    """Write the rows and the header of runs into one folder, and the costs of the first run that has some.

    Returns:
        `out`.

    Raises:
        D2AError: A folder holds no run, two were made under other conditions, or two hold the same rows.
    """
    runs = [read_results(folder) for folder in folders]
    rows: dict[tuple[str, str], Sequence[Row]] = {}
    for run in runs:
        if twice := rows.keys() & run.rows.keys():
            raise D2AError(
                f"{run.folder} holds rows of {' '.join(min(twice))}, which another run has",
                hint="Leave one of them out",
            )
        rows |= run.rows
    header = _joined([run for run in runs if run.header])
    out.mkdir(parents=True, exist_ok=True)
    keys = [(suite, system) for suite in header.get("suites", {}) for system in header["systems"]]
    with (out / ROWS).open("w", encoding="utf-8", errors="replace") as file:
        for key in keys:
            file.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows.get(key, ()))
    costs = next((run.efficiency for run in runs if run.efficiency), None)
    if costs is not None:
        (out / EFFICIENCY).write_text(json.dumps(costs, indent=2) + "\n", "utf-8")
    if header:
        write_header(out, header)
    return out


def _joined(runs: Sequence[Results]) -> dict[str, Any]:
    """Return one header for all runs: suites, systems and seconds of each, and what they have in common."""
    if not runs:
        return {}
    first = next((run for run in runs if not _is_free(run)), runs[0])
    for run in runs:
        for name in SAME if _is_free(run) else (*SAME, *OF_MEMORY):
            if run.header.get(name) != first.header.get(name):
                raise D2AError(
                    f"{run.folder} was measured with {name} {run.header.get(name)}, {first.folder} with "
                    f"{first.header.get(name)}",
                    hint="Merge runs of one memory under one protocol",
                )
    headers = [run.header for run in runs]
    _check_samples(runs)
    common = {name: value for name, value in first.header.items() if all(h.get(name) == value for h in headers)}
    return {
        **common,
        **{name: first.header[name] for name in OF_MEMORY if name in first.header},
        "command": "\n".join(header["command"] for header in headers),
        "suites": _ordered({name: facts for header in headers for name, facts in _suites(header, headers)}, SUITES),
        "systems": _ordered(_systems(headers), SYSTEMS),
        "baselines": _baselines(runs),
        "seconds": _nested([header.get("seconds", {}) for header in headers]),
    }


def _baselines(runs: Sequence[Results]) -> dict[str, str]:
    """Return the trained checkpoints of all runs; raise D2AError where two have another one of a system."""
    found: dict[str, str] = {}
    for run in runs:
        for name, path in run.header.get("baselines", {}).items():
            if found.setdefault(name, path) != path:
                raise D2AError(
                    f"{run.folder} was measured with {name} of {path}, another run with {found[name]}",
                    hint="Merge runs of one checkpoint a system",
                )
    return found


def _check_samples(runs: Sequence[Results]) -> None:
    """Raise D2AError where runs asked other samples of one suite, as with another limit: their means do not compare."""
    first: dict[str, Results] = {}
    for run in runs:
        for suite in run.header["suites"]:
            other = first.setdefault(suite, run)
            if run.suite_facts(suite).get("samples") != other.suite_facts(suite).get("samples"):
                raise D2AError(
                    f"{run.folder} was asked other samples of {suite} than {other.folder}",
                    hint="Merge runs of one --limit",
                )


def _is_free(run: Results) -> bool:
    """Return whether no row depends on the memory, so that those of another checkpoint's run serve as well."""
    return {system for _, system in run.rows} <= WITHOUT_MEMORY


def _ordered(found: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    """Return the same in the order of a list, refusal suites behind the others, and what the list lacks at the end."""
    place = {name: number for number, name in enumerate(order)}

    def key(name: str) -> tuple[bool, int]:
        return is_refusal_suite(name), place.get(name.removeprefix(f"{REFUSAL_SUITES}/"), len(place))

    return {name: found[name] for name in sorted(found, key=key)}


def _suites(header: Mapping[str, Any], headers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the suites of a header, each with the systems that any run asked it."""
    for suite, facts in header["suites"].items():
        of_suite = [name for h in headers if suite in h["suites"] for name in _able(h)]
        yield suite, {**facts, "systems": list(dict.fromkeys(of_suite))}


def _able(header: Mapping[str, Any]) -> list[str]:
    return [name for name, facts in header["systems"].items() if facts["status"] == "ok"]


def _systems(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the headers say of each system; one that ran anywhere is there."""
    found: dict[str, Any] = {}
    for name, facts in ((name, facts) for header in headers for name, facts in header["systems"].items()):
        before = found.get(name, {"status": "unavailable"})
        if facts["status"] == "ok" and before["status"] == "ok":
            facts = {"status": "ok", "domain": {**before["domain"], **facts["domain"]}}
        found[name] = before if facts["status"] != "ok" and name in found else facts
    return found


def _nested(parts: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for suite, of_suite in ((suite, of_suite) for part in parts for suite, of_suite in part.items()):
        found.setdefault(suite, {}).update(of_suite)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Merge from a shell and write the report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.bench.merge", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the run to write")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, each the --out of d2a bench")
    parser.add_argument("--page", type=Path, help="Markdown file that gets the tables, without the pictures")
    options = parser.parse_args(arguments)
    try:
        write_report(merge_runs(options.runs, options.out))
    except D2AError as error:
        print(f"{error.message}. {error.hint}" if error.hint else error.message, file=sys.stderr)
        return 1
    if options.page is not None:
        lines = (options.out / REPORT).read_text("utf-8").splitlines()
        kept = "\n".join(line for line in lines if not line.startswith("!["))
        options.page.write_text(kept.rstrip("\n") + "\n", "utf-8")
    print(options.out / REPORT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
