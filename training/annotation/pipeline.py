"""From many contexts to a folder of shards: bounded, in order, and able to go on after a kill.

Holds the run over contexts and its summary. What makes one record of one context is the annotator's; what shards
look like is `training.annotation.shards`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from models.atoms import AnnotationRecord
from training.annotation import Annotator, DiscardedSampleError
from training.annotation.filters import usable
from training.annotation.shards import Plan, contexts_hash, finished_shards, open_folder, read_shards, write_shard
from training.datasets.context import Context

logger = logging.getLogger(__name__)

SHARD_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class AnnotationProgress:
    """How far a run has come.

    Args:
        done: Contexts annotated or discarded, those of earlier runs included.
        discarded: Of this run.
    """

    done: int
    total: int
    discarded: int


@dataclass(frozen=True, kw_only=True)
class AnnotationSummary:
    """What a folder holds.

    Args:
        num_discarded: Contexts without a record, since they could not be decomposed as a whole.
        num_atom_only: Records whose questions could not be annotated, or that have none.
        num_probes: Generated questions, `num_rescued` of which the atoms answer after all.
        num_warned: Questions that training leaves out because they carry a warning.
        num_usable_questions: Questions that training takes.
    """

    num_contexts: int
    num_shards: int
    num_records: int = 0
    num_discarded: int = 0
    num_atom_only: int = 0
    num_atoms: int = 0
    num_invalid_spans: int = 0
    num_questions: int = 0
    num_irrelevant: int = 0
    num_probes: int = 0
    num_rescued: int = 0
    num_warned: int = 0
    num_usable_questions: int = 0


OnProgress = Callable[[AnnotationProgress], None]


def plan_of(contexts: Sequence[Context], annotator: Annotator, *, shard_size: int = SHARD_SIZE) -> Plan:
    """Return what a run over these contexts would write."""
    return Plan(
        annotator=annotator.fingerprint,
        contexts=contexts_hash(contexts),
        num_contexts=len(contexts),
        shard_size=shard_size,
    )


def remaining(
    contexts: Sequence[Context], annotator: Annotator, out: Path, *, shard_size: int = SHARD_SIZE
) -> list[Context]:
    """Return the contexts whose shards a run that goes on in `out` has yet to write."""
    finished = finished_shards(out, plan_of(contexts, annotator, shard_size=shard_size))
    return [context for place, context in enumerate(contexts) if place // shard_size not in finished]


def annotate_contexts(
    contexts: Sequence[Context],
    annotator: Annotator,
    out: Path,
    *,
    shard_size: int = SHARD_SIZE,
    resume: bool = True,
    on_progress: OnProgress | None = None,
) -> AnnotationSummary:
    """Annotate contexts into `out`, as `shard-00000.jsonl` and so on.

    A run that is killed leaves whole shards, and the next one writes the others: the folder is the same, byte for
    byte, as after one run. A model's replies are in its cache beside that, so that no request is paid for twice.

    Args:
        shard_size: Contexts a shard; one that is discarded leaves its shard shorter.
        resume: Go on in a folder that holds shards of the same plan; False starts over.

    Raises:
        DataError: `out` holds another annotation.
        AtomizerError: The annotator's server refuses every request.
    """
    plan = plan_of(contexts, annotator, shard_size=shard_size)
    finished = open_folder(out, plan, resume=resume)
    run = _Run(annotator, len(contexts), on_progress or (lambda progress: None))
    try:
        for number in range(plan.num_shards):
            members = contexts[number * shard_size : (number + 1) * shard_size]
            if number in finished:
                run.skip(len(members))
            else:
                write_shard(out, number, run.records(members))
    finally:
        run.close()
    return summarize(out, plan)


class _Run:
    """The annotator at work on one shard after another, a bounded number of contexts at a time."""

    def __init__(self, annotator: Annotator, total: int, on_progress: OnProgress) -> None:
        self._annotator = annotator
        self._total = total
        self._on_progress = on_progress
        self._done = 0
        self._discarded = 0
        self._pool = ThreadPoolExecutor(max_workers=annotator.concurrency, thread_name_prefix="annotate")

    def skip(self, count: int) -> None:
        self._done += count
        self._tell()

    def records(self, contexts: Sequence[Context]) -> list[AnnotationRecord]:
        """Return the records of a shard, in the order of their contexts."""
        records = []
        for record in self._pool.map(self._annotate, contexts):
            self._done += 1
            if record is None:
                self._discarded += 1
            else:
                records.append(record)
            self._tell()
        return records

    def close(self) -> None:
        # After a fault or Ctrl-C the contexts under way are not waited for.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _annotate(self, context: Context) -> AnnotationRecord | None:
        try:
            return self._annotator.annotate(context)
        except DiscardedSampleError as error:
            logger.warning("discarded %s: %s", context.context_id, error.message)
            return None

    def _tell(self) -> None:
        progress = AnnotationProgress(done=self._done, total=self._total, discarded=self._discarded)
        self._on_progress(progress)


def summarize(folder: Path, plan: Plan) -> AnnotationSummary:
    """Count what a finished folder holds."""
    counts: dict[str, int] = {}

    def add(name: str, number: int) -> None:
        counts[name] = counts.get(name, 0) + number

    for record in read_shards(folder):
        questions = record.qa_pairs
        probes = [q for q in questions if q.is_generated_irrelevant]
        add("num_records", 1)
        add("num_atom_only", not questions)
        add("num_atoms", len(record.atoms))
        add("num_invalid_spans", sum(not atom.span_valid for atom in record.atoms))
        add("num_questions", len(questions))
        add("num_irrelevant", sum(q.is_irrelevant for q in questions))
        add("num_probes", len(probes))
        add("num_rescued", sum(not q.is_irrelevant for q in probes))
        add("num_warned", sum(bool(q.annotation_warnings) for q in questions))
        add("num_usable_questions", len(usable(record).qa_pairs))
    return AnnotationSummary(
        num_contexts=plan.num_contexts,
        num_shards=plan.num_shards,
        num_discarded=plan.num_contexts - counts.get("num_records", 0),
        **counts,
    )
