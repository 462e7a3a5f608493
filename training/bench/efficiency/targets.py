"""What the figures are judged by: targets for one H100 at true size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]

COMPILE_S, COMPILE_MIB, OVERHEAD, ROUTING_MS, ROUTED_ATOMS = 0.10, 1000**3 / 2**20, 0.05, 20.0, 10**6
# A question's memory counts as flat where the largest bank adds no more than so much over the smallest.
FLAT_FACTOR, FLAT_MIB = 1.1, 16.0


def judged(parts: Figures, *, exact_memory: bool) -> list[dict[str, Any]]:
    """Return a row a target: value, limit, and whether it is met.

    Args:
        exact_memory: Whether the memory that calls add is known, and not just a lower bound.

    Returns:
        `passed` is None where something was not measured, or memory is not known exactly.
    """
    rows = [*_compile_rows(parts), *_d2l_rows(parts), *_question_rows(parts), _overhead_row(parts)]
    return [{**row, "passed": None} if row["unit"] == "MiB" and not exact_memory else row for row in rows]


def _row(name: str, value: float | None, limit: float | None, unit: str, note: str = "") -> dict[str, Any]:
    passed = None if value is None or limit is None else value <= limit
    row = {"name": name, "value": value, "limit": limit, "unit": unit, "passed": passed}
    return {**row, "note": note} if note else row


def _compile_rows(parts: Figures) -> list[dict[str, Any]]:
    rows = []
    for group in ("benchmark", "invented"):
        figures = parts.get("compile", {}).get(group)
        if figures is None and group == "benchmark":
            continue
        mean_s = None if figures is None else figures["mean_ms"] / 1e3
        rows.append(_row(f"compile a document, {group}", mean_s, COMPILE_S, "s"))
        added = None if figures is None else figures["added_mib"]
        rows.append(_row(f"memory that compiling adds, {group}", added, round(COMPILE_MIB, 2), "MiB"))
    return rows


def _d2l_rows(parts: Figures) -> list[dict[str, Any]]:
    """Compare with Doc-to-LoRA: its own figure is the limit."""
    rows = []
    for group in ("benchmark", "invented"):
        ours, theirs = parts.get("compile", {}).get(group), parts.get("d2l", {}).get(group)
        for mode in ("batched", "layer by layer") if ours and theirs else ():
            other = theirs[mode]
            measured = "mean_ms" in other
            limit_s = other["mean_ms"] / 1e3 if measured else None
            note = other.get("left_out", "")
            rows.append(_row(f"compile against D2L {mode}, {group}", ours["mean_ms"] / 1e3, limit_s, "s", note))
            limit = other["added_mib"] if measured else None
            rows.append(_row(f"memory against D2L {mode}, {group}", ours["added_mib"], limit, "MiB", note))
    return rows


def _question_rows(parts: Figures) -> list[dict[str, Any]]:
    banks = parts.get("questions", {}).get("banks", [])
    large = next((b for b in banks if b["num_atoms"] >= ROUTED_ATOMS), None)
    complete = large is not None and not large["words"].startswith("left out")
    note = "" if large is None or complete else "without the words' stage, whose index was not built"
    value = None if large is None else large["routing"]["p50_ms"]
    routing = _row(f"routing over {ROUTED_ATOMS:,} atoms, p50", value, ROUTING_MS, "ms", note)
    if not complete and routing["passed"]:
        routing["passed"] = None  # a part within the limit says nothing of the whole
    keys_ms = None if large is None else sum(large["routing"]["parts"][p]["p50_ms"] for p in _BY_KEYS)
    keys = _row(f"routing over {ROUTED_ATOMS:,} atoms by keys alone, p50", keys_ms, ROUTING_MS, "ms")
    added = [b["question"]["added_mib"] for b in banks]
    flat = len(added) > 1 and None not in added
    limit = round(max(FLAT_FACTOR * added[0], added[0] + FLAT_MIB), 2) if flat else None
    sizes = f"{banks[0]['num_atoms']:,} to {banks[-1]['num_atoms']:,} atoms" if flat else "no sizes"
    memory = _row(f"memory a question, {sizes}", max(added) if flat else None, limit, "MiB")
    return [routing, keys, memory]


def _overhead_row(parts: Figures) -> dict[str, Any]:
    return _row("adapter overhead of generation", parts.get("generation", {}).get("overhead"), OVERHEAD, "of the time")


_BY_KEYS = ("encode", "stage 1, keys", "stage 2")
