"""Plain text: pages at form feeds, paragraphs from hard-wrapped lines."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from models.readers.clean import damage, normalise, tidy
from models.readers.encoding import decode
from models.readers.extract import Extract, Progress
from models.readers.flow import drop_running_lines, flow

_WRAP_CHARACTERS = range(40, 101)
_CONTINUED_SHARE = 0.25  # of the lines that begin in the middle of a sentence


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read a plain text file; `name` and `password` are not needed."""
    text, warnings = decode(data)
    raw = text.split("\f")
    while len(raw) > 1 and not raw[-1].strip():
        raw.pop()
    pages = [normalise(page) for page in raw]
    pages = flow(drop_running_lines(pages)) if _is_wrapped(pages) else _separate(pages)
    on_page(len(pages), len(pages))
    return Extract(pages=pages, warnings=[*warnings, *damage(raw)])


def _is_wrapped(pages: Sequence[str]) -> bool:
    """True where lines look cut at a margin, rather than each a paragraph or a record of its own."""
    lines = [line.strip() for page in pages for line in page.split("\n") if line.strip()]
    if len(lines) < 4:
        return False
    margin = statistics.quantiles(map(len, lines), n=10)[-1]
    num_continued = sum(line[0].isalpha() and not line[0].isupper() for line in lines)
    return (
        int(margin) in _WRAP_CHARACTERS
        and max(map(len, lines)) <= 1.5 * margin
        and num_continued > _CONTINUED_SHARE * len(lines)
    )


def _separate(pages: Sequence[str]) -> list[str]:
    filled = [tidy(page) for page in pages]
    last = max((i for i, page in enumerate(filled) if page), default=0)
    return [page + "\n\n" if page and i < last else page for i, page in enumerate(filled)]
