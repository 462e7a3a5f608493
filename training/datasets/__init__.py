"""Question-answering sets as contexts with questions, whatever their form and wherever they are.

    from training.datasets import load, load_sources
    contexts = list(load("squad", Path("data"), "train"))     # a file, a folder of sets, or None for the hub
    sources = load_sources(None, None)                        # the paper's five source sets

Holds loading by name. The forms are in the modules of the families, de-duplication against evaluation sets in
`overlap`, what took part in a run in `manifest`, and the shares of the sources in `mixture`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from training.datasets.context import Answer, Context, Paragraph, QAItem
from training.datasets.files import Reading, download
from training.datasets.registry import DATASETS, EVAL_SETS, PAPER_SOURCES, DatasetInfo, EvalSet, family_of
from training.records import DataError

__all__ = [
    "DATASETS",
    "EVAL_SETS",
    "PAPER_SOURCES",
    "Answer",
    "Context",
    "DatasetInfo",
    "EvalSet",
    "LoadedSource",
    "Paragraph",
    "QAItem",
    "family_of",
    "find_sources",
    "load",
    "load_eval_sets",
    "load_sources",
]


@dataclass(frozen=True, kw_only=True)
class LoadedSource:
    """A split of a set, read.

    Args:
        files: What it was read from.
        dropped: How many questions (or samples without a text) the parser left out for each reason.
    """

    name: str
    split: str
    contexts: tuple[Context, ...]
    files: tuple[Path, ...]
    dropped: Counter[str] = field(default_factory=Counter)


def load(name: str, source: Path | None = None, split: str = "train") -> Iterator[Context]:
    """Yield the contexts of a set.

    Args:
        source: A file of the set, its folder, a folder of sets; None for the Hugging Face hub.
        split: `train` or `dev`; of no matter where `source` is a file.

    Raises:
        DataError: An unknown set, no such file or split, another format, or a hub that cannot be reached.
    """
    yield from load_source(name, source, split).contexts


def load_source(name: str, source: Path | None = None, split: str = "train") -> LoadedSource:
    """Read a split of a set, with the files that it was read from; see `load`."""
    info = dataset_info(name)
    files = _files(info, source, split)
    reading = Reading(name=name, mode=info.mode)
    contexts = tuple(context for path in files for context in _parsed(info, path, reading))
    return LoadedSource(name=name, split=split, contexts=contexts, files=tuple(reading.files), dropped=+reading.dropped)


def load_sources(names: Iterable[str] | None = None, data: Path | None = None) -> list[LoadedSource]:
    """Read the training splits of sets.

    Args:
        names: Sets; None for all that the folder holds, or for the paper's five source sets from the hub.
        data: A folder of sets, or one with such a folder as `train`; None for the hub.

    Raises:
        DataError: See `load`; or a folder that holds no set.
    """
    if names is None:
        names = PAPER_SOURCES if data is None else find_sources(data)
    return [load_source(name, data, "train") for name in names]


def find_sources(data: Path) -> list[str]:
    """Return the sets of which a folder holds training files, in the order of the registry.

    Raises:
        DataError: The folder holds none.
    """
    found = [name for name, info in DATASETS.items() if _in_folder(info, data, "train")]
    if not found:
        folders = ", ".join(dict.fromkeys(i.folder for i in DATASETS.values() if "train" in i.files))
        raise DataError(f"{data} holds no training set", hint=f"Put sets into folders of these names: {folders}")
    return found


def load_eval_sets(data: Path | None = None, names: Iterable[str] | None = None) -> dict[str, list[Context]]:
    """Read the evaluation sets that training must not see, by name; LongBench by subset.

    Args:
        data: A folder of sets, or one with such a folder as `eval`; sets that are not there are left out.
            None for the published sets on the hub.
        names: Sets of `EVAL_SETS`; None for all of them.

    Raises:
        DataError: An unknown set, or see `load`.
    """
    names = tuple(EVAL_SETS if names is None else names)
    if unknown := [name for name in names if name not in EVAL_SETS]:
        raise DataError(
            f"evaluation set must be one of {', '.join(EVAL_SETS)}, got {unknown[0]!r}", hint="Name one of these"
        )
    found: dict[str, list[Context]] = {}
    for item in map(EVAL_SETS.__getitem__, names):
        info = DATASETS[item.dataset]
        if data is None:
            files = download(info.hub, "dev", item.name) if info.hub and item.is_published_dev else []
        else:
            files = _glob(_eval_folder(data) / info.folder, item.files)
        reading = Reading(name=item.dataset, mode=info.mode)
        for context in (c for path in files for c in _parsed(info, path, reading)):
            found.setdefault(context.dataset if item.name == "longbench" else item.name, []).append(context)
    return found


def dataset_info(name: str) -> DatasetInfo:
    """Return what is known of a set.

    Raises:
        DataError: No set has this name.
    """
    if name not in DATASETS:
        raise DataError(f"dataset must be one of {', '.join(DATASETS)}, got {name!r}", hint="Name one of these")
    return DATASETS[name]


def _files(info: DatasetInfo, source: Path | None, split: str) -> list[Path]:
    if source is None:
        if info.hub is None:
            raise DataError(
                f"{info.name} is not on the Hugging Face hub",
                hint=f"Download it from {info.homepage} and pass its folder with --data",
            )
        return download(info.hub, split, info.name)
    if source.is_file():
        return [source]
    if not source.exists():
        raise DataError(f"{source} does not exist", hint="Pass the folder of the data with --data")
    if split not in info.files:
        raise DataError(
            f"{info.name}: split must be one of {sorted(info.files)}, got {split!r}", hint="Name one of these splits"
        )
    files = _in_folder(info, source, split)
    if not files:
        raise DataError(
            f"{source} holds no {split} files of {info.name}",
            hint=f"Put {' or '.join(info.files[split])} into {source / info.folder}",
        )
    return files


def _in_folder(info: DatasetInfo, data: Path, split: str) -> list[Path]:
    """Return a set's files in the folder of a collection, in its `train` or `eval`, or in the set's own folder."""
    inner = data / "train" if split == "train" else _eval_folder(data)
    for folder in (inner / info.folder, data / info.folder, data):
        if folder.is_dir() and (folder is not data or data.name == info.folder):
            files = _glob(folder, info.files.get(split, ()))
            if files:
                return files
    return []


def _eval_folder(data: Path) -> Path:
    beside = data.parent / "eval" if data.name == "train" else data / "eval"
    return beside if beside.is_dir() else data


def _glob(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def _parsed(info: DatasetInfo, path: Path, reading: Reading) -> Iterator[Context]:
    reading.files.append(path)
    try:
        yield from info.parse(path, reading)
    except DataError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise DataError(
            f"{path} is not in the format of {info.name}: {type(error).__name__} {error}",
            hint=f"See {info.homepage or 'https://huggingface.co/datasets/' + info.hub.repo_id} for that format",
        ) from error
