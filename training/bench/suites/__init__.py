"""Suites by name: samples over documents, with the references of each set's official evaluation.

    from training.bench.suites import load_suite
    [suite] = load_suite("squad", Path("data"), limit=100)

Data comes from a folder of sets, a folder or file of the one set, or the Hugging Face hub. Holds loading by name; the
sets are in `registry`, their references in `references`, documents and draws in `assemble`.
"""

from __future__ import annotations

from pathlib import Path

from training.bench.samples import Suite
from training.bench.suites.assemble import assemble, draw
from training.bench.suites.registry import SUITES, SuiteInfo
from training.datasets import DATASETS
from training.datasets.files import Reading, download
from training.records import DataError

__all__ = ["SUITES", "load_suite"]


def load_suite(name: str, source: Path | None = None, *, limit: int | None = None, seed: int = 0) -> list[Suite]:
    """Load the suites of a name.

    Args:
        source: A folder of sets (or one with such a folder as `eval`), the folder of the set, or a file of it; None
            for the Hugging Face hub.
        limit: Samples to draw at random from each suite; the documents stay complete. None for all.

    Raises:
        DataError: An unknown suite, no such file, another format, or a hub that cannot be reached.
    """
    if name not in SUITES:
        raise DataError(f"suite must be one of {', '.join(SUITES)}, got {name!r}", hint="Name one of these")
    return [_load(SUITES[name], source, limit, seed)]


def _load(info: SuiteInfo, source: Path | None, limit: int | None, seed: int) -> Suite:
    files = _files(info, source)
    reading = Reading(name=info.dataset, mode=DATASETS[info.dataset].mode)
    asked = []
    for path in files:
        lookup = info.references(path)
        contexts = DATASETS[info.dataset].parse(path, reading)
        asked.append([(context, item, lookup(context, item)) for context in contexts for item in context.questions])
    contexts, samples = assemble(asked)
    is_complete = len(samples) == info.num_official
    return Suite(
        name=info.name,
        dataset=info.dataset,
        metric=info.metric,
        contexts=contexts,
        samples=draw(samples, limit, seed),
        num_total=len(samples),
        is_complete=is_complete,
        note="" if is_complete else f"subset: {len(samples):,} of {info.num_official:,} questions",
    )


def _files(info: SuiteInfo, source: Path | None) -> list[Path]:
    if source is None:
        return download(DATASETS[info.dataset].hub, "dev", info.name)
    if source.is_file():
        return [source]
    for folder in (source / "eval" / info.folder, source / info.folder, source):
        if files := sorted({path for pattern in info.files for path in folder.glob(pattern)}):
            return files
    raise DataError(
        f"{source} holds no files of {info.name}",
        hint=f"Put {' or '.join(info.files)} into {source / info.folder}",
    )
