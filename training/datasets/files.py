"""Files of question-answering sets: what a file holds, whatever it is packed in, and where the hub keeps it.

Holds reading JSON, JSON lines, concatenated JSON, csv and parquet, plain, gzipped or zipped; fingerprints; and
downloads from the Hugging Face hub. What the values mean is for the modules of the formats.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.records import DataError

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a parser is told, and what it counts.

    Args:
        name: The set's name, for the contexts.
        mode: Of its contexts.
        dropped: How many questions were left out for each reason; parsers add to it.
        files: What was read; parsers add what they read besides the file that they were given.
    """

    name: str
    mode: str
    dropped: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class HubFiles:
    """Where the Hugging Face hub keeps a set.

    Args:
        patterns: Glob of the files of each split.
        revision: Branch; `refs/convert/parquet` holds the hub's own conversion of sets that need a script.
    """

    repo_id: str
    patterns: dict[str, str] = field(default_factory=dict)
    revision: str = "main"


def read_data(path: Path, columns: Sequence[str] = ()) -> Any:
    """Read what a file holds.

    Args:
        columns: Of parquet, those to read, as `column` or `column.field`; none for all.

    Returns:
        The value of a JSON file; a list of rows of JSON lines, concatenated JSON, csv or parquet.

    Raises:
        DataError: Missing, or none of these forms.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            # `read_table` would take fields out of their columns.
            return parquet.ParquetFile(path).read(list(columns) or None).to_pylist()
        return _decode(path.name, path.read_bytes())
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist", hint="Pass the folder of the data with --data") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="Download the file again") from error


def _decode(name: str, data: bytes) -> Any:
    if data.startswith(b"\x1f\x8b"):
        return _decode(re.sub(r"\.gz(ip)?$", "", name), gzip.decompress(data))
    if data.startswith(b"PK\x03\x04"):
        return _unzip(data)
    text = data.decode("utf-8-sig")
    if name.endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text)))
    values = list(_json_values(text))
    return values if name.endswith(".jsonl") or len(values) != 1 else values[0]


def _unzip(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = [
            n for n in archive.namelist() if n.endswith((".json", ".jsonl", ".csv")) and not n.startswith("__MACOSX")
        ]
        members = [_decode(name, archive.read(name)) for name in names]
    return members[0] if len(members) == 1 else [row for member in members for row in member]


def _json_values(text: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), _SPACE.match(text).end()
    while place < len(text):
        value, place = decoder.raw_decode(text, place)
        yield value
        place = _SPACE.match(text, place).end()


def stem(path: Path) -> str:
    """Return the name of a file up to its first dot, which makes numbers of its contexts unique in their set."""
    return path.name.split(".")[0]


def sha256(path: Path) -> str:
    """Return the fingerprint of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(hub: HubFiles, split: str, name: str) -> list[Path]:
    """Fetch the files of a split from the Hugging Face hub, or find them in its cache.

    Raises:
        DataError: The hub has no such split, cannot be reached, or `huggingface_hub` is missing.
    """
    if split not in hub.patterns:
        raise DataError(
            f"{name}: split must be one of {sorted(hub.patterns)}, got {split!r}", hint="Name one of these splits"
        )
    hint = f"Download https://huggingface.co/datasets/{hub.repo_id} elsewhere and pass its folder with --data"
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DataError(f"{name}: huggingface_hub is not installed", hint="Install huggingface_hub") from error
    pattern = hub.patterns[split]
    try:
        folder = snapshot_download(hub.repo_id, repo_type="dataset", revision=hub.revision, allow_patterns=pattern)
    except Exception as error:  # httpx, hub and file system errors share no base class
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise DataError(f"{name} cannot be fetched from the Hugging Face hub: {reason}", hint=hint) from error
    files = sorted(Path(folder).glob(pattern))
    if not files:
        raise DataError(f"{name}: {hub.repo_id} has no files {pattern} at {hub.revision}", hint=hint)
    return files
