"""From raw question-answering sets to a folder of records: loaded, kept apart from evaluation text, annotated.

Each source gets a folder of shards, so that a run that is killed goes on where it was; `manifest.json` is written
last and marks the whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import AtomizerConfig
from training.records import DataError

if TYPE_CHECKING:
    from models.atomizer import JobEstimate
    from training.annotation import AnnotatorName

MANIFEST = "manifest.json"
NUM_PROBES = 2
TELL_EVERY = 256  # contexts an event


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """Who annotates raw sets, and who is asked before that costs anything.

    Args:
        annotator: `offline` for distant supervision, `llm` for the model that `config` names.
        approve: Told once what the whole job takes, before the first request; it raises to stop the job.
    """

    annotator: AnnotatorName = "offline"
    config: AtomizerConfig = field(default_factory=AtomizerConfig)
    approve: Callable[[JobEstimate], None] = lambda estimate: None


def make_records(
    data: Path | None,
    out: Path,
    *,
    names: Iterable[str] | None = None,
    emit: Callable[[dict[str, Any]], None] = lambda event: None,
    annotation: Annotation | None = None,
) -> None:
    """Make the records of raw sets, or what an earlier run left to make.

    Args:
        data: A folder of sets, or one with such folders as `train` and `eval`; None for the hub.
        names: Sets; None for all that the folder holds, or for the paper's five source sets from the hub.
        emit: Told of progress, and warned where there is no evaluation set to keep out.
        annotation: None annotates offline.

    Raises:
        DataError: No such set, another format, a hub that cannot be reached, or a folder with other sets' records.
    """
    annotation = annotation or Annotation()
    request = _request(data, names, annotation.annotator)
    if (out / MANIFEST).is_file():
        found = json.loads((out / MANIFEST).read_text("utf-8"))
        if found.get("request") != request:
            raise DataError(f"{out} holds the records of other sets", hint="Name another --out, or delete that folder")
        _warn(found["warnings"], emit)
        return
    from training.annotation import build_annotator
    from training.annotation.pipeline import annotate_contexts, remaining
    from training.datasets import load_eval_sets, load_sources
    from training.datasets.manifest import clean_sources

    if data is not None:
        _check_folder(data)
    by_source, manifest = clean_sources(load_sources(names, data), load_eval_sets(data))
    _warn(manifest.warnings, emit)
    workers = {
        name: build_annotator(annotation.annotator, contexts, config=annotation.config, num_probes=NUM_PROBES)
        for name, contexts in by_source.items()
    }
    try:
        estimates = [w.estimate(remaining(by_source[name], w, out / name)) for name, w in workers.items()]
        if total := _total(e for e in estimates if e is not None):
            annotation.approve(total)
        for name, contexts in by_source.items():

            def tell(progress: Any, name: str = name) -> None:
                if progress.done % TELL_EVERY == 0 or progress.done == progress.total:
                    emit({"event": "annotate", "source": name, "done": progress.done, "total": progress.total})

            annotate_contexts(contexts, workers[name], out / name, on_progress=tell)
    finally:
        for worker in workers.values():
            worker.close()
    scratch = out / f"{MANIFEST}.tmp"
    scratch.write_text(json.dumps({"request": request, **manifest.to_dict()}, indent=2) + "\n", "utf-8")
    scratch.replace(out / MANIFEST)


def _warn(messages: Iterable[str], emit: Callable[[dict[str, Any]], None]) -> None:
    for message in messages:
        emit({"event": "warning", "message": message})


def _total(estimates: Iterable[JobEstimate]) -> JobEstimate | None:
    """Add up what the sources take; the price is unknown where that of any is."""
    parts = list(estimates)
    if not parts:
        return None
    costs = [part.cost_usd for part in parts]
    return replace(
        parts[0],
        num_calls=sum(part.num_calls for part in parts),
        num_input_tokens=sum(part.num_input_tokens for part in parts),
        num_output_tokens=sum(part.num_output_tokens for part in parts),
        cost_usd=None if None in costs else sum(costs),
    )


def _request(data: Path | None, names: Iterable[str] | None, annotator: str) -> str:
    """Name what was asked for, so that the records of one folder are not taken for those of another."""
    asked = [data and str(data.resolve()), names and list(names)]
    if annotator != "offline":
        asked.append(annotator)
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def _check_folder(data: Path) -> None:
    from training.datasets import find_sources

    if not data.exists():
        raise DataError(f"{data} does not exist", hint="Pass a folder of raw sets, or of records from `d2a annotate`")
    try:
        find_sources(data)
    except DataError as error:
        hint = f"Make records with `d2a annotate`. {error.hint}"
        raise DataError(f"{data} holds neither records nor raw sets", hint=hint) from error
