"""Where a run's records come from: files, filters, and which passages are held out.

Making records from question-answering sets is `training.annotation` and `training.prepare`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models.atoms import AnnotationRecord
from training.annotation.filters import usable
from training.config import TrainConfig
from training.records import DataError, read_records

Emit = Callable[[dict[str, Any]], None]


def load_data(data: Path, config: TrainConfig, emit: Emit) -> tuple[list[AnnotationRecord], list[Path]]:
    """Read what is usable of the records in a folder or a file; make them first where the folder has raw sets.

    Returns:
        The records, and the files that they came from.
    """
    files = record_files(data, config)
    if not files and (data / "train").is_dir():
        from training.prepare import prepare

        emit({"event": "prepare", "out": str(data)})
        if not record_files(data / "records", config):
            prepare(data, data / "records")
        files = record_files(data / "records", config)
    files = files or [data / config.records]
    filtered = (usable(record) for file in files for record in read_records(file))
    return [record for record in filtered if record.atoms], files


def record_files(data: Path, config: TrainConfig) -> list[Path]:
    """Return the files of records: a file itself, the one that the configuration names, or all JSONL shards."""
    if data.is_file():
        return [data]
    if (data / config.records).is_file():
        return [data / config.records]
    return sorted(p for pattern in ("*.jsonl", "*.jsonl.gz") for p in data.glob(pattern))


def split_records(records: list, config: TrainConfig) -> tuple[list, list]:
    """Hold some passages out, those with answerable questions; the same ones for a seed."""
    order = list(range(len(records)))
    random.Random(config.seed).shuffle(order)
    answerable = [i for i in order if any(q.gold_atom_ids for q in records[i].qa_pairs)]
    held = set(answerable[: min(config.holdout_passages, len(answerable) // 4)])
    return [records[i] for i in sorted(held)], [r for i, r in enumerate(records) if i not in held]


def check_enough(data: Path, held_out: Sequence[AnnotationRecord], kept: Sequence[AnnotationRecord]) -> None:
    """Raise DataError unless there is something to train on and something to evaluate on."""
    if len(held_out) < 2 or not any(q.gold_atom_ids for r in kept for q in r.qa_pairs):
        raise DataError(
            f"{data}: {len(held_out) + len(kept)} passages are too few: one in four with answerable questions is "
            "held out",
            hint="Train on at least 8 passages with answerable questions",
        )


def data_facts(data: Path, config: TrainConfig, records: Sequence[AnnotationRecord]) -> dict[str, Any]:
    """Return what a checkpoint says of its data, with the manifest where the records came with one."""
    facts = {
        "records": config.records,
        "passages": len(records),
        "questions": sum(len(r.qa_pairs) for r in records),
    }
    folder = data.parent if data.is_file() else data
    for manifest in (folder / "manifest.json", folder / "records" / "manifest.json"):
        if manifest.is_file():
            return {**facts, "manifest": json.loads(manifest.read_text("utf-8"))}
    return facts
