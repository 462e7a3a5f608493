"""Suites by name: samples over documents, with the references of each set's official evaluation.

    from training.bench.suites import load_suite
    [suite] = load_suite("squad", Path("data"), limit=100)

Data comes from a folder of sets, a folder or file of the one set, or the Hugging Face hub. Holds names and the choice
of files; the sets are in `registry`, their references in `references`, documents and draws in `assemble`.
"""

from __future__ import annotations

from pathlib import Path

from training.bench.samples import REFUSAL_SUITES, Suite, is_refusal_suite
from training.bench.suites.assemble import read_suite
from training.bench.suites.registry import SELF_CONTAINED, SUITES, SuiteInfo
from training.datasets.files import download
from training.records import DataError

__all__ = ["GROUPS", "NAMES", "SELF_CONTAINED", "SUITES", "SuiteInfo", "load_suite"]

_LONGBENCH = tuple(name for name in SUITES if name.startswith("longbench/"))
_ABOUT_DOCUMENTS = tuple(name for name in _LONGBENCH if name not in SELF_CONTAINED)
# Names that stand for several suites: those of them that the data can feed.
GROUPS = {
    "longbench": _LONGBENCH,
    "all": tuple(SUITES),
    # SQuAD 2.0 has the answerable questions of SQuAD, and people's unanswerable ones.
    REFUSAL_SUITES: ("squad_v2", "drop", "ropes", "2wiki", "qasper", *_ABOUT_DOCUMENTS),
}
NAMES = (*SUITES, *GROUPS)
CONTRAST_SETS = "https://github.com/allenai/contrast-sets"


def load_suite(name: str, source: Path | None = None, *, limit: int | None = None, seed: int = 0) -> list[Suite]:
    """Load the suites of a name.

    Args:
        name: One of `SUITES`, or of `GROUPS` for those of its suites that the source has. `refusal/NAME` gives those
            of a name with unanswerable questions besides, as far as there are any; `refusal` is `refusal/refusal`.
        source: A folder of sets (or one with such a folder as `eval`), the folder of the set, or a file of it; None
            for the Hugging Face hub.
        limit: Samples to draw at random from each suite, answerable ones for a refusal suite, on top of which the
            unanswerable ones come; the documents stay complete. None for all.

    Raises:
        DataError: An unknown suite, no such file, another format, or a hub that cannot be reached.
    """
    if is_refusal_suite(name):
        return _refusal(name.partition("/")[2] or REFUSAL_SUITES, source, limit, seed)
    return _read(name, source, limit, seed)


def _refusal(name: str, source: Path | None, limit: int | None, seed: int) -> list[Suite]:
    from training.bench.refusal_samples import refusal  # it imports from this package

    suites = [refusal(suite, seed, limit=limit) for suite in _read(name, source, None, seed)]
    if found := [suite for suite in suites if any(sample.kind != "answerable" for sample in suite.samples)]:
        return found
    raise DataError(f"{name} has no question that its document cannot answer", hint="Take another suite, as squad_v2")


def _read(name: str, source: Path | None, limit: int | None, seed: int) -> list[Suite]:
    if name in SUITES:
        found = [(SUITES[name], _files(SUITES[name], source))]
    elif name in GROUPS:
        found = _available(name, source)
    else:
        raise DataError(f"suite must be one of {', '.join(NAMES)}, got {name!r}", hint="Name one of these")
    suites = [read_suite(info, files, limit=limit, seed=seed) for info, files in found]
    # A file of LongBench may lack some of its parts.
    if suites := [suite for suite in suites if suite.num_total]:
        return suites
    raise DataError(
        f"{source or 'the hub'} holds no questions of {name}", hint="Pass the folder of the data with --data"
    )


def _available(name: str, source: Path | None) -> list[tuple[SuiteInfo, list[Path]]]:
    """Return those suites of a group that the source can feed, with their files."""
    infos = [SUITES[member] for member in GROUPS[name]]
    if source is None:
        return [(info, _files(info, None)) for info in infos if info.hub is not None]
    _check(source)
    # The names of files alone do not tell one set from another.
    found = [(info, _local_files(info, source, is_own=name == "longbench")) for info in infos]
    return [(info, files) for info, files in found if files]


def _files(info: SuiteInfo, source: Path | None) -> list[Path]:
    if source is None and info.hub is None:
        raise DataError(
            f"{info.name} is not on the Hugging Face hub",
            hint=f"Take it from {CONTRAST_SETS} and pass its folder with --data",
        )
    if source is None:
        return download(info.hub, "dev", info.name)
    _check(source)
    if files := _local_files(info, source, is_own=True):
        return files
    hint = f"Put {' or '.join(info.files)} into {source / info.folder}"
    raise DataError(f"{source} holds no files of {info.name}", hint=hint)


def _check(source: Path) -> None:
    if not source.exists():
        raise DataError(f"{source} does not exist", hint="Pass the folder of the data with --data")


def _local_files(info: SuiteInfo, source: Path, *, is_own: bool) -> list[Path]:
    """Return the files of a set in the order in which to read them.

    Args:
        is_own: The source may be the set's own folder or file, whatever its name.
    """
    if source.is_file():
        return [source] if is_own else []
    own = (source,) if is_own or source.name == info.folder else ()
    for folder in (source / "eval" / info.folder, source / info.folder, *own):
        found = (path for pattern in info.files for path in sorted(folder.glob(pattern)) if path.is_file())
        if files := list(dict.fromkeys(found)):
            return files
    return []
