"""Annotated records on disk: a folder of shards, each whole or not there, and what they were made of.

Holds names, atomic writing, reading in order, and the check that a run may go on in a folder. It annotates
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models.atoms import AnnotationRecord
from training.datasets.context import Context
from training.records import DataError, read_records, write_records

PLAN_FILE = "annotation.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a folder's shards are made of; equal plans give equal shards.

    Args:
        annotator: Fingerprint of the annotator.
        contexts: SHA-256 of the contexts, in hex.
        shard_size: Contexts a shard.
    """

    annotator: str
    contexts: str
    num_contexts: int
    shard_size: int

    @property
    def num_shards(self) -> int:
        """How many shards a finished folder has."""
        return -(-self.num_contexts // self.shard_size)


def contexts_hash(contexts: Sequence[Context]) -> str:
    """Return the SHA-256 of all that contexts say, in hex."""
    digest = hashlib.sha256()
    for context in contexts:
        digest.update(json.dumps(asdict(context), ensure_ascii=True).encode())
    return digest.hexdigest()


def shard_path(folder: Path, number: int) -> Path:
    """Return where a shard lies."""
    return folder / f"shard-{number:05d}.jsonl"


def write_shard(folder: Path, number: int, records: Sequence[AnnotationRecord]) -> None:
    """Write a shard; it appears under its name whole or not at all."""
    path = shard_path(folder, number)
    temporary = path.with_suffix(".tmp")
    write_records(temporary, records)
    os.replace(temporary, path)


def read_shards(folder: Path) -> Iterator[AnnotationRecord]:
    """Yield the records of a folder in the order of their contexts.

    Raises:
        DataError: It holds no annotation, or one that was not finished.
    """
    plan = _read_plan(folder)
    if plan is None:
        raise DataError(f"{folder} holds no annotation", hint=f"Make it with d2a annotate SOURCE --out {folder}")
    paths = [shard_path(folder, number) for number in range(plan.num_shards)]
    missing = sum(not path.is_file() for path in paths)
    if missing:
        raise DataError(
            f"{folder}: the annotation is not finished, {missing} of {plan.num_shards} shards are missing",
            hint="Run the same d2a annotate again; it goes on where it stopped",
        )
    for path in paths:
        yield from read_records(path)


def open_folder(folder: Path, plan: Plan, *, resume: bool) -> set[int]:
    """Make a folder ready for a plan and return the numbers of the shards that it already holds.

    Args:
        resume: Keep shards of the same plan; False removes all shards.

    Raises:
        DataError: `resume`, and the folder holds shards of another plan.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = _read_plan(folder) if resume else None
    if not resume:
        for path in (*folder.glob("shard-*.jsonl"), *folder.glob("shard-*.tmp")):
            path.unlink()
    elif known is not None and known != plan:
        changed = ", ".join(name for name, value in asdict(plan).items() if asdict(known)[name] != value)
        raise DataError(
            f"{folder} holds another annotation (it differs in {changed})",
            hint="Name another folder with --out, or replace it with --no-resume",
        )
    temporary = folder / f"{PLAN_FILE}.tmp"
    temporary.write_text(json.dumps(asdict(plan), indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / PLAN_FILE)
    return finished_shards(folder, plan)


def finished_shards(folder: Path, plan: Plan) -> set[int]:
    """Return the numbers of the shards of a plan that a folder already holds."""
    if _read_plan(folder) != plan:
        return set()
    return {number for number in range(plan.num_shards) if shard_path(folder, number).is_file()}


def _read_plan(folder: Path) -> Plan | None:
    try:
        return Plan(**json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{folder / PLAN_FILE} is damaged: {error}", hint="Start over with --no-resume") from error
