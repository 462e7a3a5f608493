"""Tables of a PDF: rows of cells, where two views of a page agree on them.

pypdf's plain text has the right reading order but no gaps; its layout text has the gaps but runs across
columns of prose. A line of the layout counts as a row where the plain text has the same letters in one line,
or in lines that follow one another, which the neighbouring columns of a newspaper page never have.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from models.readers.clean import normalise, squash
from models.readers.typography import Line

_GAP = re.compile(r"\S( {3,})(?=\S)")
_SENTENCE_END = re.compile(r"[.!?;…。！？；-]\W{0,2}$")
_MIN_ROWS = 2
_MIN_ROWS_OF_TWO = 3
_MAX_CELL_CHARACTERS = 60
_MAX_MEAN_CHARACTERS = 30  # columns of prose are wider than columns of most tables
_DRIFT = 6  # characters by which proportional type shifts a cell from row to row, for each cell before it


def looks_tabular(lines: Sequence[Line]) -> bool:
    """Tell whether a page may hold a table: three lines in a row, none of them the middle or end of a sentence."""
    texts = [line.text.strip() for line in lines if line.text.strip()]
    is_rowlike = [not text[0].islower() and not _SENTENCE_END.search(text) for text in texts]
    return any(all(is_rowlike[i : i + 3]) for i in range(len(texts) - 2))


def join_rows(lines: Sequence[Line], layout: str) -> list[Line]:
    """Return the lines of a page with the rows of its tables as `cell | cell`.

    Args:
        layout: The same page, as pypdf's layout mode gives it.
    """
    rows = {_letters("".join(row)): row for table in _tables(layout) for row in table}
    out: list[Line] = []
    index = 0
    while index < len(lines):
        length, row = _row_at(lines, index, rows)
        # A row has no type of its own: it never is a heading, nor a measure for headings.
        out.append(replace(lines[index], text=" | ".join(row), size=0.0) if row else lines[index])
        index += length
    return out


def _row_at(lines: Sequence[Line], index: int, rows: dict[str, list[str]]) -> tuple[int, list[str]]:
    """Return how many lines from `index` on make a row, and its cells; 1 and no cells for any other line."""
    letters = _letters(lines[index].text)
    candidates = [key for key in rows if letters and key.startswith(letters)]
    for length in range(1, len(lines) - index + 1):
        if letters in rows:
            return length, rows[letters]
        candidates = [key for key in candidates if key.startswith(letters)]
        if not candidates or index + length == len(lines):
            break
        letters += _letters(lines[index + length].text)
    return 1, []


def _letters(text: str) -> str:
    return "".join(normalise(text).split())


def _tables(layout: str) -> Iterator[list[list[str]]]:
    """Find lines with gaps that follow one another, have equally many cells for the most part, and line up."""
    block: list[str] = []
    for line in [*layout.split("\n"), ""]:
        if _GAP.search(line):
            block.append(line)
            continue
        yield from _table(block)
        block = []


def _table(block: list[str]) -> Iterator[list[list[str]]]:
    starts = [_starts(line) for line in block]
    rows = [[squash(line[a:b]) for a, b in pairwise([*at, len(line)])] for line, at in zip(block, starts, strict=True)]
    if not rows:
        return
    width, count = Counter(map(len, rows)).most_common(1)[0]
    cells = [cell for row in rows for cell in row]
    if count < max(_MIN_ROWS if width > 2 else _MIN_ROWS_OF_TWO, 0.5 * len(rows)):
        return
    if max(map(len, cells)) > _MAX_CELL_CHARACTERS or sum(map(len, cells)) > _MAX_MEAN_CHARACTERS * len(cells):
        return
    num_prose = sum(row[0][0].islower() and not any(map(str.isdigit, "".join(row))) for row in rows)
    if num_prose >= 0.5 * len(rows):  # gaps of justified type
        return
    alike = [(at, row) for at, row in zip(starts, rows, strict=True) if len(row) == width]
    columns = [[(at[n], len(row[n])) for at, row in alike] for n in range(width)]
    if all(_lines_up(column, _DRIFT * n) for n, column in enumerate(columns) if n):
        middles = [statistics.mean(start + length / 2 for start, length in column) for column in columns]
        yield [_placed(at, row, middles) for at, row in zip(starts, rows, strict=True)]


def _placed(starts: list[int], row: list[str], middles: list[float]) -> list[str]:
    """Return a row with empty cells where it has none for a column; as it is where two cells claim one."""
    at = [start + len(cell) / 2 for start, cell in zip(starts, row, strict=True)]
    nearest = [min((abs(middle - x), n) for n, middle in enumerate(middles))[1] for x in at]
    if len(row) >= len(middles) or len(set(nearest)) < len(row):
        return row
    placed = dict(zip(nearest, row, strict=True))
    return [placed.get(n, "") for n in range(len(middles))]


def _starts(line: str) -> list[int]:
    """Where the cells of a line begin."""
    return [len(line) - len(line.lstrip()), *(match.end() for match in _GAP.finditer(line))]


def _lines_up(cells: list[tuple[int, int]], drift: int) -> bool:
    """Tell whether cells, each a start and a length, share a left edge, a right edge or a middle."""
    edges = zip(*((start, start + length, start + length // 2) for start, length in cells), strict=True)
    return any(max(edge) - min(edge) <= drift for edge in edges)
