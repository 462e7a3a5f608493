"""EPUB books."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models.errors import DocumentError
from models.readers import read

Make = Callable[[dict[str, str]], bytes]
Write = Callable[[str, bytes | str], str]

_CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)


def _package(*files: str) -> str:
    items = "".join(f'<item id="i{n}" href="{f}" media-type="application/xhtml+xml"/>' for n, f in enumerate(files))
    order = "".join(f'<itemref idref="i{n}"/>' for n in range(len(files)))
    return (
        '<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/">'
        "<metadata><dc:title>Two Winters</dc:title></metadata>"
        '<manifest><item id="nav" href="nav.xhtml" properties="nav" media-type="application/xhtml+xml"/>'
        f'{items}</manifest><spine><itemref idref="nav"/>{order}</spine></package>'
    )


def _book(*files: str) -> dict[str, str]:
    return {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": _CONTAINER,
        "OEBPS/book.opf": _package(*files),
    }


def test_each_item_of_the_reading_order_is_a_page(make_zip: Make, write: Write) -> None:
    members = _book("text/two%20b.xhtml", "one.xhtml") | {
        "OEBPS/one.xhtml": "<html><body><h1>Second</h1><p>Thaw.</p></body></html>",
        "OEBPS/text/two b.xhtml": "<html><body><h1>First</h1><p>Snow.</p></body></html>",
        "OEBPS/nav.xhtml": "<html><body><p>Contents</p></body></html>",
    }
    seen: list[tuple[int, int | None]] = []
    document = read(write("a.epub", make_zip(members)), on_page=lambda done, total: seen.append((done, total)))
    pages = [document.text[p.char_start : p.char_end] for p in document.pages]
    assert pages == ["# First\n\nSnow.\n\n", "# Second\n\nThaw."]
    assert document.title == "Two Winters"
    assert seen == [(1, 2), (2, 2)]


def test_empty_elements_of_xhtml_swallow_no_text(make_zip: Make, write: Write) -> None:
    page = (
        '<html xmlns="http://www.w3.org/1999/xhtml"><head><title/><script src="x.js"/></head>'
        '<body><p><a id="p1"/>Still <span/>here.</p></body></html>'
    )
    assert read(write("a.epub", make_zip(_book("one.xhtml") | {"OEBPS/one.xhtml": page}))).text == "Still here."


def test_a_missing_chapter_is_named_and_the_others_are_kept(make_zip: Make, write: Write) -> None:
    members = _book("one.xhtml", "two.xhtml") | {"OEBPS/two.xhtml": "<html><body><p>Kept.</p></body></html>"}
    document = read(write("a.epub", make_zip(members)))
    assert document.text == "Kept."
    assert "section 1 is lost" in document.warnings[0]
    assert "OEBPS/one.xhtml is missing" in document.warnings[0]


def test_protected_books_are_refused_but_obfuscated_fonts_do_not_matter(make_zip: Make, write: Write) -> None:
    def encryption(uri: str) -> str:
        return f'<encryption><CipherData><CipherReference URI="{uri}"/></CipherData></encryption>'

    members = _book("one.xhtml") | {"OEBPS/one.xhtml": "<html><body><p>Text.</p></body></html>"}
    font = make_zip(members | {"META-INF/encryption.xml": encryption("OEBPS/font.otf")})
    assert read(write("font.epub", font)).text == "Text."
    locked = make_zip(members | {"META-INF/encryption.xml": encryption("OEBPS/one.xhtml")})
    with pytest.raises(DocumentError, match=r"locked\.epub: is protected by DRM"):
        read(write("locked.epub", locked))


def test_a_book_without_a_reading_order_is_damaged(make_zip: Make, write: Write) -> None:
    with pytest.raises(DocumentError, match=r"a\.epub: is cut short or damaged \(the reading order is empty\)"):
        read(write("a.epub", make_zip(_book())))
