"""Headings of a PDF, told by type size and weight, as the `#` lines that other readers leave too.

Holds the styled lines of a page and the judgement which of them are headings. A PDF has no headings, only
text in some font: in doubt a line stays a line, because headings are context and do not become atoms.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from models.readers.clean import normalise, squash

_BOLD = re.compile(r"bold|black|heavy|demi|medi(um)?(ital|obli)?$|cmb?ssbx|cmbx|sfbx|\bbx\d", re.IGNORECASE)
_LARGER = 1.1  # than the body
_NOT_SMALLER = 0.9
_STYLED_SHARE = 0.85  # of a line; a raised reference may stand in a heading
_MAX_HEADING_SHARE = 0.3  # of a document: beyond, as on a poster, size says nothing
_MAX_WORDS = 14
_MAX_CHARACTERS = 110
_MAX_LEVEL = 6

_SENTENCE_OR_LEADER = re.compile(r"[.,;:!…。，；：！]$|\.{4,}|(\. ){4,}|[=|@$€£%†‡§¶*∗]|\d[.,]\d\d\b|^\W")
NUMBERED = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,3}\.?|[A-Z](?:\.\d{1,2}){1,3}\.?|[A-Z]\.|[IVX]{1,4}\.)\s+")


@dataclass(frozen=True, slots=True)
class Run:
    """Text in one font, as a page draws it.

    Args:
        size: Of the type, in points as seen on the page.
    """

    text: str
    size: float
    is_bold: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page with its prevailing style; `size` 0 where it is unknown or has no type of its own."""

    text: str
    size: float = 0.0
    is_bold: bool = False


def read_runs(page: Any) -> tuple[str, list[Run]]:
    """Return the text of a page of pypdf, and the same text as runs."""
    runs: list[Run] = []

    def visit(text: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        scale = (abs(tm[0]) + abs(tm[1])) * (abs(cm[0]) + abs(cm[1]))
        runs.append(Run(text, round(size * scale, 1), _is_bold(str((font or {}).get("/BaseFont", "")))))

    text = page.extract_text(visitor_text=visit)
    # The visitor is a by-product of pypdf: where it misses something, the text counts and styles do not.
    return text, runs if "".join(run.text for run in runs) == text else [Run(text, 0.0, False)]


def to_lines(runs: Iterable[Run]) -> list[Line]:
    """Return the lines of a page; joined by newlines they are its text."""
    lines: list[list[Run]] = [[]]
    for run in runs:
        first, *others = run.text.split("\n")
        lines[-1].append(replace(run, text=first))
        lines += [[replace(run, text=other)] for other in others]
    return [_line(runs) for runs in lines]


def mark_headings(pages: Sequence[Sequence[Line]]) -> list[str]:
    """Return the text of each page, its headings as lines that begin with `#`, one sign more a level.

    A heading is a short line without the marks of a sentence that is set larger than the body, or bold
    where the body is not. Levels follow size and weight, then the depth of the numbering.
    """
    sizes: Counter[float] = Counter()
    bold: Counter[bool] = Counter()
    for line in (line for page in pages for line in page if line.size):
        weight = sum(map(str.isalnum, line.text))
        sizes[line.size] += weight
        bold[line.is_bold] += weight
    body = max(sizes, key=lambda size: (sizes[size], -size), default=0.0)
    is_body_bold = bold[True] > bold[False]
    headings = [_headings(page, body, is_body_bold) for page in pages]
    if sum(len(h.text) for page in headings for h in page.values()) > _MAX_HEADING_SHARE * bold.total():
        headings = [{} for _ in pages]
    ranks = sorted({_rank(h) for page in headings for h in page.values() if h.text}, reverse=True)
    return [_marked(page, found, ranks) for page, found in zip(pages, headings, strict=True)]


@functools.lru_cache(maxsize=256)
def _is_bold(font_name: str) -> bool:
    return bool(_BOLD.search(font_name))


def _line(runs: list[Run]) -> Line:
    """Join runs; the size is that of most of the line, and bold is what is bold nearly throughout."""
    sizes: Counter[float] = Counter()
    bold = 0
    for run in runs:
        weight = sum(map(str.isalnum, run.text))
        sizes[run.size] += weight
        bold += weight * run.is_bold
    total = sizes.total()
    text = "".join(run.text for run in runs)
    if not total:
        return Line(text)
    size, weight = sizes.most_common(1)[0]
    return Line(text, size if weight >= _STYLED_SHARE * total else min(sizes), bold >= _STYLED_SHARE * total)


def _headings(page: Sequence[Line], body: float, is_body_bold: bool) -> dict[int, Line]:
    """Return the headings of a page by the index of their first line, each as one line."""
    found: dict[int, Line] = {}
    stands_out = [
        line.size >= _LARGER * body or (line.is_bold and not is_body_bold and line.size >= _NOT_SMALLER * body)
        for line in page
    ]
    filled = [i for i, line in enumerate(page) if line.text.strip()]
    for _, group in groupby(_runs_of_style(page, filled, stands_out), key=lambda item: item[0]):
        indices = [index for _, index in group]
        after = next((page[i].text.strip() for i in filled if i > indices[-1]), "")
        text = squash(normalise(" ".join(page[i].text for i in indices)))
        if stands_out[indices[0]] and _reads_like_heading(text) and not after[:1].islower():
            found[indices[0]] = replace(page[indices[0]], text=text)
            found.update({i: replace(page[i], text="") for i in indices[1:]})
    return found


def _runs_of_style(page: Sequence[Line], filled: list[int], stands_out: list[bool]) -> Iterator[tuple[int, int]]:
    """Number the groups of lines that may be one heading: in one style that stands out, none numbered anew."""
    group = 0
    for previous, index in zip([None, *filled], filled, strict=False):
        if previous is not None:
            is_alike = stands_out[previous] and stands_out[index] and _style(page[previous]) == _style(page[index])
            group += not is_alike or bool(NUMBERED.match(page[index].text.strip()))
        yield group, index


def _style(line: Line) -> tuple[int, bool]:
    return math.floor(line.size + 0.5), line.is_bold


def _rank(heading: Line) -> tuple[int, bool, int]:
    """Return what orders headings: a style, and the depth of numbering, since a title may look like a section."""
    number = NUMBERED.match(heading.text)
    return (*_style(heading), -len(number[1].rstrip(".").split(".")) if number else 0)


def _reads_like_heading(text: str) -> bool:
    title = NUMBERED.sub("", text, count=1)
    letters = sum(map(str.isalpha, title))
    is_short = 3 <= len(text) <= _MAX_CHARACTERS and len(text.split()) <= _MAX_WORDS
    if not is_short or letters < max(2, 0.6 * len(title.replace(" ", ""))):
        return False
    return not title[0].islower() and not _SENTENCE_OR_LEADER.search(text)


def _marked(page: Sequence[Line], headings: dict[int, Line], ranks: list[tuple[int, bool, int]]) -> str:
    out = []
    for index, line in enumerate(page):
        heading = headings.get(index)
        if heading is None:
            out.append(line.text)
        elif heading.text:
            out.append("#" * min(_MAX_LEVEL, 1 + ranks.index(_rank(heading))) + f" {heading.text}")
    return "\n".join(out)
