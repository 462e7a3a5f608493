"""LongBench's records by where they come from: the benchmark itself, its even variant, or its small one.

Copies mix them. A suite is the benchmark's own records where all of them are there, else all distinct ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from training.datasets import DATASETS
from training.datasets.context import Context
from training.datasets.files import Reading, read_data
from training.datasets.longbench import FAMILIES, parse_longbench

# In the order in which a question that several have is taken.
ORIGINS = ("LongBench", "LongBench-E", "MiniLongBench")


# The parts of the benchmark are loaded one after the other, and the hub has all in one file.
@lru_cache(maxsize=3)
def _records(path: Path) -> tuple[tuple[str, Context], ...]:
    rows = [row for row in read_data(path) if row["dataset"].removesuffix("_e") in FAMILIES]
    contexts = parse_longbench(path, Reading(name="longbench", mode=DATASETS["longbench"].mode))
    return tuple((_origin(path, row), context) for row, context in zip(rows, contexts, strict=True))


def _origin(path: Path, row: dict[str, str]) -> str:
    if "minilongbench" in path.name.lower() or row["_id"].startswith("mini_"):
        return "MiniLongBench"
    return "LongBench-E" if row["dataset"].endswith("_e") else "LongBench"


def longbench_contexts(name: str, files: Iterable[Path], num_official: int) -> list[tuple[str, list[Context]]]:
    """Return the records of a part of the benchmark with their origins, each record once.

    Args:
        name: `longbench/SUBSET`.
        files: In the order in which to read; no more are once the part is complete.
    """
    found: dict[str, list[Context]] = {origin: [] for origin in ORIGINS}
    for path in files:
        for origin, context in _records(path):
            if context.dataset == name:
                found[origin].append(context)
        if len(found["LongBench"]) == num_official:
            return [("LongBench", found["LongBench"])]
    return _distinct(found)


def _distinct(found: dict[str, list[Context]]) -> list[tuple[str, list[Context]]]:
    seen: set[str] = set()
    kept = []
    for origin, contexts in found.items():
        kept.append((origin, [context for context in contexts if _is_new(context, seen)]))
    return [(origin, contexts) for origin, contexts in kept if contexts]


def _is_new(context: Context, seen: set[str]) -> bool:
    names: Sequence[str] = (context.context_id, f"{context.questions[0].question}\0{context.text}")
    is_new = seen.isdisjoint(names)
    seen.update(names)
    return is_new


def describe_origins(groups: Iterable[tuple[str, Sequence[Context]]]) -> str:
    """Return how many records came from where."""
    return ", ".join(f"{len(contexts)} of {origin}" for origin, contexts in groups)
