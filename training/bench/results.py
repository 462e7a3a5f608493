"""The folder of a run, read back: its header and its rows; all figures and pictures come from these two alone.

`run.json`, the header, holds

- `suites`: by name `n`, `num_total`, `is_complete`, `dataset`, `metric`, `note`, and once its bank is made `num_atoms`
  of all its documents and `mean_bank_atoms` of the bank that a question is asked of; where runs were merged, `systems`
  that were asked it, if not all;
- `systems`: by name `{"status": "ok", "domain": {suite: "in-domain"}}` or `{"status": "unavailable", "why": "..."}`;
- everything else that a reader must know, in any shape: command, versions, hardware, fingerprints, recipe, seed, ...

`predictions.jsonl` holds a `Row` a line. Of a row that the gate refused, `extra["ungated"]` keeps what the model says
without the gate: `{"prediction": ..., "scores": {...}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import D2AError
from training.bench.samples import Row

HEADER, ROWS, EFFICIENCY = "run.json", "predictions.jsonl", "efficiency.json"


@dataclass(frozen=True, kw_only=True)
class Results:
    """A run as its folder has it; one that was interrupted has fewer rows than its header says.

    Args:
        rows: By suite and system, both in the order of the run.
        efficiency: What the suite of that name measured; empty where it did not run.
    """

    folder: Path
    header: Mapping[str, Any]
    rows: Mapping[tuple[str, str], Sequence[Row]]
    efficiency: Mapping[str, Any]

    @property
    def suites(self) -> list[str]:
        """The suites that have rows."""
        return list(dict.fromkeys(suite for suite, _ in self.rows))

    @property
    def systems(self) -> list[str]:
        """The systems that have rows."""
        return list(dict.fromkeys(system for _, system in self.rows))

    def suite_facts(self, suite: str) -> Mapping[str, Any]:
        """Return what the header says of a suite."""
        return self.header.get("suites", {}).get(suite, {})

    def domain(self, suite: str, system: str) -> str:
        """Return `in-domain`, `zero-shot` or `unknown`, or nothing for a system that was not trained."""
        return self.header.get("systems", {}).get(system, {}).get("domain", {}).get(suite, "")

    def bank(self, suite: str) -> str:
        """Return what a question of a suite is asked of, in words; nothing where the header does not say."""
        facts = self.suite_facts(suite)
        if "num_atoms" not in facts:
            return ""
        if self.header.get("bank") == "all":
            return f"one bank of all documents, {facts['num_atoms']:,} atoms"
        return f"one bank a document, {facts['mean_bank_atoms']:,} atoms on average, {facts['num_atoms']:,} in all"

    def num_missing(self, suite: str) -> int:
        """Return how many rows of a suite an interrupted run still lacks, over the systems that can run."""
        able = [name for name, facts in self.header.get("systems", {}).items() if facts.get("status") == "ok"]
        systems = self.suite_facts(suite).get("systems", able)
        wanted = self.suite_facts(suite).get("n", 0)
        return sum(max(0, wanted - len(self.rows.get((suite, system), ()))) for system in systems)

    def unavailable(self) -> dict[str, str]:
        """Return the systems that could not run, with the reason."""
        systems = self.header.get("systems", {})
        return {name: facts.get("why", "") for name, facts in systems.items() if facts.get("status") != "ok"}


def read_results(folder: Path) -> Results:
    """Read the folder of a run, finished or not.

    Raises:
        D2AError: No run is there, or a line is not a row.
    """
    header, rows, costs = folder / HEADER, folder / ROWS, folder / EFFICIENCY
    if not (header.is_file() or costs.is_file()):
        raise D2AError(f"{folder} holds no benchmark, {HEADER} is missing", hint="Name the --out of d2a bench")
    found: dict[tuple[str, str], list[Row]] = {}
    for row in _rows(rows) if rows.is_file() else ():
        found.setdefault((row.suite, row.system), []).append(row)
    return Results(folder=folder, header=_json(header), rows=found, efficiency=_json(costs))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise D2AError(f"{path}: not valid JSON, {error}", hint="Run d2a bench again with --no-resume") from error


def _rows(path: Path) -> list[Row]:
    """Return the rows; a last line without its end belongs to a run that was killed while it wrote."""
    whole = path.read_text("utf-8").split("\n")[:-1]
    rows = []
    for number, line in enumerate(whole, start=1):
        try:
            data = json.loads(line)
            rows.append(Row(**{**data, "references": tuple(data["references"])}))
        except (ValueError, TypeError, KeyError) as error:
            hint = "Run d2a bench again with --no-resume"
            raise D2AError(f"{path}: line {number} is not a row, {error}", hint=hint) from error
    return rows
