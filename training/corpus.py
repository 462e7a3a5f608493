"""From raw question-answering sets to a folder of records: loaded, kept apart from evaluation text, annotated.

Each source gets a folder of shards, so that a run that is killed goes on where it was; `manifest.json` is written
last and marks the whole. Labels come by distant supervision; with a model as annotator, use `d2a annotate`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
NUM_PROBES = 2


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

    Raises:
        DataError: No such set, another format, or a hub that cannot be reached.
    """
    if (out / MANIFEST).is_file():
        return
    from models.config import AtomizerConfig
    from training.annotation import build_annotator
    from training.annotation.pipeline import annotate_contexts
    from training.datasets import load_eval_sets, load_sources
    from training.datasets.manifest import clean_sources

    by_source, manifest = clean_sources(load_sources(names, data), load_eval_sets(data))
    for name, contexts in by_source.items():
        annotator = build_annotator("offline", contexts, config=AtomizerConfig(), num_probes=NUM_PROBES)

        def tell(progress: Any, name: str = name) -> None:
            emit({"event": "annotate", "source": name, "done": progress.done, "total": progress.total})

        annotate_contexts(contexts, annotator, out / name, on_progress=tell)
    scratch = out / f"{MANIFEST}.tmp"
    scratch.write_text(json.dumps(manifest.to_dict(), indent=2) + "\n", "utf-8")
    scratch.replace(out / MANIFEST)
