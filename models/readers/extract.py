"""What a reader hands over, and the document that is made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from models.documents import Document, Page
from models.errors import DocumentError
from models.readers.clean import normalise, squash

Progress = Callable[[int, int | None], None]

_NO_TITLE = re.compile(
    r"\W*(untitled|title|unknown|anonymous|document|presentation|no title|none|null)?\W*\d*\W*"
    r"|microsoft (word|powerpoint|excel)\b.*"
    r"|.*\.(docx?|pdf|pptx?|xlsx?|tex|dvi|indd|qxd|html?|txt|rtf|odt|ps|eps|cdr|ai|p65|fm)",
    re.IGNORECASE,
)
_TITLE_CHARACTERS = range(4, 151)
_NUM_TITLE_LINES = 3  # of the first page that may hold the title


@dataclass(frozen=True, kw_only=True)
class Extract:
    """The readable content of one file.

    Args:
        pages: Their text; joined without a separator it is the document's text.
        labels: What is printed on each page; empty for 1, 2, 3 ...
        titles: Candidates, best first; unsuitable ones are passed over.
        has_title_line: Whether the first lines may be a title.
    """

    pages: Sequence[str]
    labels: Sequence[str] = ()
    titles: Sequence[str | None] = ()
    has_title_line: bool = True
    warnings: Sequence[str] = ()


def to_document(extract: Extract, *, source: str, media_type: str) -> Document:
    """Place the pages in the text and choose a title.

    Raises:
        DocumentError: Where no page holds text.
    """
    text = "".join(extract.pages)
    if not text.strip():
        raise DocumentError(f"{source}: holds no text", hint="Give a file with readable text")
    labels = extract.labels or [str(i + 1) for i in range(len(extract.pages))]
    pages, offset = [], 0
    for index, (page, label) in enumerate(zip(extract.pages, labels, strict=True)):
        pages.append(Page(index=index, label=label, char_start=offset, char_end=offset + len(page)))
        offset += len(page)
    return Document(
        source=source,
        title=_title(extract, text, source),
        media_type=media_type,
        text=text,
        pages=tuple(pages),
        warnings=tuple(dict.fromkeys(extract.warnings)),
    )


def _title(extract: Extract, text: str, source: str) -> str:
    """The first candidate that is a title, else the first line that looks like one, else the file's name."""
    stem = PurePath(source).stem if source != "-" else "standard input"
    for candidate in extract.titles:
        title = squash(normalise(candidate or ""))
        if len(title) > 1 and not _NO_TITLE.fullmatch(title) and title != stem:
            return title[: _TITLE_CHARACTERS.stop]
    lines = [line for line in text.split("\n") if line.strip()][: _NUM_TITLE_LINES * extract.has_title_line]
    return next((t for t in map(_as_title, lines) if t), stem)


def _as_title(line: str) -> str:
    """The line without heading marks, or nothing where it reads like a sentence, a table row or a number."""
    title = squash(line.lstrip("#"))
    letters = sum(c.isalpha() for c in title)
    is_title = len(title) in _TITLE_CHARACTERS and letters > 0.6 * len(title) and title[0].isalnum()
    if not line.startswith("#"):
        is_title = is_title and not title.endswith((".", ",", ";", ":")) and not re.search(r" \| |^.{,20}: ", title)
    return title if is_title and (title[0].isupper() or not title[0].isascii()) else ""
