"""Readers: a PDF, Word, HTML, EPUB, Markdown, CSV or text file becomes a `Document`.

`discover` finds the files, `read` reads one. Each format has a module with an `extract` function that
turns bytes into pages; it is imported when a file of its kind is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from models.documents import Document
from models.errors import DocumentError
from models.readers.extract import to_document
from models.readers.kinds import sniff
from models.readers.sources import STDIN, discover, load

__all__ = ["discover", "read"]


def read(
    source: str,
    *,
    password: str | None = None,
    stdin: bytes | None = None,
    on_page: Callable[[int, int | None], None] | None = None,
) -> Document:
    """Read a document.

    Args:
        source: A path, or `-` for standard input.
        password: Opens an encrypted PDF; not used where a file is not encrypted.
        stdin: The bytes of standard input, where the caller has read them already.
        on_page: Called with the pages done so far and their total.

    Raises:
        DocumentError: One line that names the file, what is wrong with it, and what to do next.
    """
    data = load(source, stdin=stdin)
    name = "standard input" if source == STDIN else source
    kind = sniff(data, name)
    reader = importlib.import_module(f"models.readers.{kind.module}")
    try:
        content = reader.extract(data, name=name, password=password, on_page=on_page or (lambda done, total: None))
    except RecursionError as e:
        raise DocumentError(
            f"{name}: is nested too deeply", hint="Save it in a simpler format, such as plain text"
        ) from e
    return to_document(content, source=source, media_type=kind.media_type)
