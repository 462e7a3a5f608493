"""From files to a suite: equal texts become one document, questions become samples, `--limit` draws among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from training.bench.samples import Sample, Suite
from training.bench.suites.longbench import describe_origins, longbench_contexts
from training.bench.suites.references import NOT_ANSWERED, References
from training.bench.suites.registry import SuiteInfo
from training.datasets import DATASETS
from training.datasets.context import Context, QAItem, locate
from training.datasets.files import Reading
from training.records import DataError

Asked = tuple[Context, Sequence[tuple[QAItem, References]]]


class _Assembly:
    """Documents and samples, in the order in which they are read."""

    def __init__(self) -> None:
        self.samples: dict[str, Sample] = {}
        self._contexts: list[Context] = []
        self._documents: dict[str, int] = {}

    def add(self, asked: Iterable[Asked]) -> None:
        """Add the questions of a file; one that an earlier file has, by its name or about the same text, is there."""
        known = {(sample.document, sample.item.question) for sample in self.samples.values()}
        for context, pairs in asked:
            document = self._documents.setdefault(context.text, len(self._contexts))
            if document == len(self._contexts):
                self._contexts.append(context)
            for item, references in pairs:
                is_known = item.question_id in self.samples or (document, item.question) in known
                if not is_known and (references.texts or item.is_impossible):
                    self.samples[item.question_id] = _sample(document, context, item, references)

    def contexts(self) -> tuple[Context, ...]:
        """Return the documents, each with all questions about its text."""
        questions: list[list[QAItem]] = [[] for _ in self._contexts]
        for sample in self.samples.values():
            questions[sample.document].append(sample.item)
        return tuple(replace(c, questions=tuple(items)) for c, items in zip(self._contexts, questions, strict=True))


def read_suite(info: SuiteInfo, files: Sequence[Path], *, limit: int | None, seed: int) -> Suite:
    """Read a set from its files, in their order, until it is complete.

    Raises:
        DataError: A file is in another format.
    """
    assembly = _Assembly()
    add = _add_records if info.dataset == "longbench" else _add_files
    is_complete, notes = add(info, files, assembly)
    samples = tuple(assembly.samples.values())
    return Suite(
        name=info.name,
        dataset=info.name if info.dataset == "longbench" else info.dataset,
        metric=info.metric,
        contexts=assembly.contexts(),
        samples=draw(samples, limit, seed),
        num_total=len(samples),
        is_complete=is_complete,
        note="; ".join(note for note in (*notes, info.note) if note),
    )


def _add_files(info: SuiteInfo, files: Sequence[Path], assembly: _Assembly) -> tuple[bool, list[str]]:
    reading = Reading(name=info.dataset, mode=DATASETS[info.dataset].mode)
    notes: dict[str, None] = {}
    # The hub parts one table into several files, which may ask the same thing twice as one file may.
    for _, group in groupby(files, key=lambda path: path.parent if path.suffix == ".parquet" else path):
        if len(assembly.samples) != info.num_official:
            assembly.add(asked for path in group for asked in _asked(info, path, reading, notes))
    is_complete = len(assembly.samples) == info.num_official
    if not is_complete:
        notes = {f"subset: {len(assembly.samples):,} of {info.num_official:,} questions": None, **notes}
    left_out = (f"{count:,} {reason.replace('_', ' ')}" for reason, count in (+reading.dropped).items())
    return is_complete, [*notes, f"left out: {', '.join(left_out)}" if +reading.dropped else ""]


def _asked(info: SuiteInfo, path: Path, reading: Reading, notes: dict[str, None]) -> list[Asked]:
    try:
        file = info.references(path)
        contexts = (info.parse or DATASETS[info.dataset].parse)(path, reading)
        asked = [(context, [(item, file.of(context, item)) for item in context.questions]) for context in contexts]
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise DataError(
            f"{path} is not in the format of {info.name}: {type(error).__name__} {error}",
            hint="Pass the folder of that set, or one with a folder for each set, with --data",
        ) from error
    notes.setdefault(file.note)
    return asked


def _add_records(info: SuiteInfo, files: Sequence[Path], assembly: _Assembly) -> tuple[bool, list[str]]:
    groups = longbench_contexts(info.name, files, info.num_official)
    of = info.references(files[0]).of
    assembly.add((c, [(item, of(c, item)) for item in c.questions]) for _, contexts in groups for c in contexts)
    is_complete = [(origin, len(contexts)) for origin, contexts in groups] == [("LongBench", info.num_official)]
    return is_complete, [] if is_complete else [f"LongBench subset: {describe_origins(groups)}"]


def _sample(document: int, context: Context, item: QAItem, references: References) -> Sample:
    if item.is_impossible and references.texts:
        # Most of QASPER's annotators found no answer, but some did, and the official evaluation accepts theirs.
        answers = tuple(locate(context.text, text) for text in references.texts if text != NOT_ANSWERED)
        item = replace(item, is_impossible=False, answers=answers)
    return Sample(
        sample_id=item.question_id,
        document=document,
        item=item,
        references=references.texts,
        kind="answerable" if references.texts else "human",
        spans=references.spans,
        answer_type=references.answer_type,
        reference_types=references.types,
    )


def draw(samples: Sequence[Sample], limit: int | None, seed: int) -> tuple[Sample, ...]:
    """Draw samples at random, in the order that they had; a larger limit keeps those of a smaller one."""
    if limit is None or limit >= len(samples):
        return tuple(samples)
    drawn = sorted(range(len(samples)), key=lambda place: shuffled(seed, samples[place].sample_id))[:limit]
    return tuple(samples[place] for place in sorted(drawn))


def shuffled(seed: int, *names: str) -> bytes:
    """Return a key to sort by that is random, the same on every machine, and independent of what else is sorted."""
    return hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=16).digest()
