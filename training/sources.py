"""Where a run's records come from: files, filters, and which passages are held out.

Making records from question-answering sets is `training.corpus`.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.atoms import AnnotationRecord, Question
from training.annotation.filters import own_questions, usable, within_reach
from training.batches import MAX_PASSAGE_ATOMS
from training.config import TrainConfig
from training.corpus import MANIFEST, Annotation
from training.datasets.mixture import mix, mixture_shares
from training.records import DataError, read_records

Emit = Callable[[dict[str, Any]], None]


def load_data(
    data: Path | None, config: TrainConfig, emit: Emit, *, out: Path = Path(), annotation: Annotation | None = None
) -> tuple[list[AnnotationRecord], list[Path]]:
    """Read what is usable of some records, mixed as the configuration says; make them first from raw sets.

    Args:
        data: A file of records, a folder of them, or a folder of raw sets. None takes the sources of `mixture`, or
            the paper's five, from the hub.
        out: Folder of the run; the records of raw sets go into its folder `records`, which later runs may take as
            their `data`.
        annotation: How the records of raw sets are made; None makes them offline.

    Returns:
        The records, and the files that they came from.

    Raises:
        DataError: No records, and no sets to make them from.
    """
    files = ensure_records(data, config, emit, out=out, annotation=annotation)
    by_source: dict[str, list[AnnotationRecord]] = {}
    for file in files:
        found = [record for record in map(usable, read_records(file)) if record.atoms]
        kept = [within_reach(record, MAX_PASSAGE_ATOMS) for record in found]
        if not config.foreign_probes:
            kept = [own_questions(record) for record in kept]
        by_source.setdefault(file.parent.name, []).extend(kept)
    return mixed(by_source, config), files


def ensure_records(
    data: Path | None, config: TrainConfig, emit: Emit, *, out: Path = Path(), annotation: Annotation | None = None
) -> list[Path]:
    """Return the files of records, made first where `data` holds raw sets; the arguments are those of `load_data`."""
    files = [] if data is None else record_files(data, config)
    if not files:
        from training.corpus import make_records

        names = tuple(config.mixture) or None
        make_records(data, out / "records", names=names, emit=emit, annotation=annotation)
        files = record_files(out / "records", config)
    return files


def record_files(data: Path, config: TrainConfig) -> list[Path]:
    """Return the files of records: a file itself, the one that the configuration names, or all JSONL shards."""
    if data.is_file():
        return [data]
    if (data / config.records).is_file():
        return [data / config.records]
    return sorted(p for pattern in ("*.jsonl", "*.jsonl.gz", "*/shard-*.jsonl*") for p in data.glob(pattern))


def mixed(by_source: Mapping[str, list[AnnotationRecord]], config: TrainConfig) -> list[AnnotationRecord]:
    """Return one pass over the sources in the shares of `mixture`; without one, every record once."""
    if not config.mixture:
        return [record for records in by_source.values() for record in records]
    sizes = {name: len(records) for name, records in by_source.items()}
    shares = mixture_shares(sizes, config.mixture)
    pairs = mix(sizes, shares, seed=config.seed, total=sum(sizes.values()))
    return [by_source[name][place] for name, place in pairs]


def split_records(records: list, config: TrainConfig) -> tuple[list, list]:
    """Hold some passages out, those with questions of known answer; the same ones for a seed.

    Up to half of them are such as people have also asked what they do not answer: the gate is fitted on what is held
    out, and near misses by rules are not quite like theirs. A mixture may hold a passage several times: none of its
    copies is left to train on.
    """
    order = list(range(len(records)))
    random.Random(config.seed).shuffle(order)
    first: dict[str, int] = {}
    for place in order:
        if any(q.gold_atom_ids and q.answers for q in records[place].qa_pairs):
            first.setdefault(records[place].context, place)
    count = min(config.holdout_passages, len(first) // 4)
    missed = [place for place in first.values() if any(_is_human_miss(q) for q in records[place].qa_pairs)]
    chosen = dict.fromkeys([*missed[: count // 2], *first.values()])
    held_out = [records[place] for place in sorted(list(chosen)[:count])]
    texts = {record.context for record in held_out}
    return held_out, [record for record in records if record.context not in texts]


def _is_human_miss(question: Question) -> bool:
    return question.is_irrelevant and not question.is_generated_irrelevant


def check_enough(data: Path | None, held_out: Sequence[AnnotationRecord], kept: Sequence[AnnotationRecord]) -> None:
    """Raise DataError unless there is something to train on and something to evaluate on."""
    if len(held_out) < 2 or not any(q.gold_atom_ids and q.answers for r in kept for q in r.qa_pairs):
        raise DataError(
            f"{data or 'the sources'}: {len(held_out) + len(kept)} passages are too few: one in four with answerable "
            "questions is held out",
            hint="Train on at least 8 passages with answerable questions",
        )


def fingerprint(*parts: object) -> str:
    """Return 64 hex digits over what parts say of themselves, one after the other: millions of atoms fit in."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def data_facts(files: Sequence[Path], config: TrainConfig, records: Sequence[AnnotationRecord]) -> dict[str, Any]:
    """Return what a checkpoint says of its data, with the manifest where the records came with one."""
    facts = {
        "records": config.records,
        "passages": len(records),
        "questions": sum(len(r.qa_pairs) for r in records),
    }
    for folder in (folder for file in files[:1] for folder in (file.parent, file.parent.parent)):
        if (folder / MANIFEST).is_file():
            return {**facts, "manifest": json.loads((folder / MANIFEST).read_text("utf-8"))}
    return facts
