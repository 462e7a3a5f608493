"""From raw question-answering sets to a folder of records: loaded, kept apart from evaluation text, annotated.

Each source gets a folder of shards, so that a run that is killed goes on where it was; `manifest.json` is written
last and marks the whole. Labels come by distant supervision; with a model as annotator, use `d2a annotate`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from training.records import DataError

MANIFEST = "manifest.json"
NUM_PROBES = 2
TELL_EVERY = 256  # contexts an event


def make_records(
    data: Path | None,
    out: Path,
    *,
    names: Iterable[str] | None = None,
    emit: Callable[[dict[str, Any]], None] = lambda event: None,
) -> None:
    """Make the records of raw sets, or what an earlier run left to make.

    Args:
        data: A folder of sets, or one with such folders as `train` and `eval`; None for the hub.
        names: Sets; None for all that the folder holds, or for the paper's five source sets from the hub.
        emit: Told of progress, and warned where there is no evaluation set to keep out.

    Raises:
        DataError: No such set, another format, a hub that cannot be reached, or a folder with other sets' records.
    """
    request = _request(data, names)
    if (out / MANIFEST).is_file():
        found = json.loads((out / MANIFEST).read_text("utf-8"))
        if found.get("request") != request:
            raise DataError(f"{out} holds the records of other sets", hint="Name another --out, or delete that folder")
        _warn(found["warnings"], emit)
        return
    from models.config import AtomizerConfig
    from training.annotation import build_annotator
    from training.annotation.pipeline import annotate_contexts
    from training.datasets import load_eval_sets, load_sources
    from training.datasets.manifest import clean_sources

    if data is not None:
        _check_folder(data)
    by_source, manifest = clean_sources(load_sources(names, data), load_eval_sets(data))
    _warn(manifest.warnings, emit)
    for name, contexts in by_source.items():
        annotator = build_annotator("offline", contexts, config=AtomizerConfig(), num_probes=NUM_PROBES)

        def tell(progress: Any, name: str = name) -> None:
            if progress.done % TELL_EVERY == 0 or progress.done == progress.total:
                emit({"event": "annotate", "source": name, "done": progress.done, "total": progress.total})

        annotate_contexts(contexts, annotator, out / name, on_progress=tell)
    scratch = out / f"{MANIFEST}.tmp"
    scratch.write_text(json.dumps({"request": request, **manifest.to_dict()}, indent=2) + "\n", "utf-8")
    scratch.replace(out / MANIFEST)


def _warn(messages: Iterable[str], emit: Callable[[dict[str, Any]], None]) -> None:
    for message in messages:
        emit({"event": "warning", "message": message})


def _request(data: Path | None, names: Iterable[str] | None) -> str:
    """Name what was asked for, so that the records of one folder are not taken for those of another."""
    asked = json.dumps([data and str(data.resolve()), names and list(names)])
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _check_folder(data: Path) -> None:
    from training.datasets import find_sources

    if not data.exists():
        raise DataError(f"{data} does not exist", hint="Pass a folder of raw sets, or of records from `d2a annotate`")
    try:
        find_sources(data)
    except DataError as error:
        hint = f"Make records with `d2a annotate`. {error.hint}"
        raise DataError(f"{data} holds neither records nor raw sets", hint=hint) from error
