"""The headings above a place in a document.

Holds the path of open headings and the judgement which of them says what a passage is about. Finding
heading lines is the work of `models.atomizer.blocks`.
"""

from __future__ import annotations

import re

from models.atomizer.lexicon import GENERIC_HEADINGS

_MAX_HEADING_CHARS = 60

_MARKS = re.compile(
    r"^#{1,6}\s+|^(?:\d{1,2}(?:\.\d{1,2}){0,3}|[A-Z](?:\.\d{1,2}){1,3})\.?\s+|[\s#*_:]+$|^[*_]+|\.\s\d{1,4}$"
)
_CODE = re.compile(r"=|(?:[a-f]*\d){5}")
_WORD = re.compile(r"[^\W\d_]+")


def clean_heading(line: str) -> str:
    """Return what a heading line says, without marks, numbering and page number, on one line."""
    text = " ".join(line.split())
    while (shorter := _MARKS.sub("", text)) != text:
        text = shorter
    return text


class Outline:
    """The open headings while walking down a document.

    Attributes:
        section: Nearest heading above, whatever it says; empty before the first.
        heading: Nearest heading above that names a subject; empty where there is none.
    """

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []
        self.section = ""
        self.heading = ""

    def enter(self, level: int, line: str) -> None:
        """Open a heading; one of unknown level, 0, closes only others of unknown level."""
        self._path = [(above, h) for above, h in self._path if above > 0 and (level == 0 or above < level)]
        self._path.append((level, clean_heading(line)))
        self.section = self._path[-1][1]
        self.heading = next((h for _, h in reversed(self._path) if _names_subject(h)), "")


def _names_subject(heading: str) -> bool:
    words = _WORD.findall(heading.lower())
    is_sensible = bool(words) and len(heading) <= _MAX_HEADING_CHARS and not _CODE.search(heading)
    return is_sensible and not GENERIC_HEADINGS.issuperset(words)
