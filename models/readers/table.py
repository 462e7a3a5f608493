"""Tables of comma or tab separated values: one line a row, each with the names of its columns.

`name: Ada; born: 1815` can be understood without the row above it.
"""

from __future__ import annotations

import csv
import re
from io import StringIO

from models.errors import DocumentError
from models.readers.clean import damage, normalise, squash
from models.readers.encoding import decode
from models.readers.extract import Extract, Progress

_DELIMITERS = ",;\t|"
_SNIFF_LINES = 50
_MAX_FIELD_CHARACTERS = 10_000_000
_NUMBER = re.compile(r"(?!(?:1[5-9]|20)\d\d$)[-+]?[\d.,: /%-]*\d[\d.,: /%-]*")  # a year may head a column


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read a CSV or TSV file; `password` is not needed.

    Raises:
        DocumentError: Where the quoting is broken beyond reading.
    """
    raw, warnings = decode(data)
    text = normalise(raw).strip("\n")
    csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    try:
        rows = [
            row
            for row in csv.reader(StringIO(text, newline=""), delimiter=_delimiter(text))
            if any(map(str.strip, row))
        ]
    except csv.Error as e:
        raise DocumentError(
            f"{name}: is not a readable table ({e})", hint="Export it again as CSV, or rename it to .txt"
        ) from e
    on_page(1, 1)
    return Extract(pages=["\n".join(_lines(rows))], warnings=[*warnings, *damage([raw])], has_title_line=False)


def _delimiter(text: str) -> str:
    """The separator that splits the first lines into equally many cells, and into the most."""

    def quality(delimiter: str) -> tuple[float, int]:
        sample = text.split("\n")[:_SNIFF_LINES]
        sizes = [len(row) for row in csv.reader(sample, delimiter=delimiter) if row]
        common = max(set(sizes), key=sizes.count, default=1)
        return (sizes.count(common) / len(sizes) if common > 1 else 0.0, common)

    return max(_DELIMITERS, key=quality)


def _lines(rows: list[list[str]]) -> list[str]:
    cells = [[squash(cell) for cell in row] for row in rows]
    header = cells[0] if cells else []
    if not _is_header(header) or len(cells) == 1:
        return [" | ".join(filter(None, row)) for row in cells]
    return [
        "; ".join(f"{column}: {cell}" if column else cell for column, cell in _pairs(header, row)) for row in cells[1:]
    ]


def _pairs(header: list[str], row: list[str]) -> list[tuple[str, str]]:
    columns = header + [""] * (len(row) - len(header))
    return [(column, cell) for column, cell in zip(columns, row, strict=False) if cell]


def _is_header(row: list[str]) -> bool:
    names = [cell for cell in row if cell]
    return len(names) > 1 and len(set(names)) == len(names) and not any(_NUMBER.fullmatch(cell) for cell in names)
