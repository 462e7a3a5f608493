"""A suite's documents as annotated atoms, made once and kept on disk.

The annotator is the offline one that training uses, without probes. A machine that lacks the packages of the atomizer
reads what another one left in the cache. Holds no tensors.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError
from multiprocessing import get_context
from pathlib import Path

from models.atoms import AnnotationMeta, AnnotationRecord
from models.config import AtomizerConfig
from models.weights import cache_root
from training.annotation import Annotator, DiscardedSampleError, build_annotator
from training.annotation.shards import contexts_hash
from training.datasets.context import Context
from training.records import DataError, read_records, write_records

logger = logging.getLogger(__name__)

# From about ten seconds of work on, starting processes pays.
MANY_CHARS = 1_500_000
CONTEXTS_AT_ONCE = 16


def records_root() -> Path:
    """Return where atoms are kept: a folder a set of documents, a file an annotator."""
    return cache_root() / "bench"


def bench_records(contexts: Sequence[Context], *, cache: Path | None = None) -> list[AnnotationRecord]:
    """Return one record a context, in their order; a context without text has no atoms.

    Args:
        cache: Folder that keeps them; None for the user's.

    Raises:
        DataError: The packages of the atomizer are not installed, and the cache does not have these contexts.
    """
    folder = (cache or records_root()) / contexts_hash(contexts)[:16]
    try:
        annotator = _annotator()
    except (ImportError, PackageNotFoundError) as error:
        return _left_by_another_machine(folder, error)
    path = folder / f"{hashlib.sha256(annotator.fingerprint.encode()).hexdigest()[:16]}.jsonl.gz"
    if path.is_file():
        return read_records(path)
    records = list(_annotated(contexts))
    scratch = path.with_name(f"{os.getpid()}-{path.name}")
    write_records(scratch, records)
    scratch.replace(path)
    return records


def _annotated(contexts: Sequence[Context]) -> Iterator[AnnotationRecord]:
    if sum(len(context.text) for context in contexts) < MANY_CHARS:
        yield from map(_record, contexts)
        return
    # Not forked: a fork of a process that has run torch may hang.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        yield from pool.map(_record, contexts, chunksize=CONTEXTS_AT_ONCE)


@cache
def _annotator() -> Annotator:
    return build_annotator("offline", [], config=AtomizerConfig(), num_probes=0)


def _record(context: Context) -> AnnotationRecord:
    try:
        return _annotator().annotate(context)
    except DiscardedSampleError as error:
        logger.warning("no atoms of %s: %s", context.context_id, error.message)
        meta = AnnotationMeta(annotator="offline", decomposition_status="failed")
        return AnnotationRecord(context=context.text, title=context.title, atoms=(), annotation_meta=meta)


def _left_by_another_machine(folder: Path, error: Exception) -> list[AnnotationRecord]:
    files = sorted(folder.glob("*.jsonl.gz"), key=lambda path: path.stat().st_mtime)
    if not files:
        raise DataError(
            f"cannot make atoms here: {error}",
            hint=f"Install d2a with its dependencies, or copy {folder.name} into {folder.parent} from a machine where "
            "`python -m training.bench.prepare` has made it with the same --limit, --seed and --bank",
        ) from error
    return read_records(files[-1])
