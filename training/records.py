"""Annotation records on disk: JSON lines, plain or gzipped, one `AnnotationRecord` a line.

Holds reading and writing them, and the error for data that cannot be read. Where records come from is
`training.datasets` and `training.annotation`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from models.atoms import AnnotationRecord
from models.errors import D2AError


class DataError(D2AError):
    """A data file is missing or not in the expected format."""


def write_records(path: Path, records: Iterable[AnnotationRecord]) -> None:
    """Write records as JSON lines; a name that ends in `.gz` is compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record.to_dict(), ensure_ascii=False) + "\n")


def read_records(path: Path) -> list[AnnotationRecord]:
    """Read records from JSON lines, plain or gzipped.

    Raises:
        DataError: The file is missing or a line is no record.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return [AnnotationRecord.from_dict(json.loads(line)) for line in file]
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist", hint="Make it with `python -m training.prepare`") from error
    except (KeyError, TypeError, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: not annotation records: {error}") from error
