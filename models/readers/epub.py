"""EPUB books: a page for each item of the reading order, through the HTML reader."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from models.errors import DocumentError
from models.readers.archive import Archive, attribute, local_name
from models.readers.clean import damage
from models.readers.encoding import decode
from models.readers.extract import Extract, Progress
from models.readers.html import render

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_TEXT_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read an EPUB book; `password` is not needed.

    Raises:
        DocumentError: For a damaged container, one without a reading order, or one under DRM.
    """
    archive = Archive(data, name=name)
    title, items = _reading_order(archive)
    encrypted = _encrypted(archive)
    if encrypted.intersection(items):
        raise DocumentError(f"{name}: is protected by DRM", hint="Give a copy without protection")
    texts: list[str] = []
    warnings: list[str] = []
    for done, item in enumerate(items, start=1):
        text = ""
        try:
            raw, replaced = decode(archive.read(item))
            text = render(raw)[0]
            warnings += [f"{item}: {warning}" for warning in replaced]
        except DocumentError as e:
            warnings.append(f"section {done} is lost: {e.message.removeprefix(f'{name}: ')}")
        texts.append(text)
        on_page(done, len(items))
    last = max((i for i, text in enumerate(texts) if text), default=0)
    pages = [text + "\n\n" if text and i < last else text for i, text in enumerate(texts)]
    return Extract(pages=pages, titles=[title], warnings=[*warnings, *damage(texts)])


def _reading_order(archive: Archive) -> tuple[str | None, list[str]]:
    """The book's title and the paths of its text items, without the table of contents."""
    roots = [e for e in archive.xml(_CONTAINER).iter() if local_name(e) == "rootfile"]
    path = attribute(roots[0], "full-path") if roots else None
    if not path:
        raise archive.damaged("no package document is named")
    package = archive.xml(path)
    folder = posixpath.dirname(path)
    manifest, title = {}, None
    for element in package.iter():
        if local_name(element) == "item" and "nav" not in element.get("properties", "").split():
            manifest[element.get("id")] = element
        elif local_name(element) == "title" and title is None:
            title = element.text
    spine = [
        manifest[e.get("idref")] for e in package.iter() if local_name(e) == "itemref" and e.get("idref") in manifest
    ]
    texts = [item for item in spine if item.get("media-type", _TEXT_TYPES[0]) in _TEXT_TYPES]
    if not texts:
        raise archive.damaged("the reading order is empty")
    return title, [posixpath.normpath(posixpath.join(folder, unquote(item.get("href", "")))) for item in texts]


def _encrypted(archive: Archive) -> set[str]:
    """Paths of encrypted members; fonts often are, and do not matter."""
    if _ENCRYPTION not in archive:
        return set()
    references = (e for e in archive.xml(_ENCRYPTION).iter() if local_name(e) == "CipherReference")
    return {posixpath.normpath(unquote(attribute(e, "URI") or "")) for e in references}
