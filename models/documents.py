"""What a document is: text with pages, before any model has seen it."""

from __future__ import annotations

import bisect
import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, as a half-open range of characters of the document's text.

    Args:
        index: 0-based position in the file.
        label: What is printed on the page, `iv` or `12`; the 1-based index where nothing is known.
    """

    index: int
    label: str
    char_start: int
    char_end: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """Readable text with its pages; pages follow one another and cover the text.

    Args:
        source: Where it came from: a path, or `-` for standard input.
        title: From the file's metadata, its first heading, or its name.
        media_type: `application/pdf`, `text/markdown`, ...
        warnings: What was lost on the way, one line each: pages without text, replaced bytes.
    """

    source: str
    title: str
    media_type: str
    text: str
    pages: tuple[Page, ...]
    warnings: tuple[str, ...] = ()

    @property
    def content_hash(self) -> str:
        """SHA-256 of the text, in hex: the same content under two paths has one hash."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    def page_at(self, char_offset: int) -> Page:
        """Return the page that holds the character at `char_offset`; the last page beyond the end."""
        starts = [p.char_start for p in self.pages]
        return self.pages[max(0, bisect.bisect_right(starts, char_offset) - 1)]
