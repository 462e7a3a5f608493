"""Word documents: paragraphs, tables, notes, comments, text boxes and tracked insertions.

Reads the XML itself, since the usual libraries each lose one of these. Headings become `#` lines, list
items `- ` lines, table rows `cell | cell`. A Word file has no pages until it is laid out, so it is one page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

from models.readers.archive import Archive, attribute, local_name
from models.readers.clean import damage, normalise, squash, superscript, tidy
from models.readers.extract import Extract, Progress

_MAIN = "word/document.xml"
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes", "commentReference": "comments"}
_NOTE_NAMES = {"footnotes": "Footnote", "endnotes": "Endnote", "comments": "Comment"}
_NOTE_ELEMENTS = ("footnote", "endnote", "comment")
_DELETED = ("del", "moveFrom", "rPr", "pPr", "sectPr", "instrText", "delText", "rt")
_CHARACTERS = {"tab": " ", "ptab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_HEADING = re.compile(r"(?:heading|title)\s*(\d?)", re.I)


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read a Word document; `password` is not needed: an encrypted one is no zip container.

    Raises:
        DocumentError: For a damaged container.
    """
    archive = Archive(data, name=name)
    reader = _Reader(archive)
    blocks = _edge_parts(archive, reader, "header")
    blocks += reader.blocks(archive.xml(_main_part(archive)))
    blocks += reader.unreferenced_notes() + _edge_parts(archive, reader, "footer")
    raw = "".join(blocks)
    on_page(1, 1)
    return Extract(pages=[tidy(normalise(raw))], titles=[_core_title(archive)], warnings=damage([raw]))


class _Reader:
    """Writes blocks, each with the line breaks that follow it; remembers which notes have been shown."""

    def __init__(self, archive: Archive) -> None:
        self._styles = _style_names(archive)
        self._notes = {part: _note_elements(archive, part) for part in _NOTE_NAMES}
        self._shown: set[tuple[str, str]] = set()

    def blocks(self, parent: Element) -> Iterator[str]:
        """Yield the blocks of a body, a cell, a note or a text box."""
        for child in parent:
            tag = local_name(child)
            if tag == "p":
                yield from self._paragraph(child)
            elif tag == "tbl":
                yield from self._table(child)
            elif tag not in _DELETED:
                yield from self.blocks(child)  # sdt, ins, customXml and the like

    def unreferenced_notes(self) -> list[str]:
        """Return the notes that no paragraph refers to."""
        return [
            block
            for part, notes in self._notes.items()
            for number in notes
            if (part, number) not in self._shown
            for block in self._note(part, number)
        ]

    def _paragraph(self, paragraph: Element) -> Iterator[str]:
        text: list[str] = []
        attached: list[str] = []
        for element in _inline(paragraph):
            tag = local_name(element)
            if tag == "txbxContent":
                attached += self.blocks(element)
            elif tag in _NOTES:
                attached += self._note(_NOTES[tag], attribute(element, "id") or "")
            elif tag == "r":
                text.append(_run(element))
            elif tag == "t":
                text.append(element.text or "")
        line = re.sub(r"[ \t]{2,}", " ", "".join(text)).strip()
        if line:
            yield self._mark(paragraph) + line + ("\n" if self._is_item(paragraph) else "\n\n")
        yield from attached

    def _table(self, table: Element) -> Iterator[str]:
        for row in _children(table, "tr"):
            cells = [squash(" ".join(self.blocks(cell))) for cell in _children(row, "tc")]
            if any(cells):
                yield " | ".join(filter(None, cells)) + "\n"
        yield "\n"

    def _note(self, part: str, number: str) -> list[str]:
        note = self._notes[part].get(number)
        if note is None or (part, number) in self._shown:
            return []
        self._shown.add((part, number))
        text = squash(" ".join(self.blocks(note)))
        author = f" by {author}" if (author := attribute(note, "author")) else ""
        return [f"\n{_NOTE_NAMES[part]}{author}: {text}\n\n"] if text else []

    def _mark(self, paragraph: Element) -> str:
        if heading := _HEADING.match(self._style(paragraph)):
            return "\n" + "#" * min(6, int(heading[1] or 1)) + " "
        return "- " if self._is_item(paragraph) else ""

    def _is_item(self, paragraph: Element) -> bool:
        style = self._style(paragraph)
        is_numbered = any(local_name(e) == "numPr" for e in _properties(paragraph, "pPr"))
        return (is_numbered or style.lower().startswith("list")) and not _HEADING.match(style)

    def _style(self, paragraph: Element) -> str:
        ids = [attribute(e, "val") or "" for e in _properties(paragraph, "pPr") if local_name(e) == "pStyle"]
        return self._styles.get(ids[0], ids[0]) if ids else ""


def _properties(element: Element, name: str) -> list[Element]:
    """The properties of a paragraph or a run itself, not of what a text box inside it holds."""
    return [e for child in element if local_name(child) == name for e in child]


def _inline(element: Element) -> Iterator[Element]:
    """Yield runs, references and text boxes in reading order, without what was deleted.

    A run that holds a box or a reference is yielded too: its own text comes first.
    """
    children = list(element)
    if local_name(element) == "AlternateContent":
        children = children[:1]  # the same drawing again, for old readers
    for child in children:
        tag = local_name(child)
        if tag in _DELETED:
            continue
        if tag in _NOTES or tag == "txbxContent":
            yield child
            continue
        if tag == "r" or (tag == "t" and local_name(element) != "r"):
            yield child
        yield from _inline(child)


def _run(run: Element) -> str:
    parts = []
    for element in run:
        tag = local_name(element)
        if tag == "t":
            parts.append(element.text or "")
        elif tag in _CHARACTERS:
            parts.append(_CHARACTERS[tag])
    text = "".join(parts)
    raised = any(attribute(e, "val") == "superscript" for e in _properties(run, "rPr") if local_name(e) == "vertAlign")
    return superscript(text) if raised else text


def _children(parent: Element, name: str) -> Iterator[Element]:
    """Yield the rows of a table or the cells of a row, also those in content controls, not those of inner tables."""
    for child in parent:
        if local_name(child) == name:
            yield child
        elif local_name(child) in ("sdt", "sdtContent", "customXml", "ins"):
            yield from _children(child, name)


def _main_part(archive: Archive) -> str:
    if _MAIN in archive or "_rels/.rels" not in archive:
        return _MAIN
    relations = archive.xml("_rels/.rels")
    targets = [
        attribute(r, "Target") or "" for r in relations if (attribute(r, "Type") or "").endswith("/officeDocument")
    ]
    return targets[0].lstrip("/") if targets else _MAIN


def _style_names(archive: Archive) -> dict[str, str]:
    """Names by id: Word translates the ids into the author's language, not the names."""
    if "word/styles.xml" not in archive:
        return {}
    styles = (e for e in archive.xml("word/styles.xml") if local_name(e) == "style")
    return {
        attribute(style, "styleId") or "": next(
            (attribute(e, "val") or "" for e in style if local_name(e) == "name"), ""
        )
        for style in styles
    }


def _note_elements(archive: Archive, part: str) -> dict[str, Element]:
    member = f"word/{part}.xml"
    if member not in archive:
        return {}
    notes = (e for e in archive.xml(member) if local_name(e) in _NOTE_ELEMENTS and attribute(e, "type") is None)
    return {attribute(note, "id") or "": note for note in notes}


def _edge_parts(archive: Archive, reader: _Reader, kind: str) -> list[str]:
    """The distinct page headers or footers that hold words: a letterhead is nowhere else."""
    members = sorted(m for m in archive.members if re.fullmatch(rf"word/{kind}\d*\.xml", m))
    texts = dict.fromkeys(squash(" ".join(reader.blocks(archive.xml(member)))) for member in members)
    return [f"\n{kind.capitalize()}: {text}\n\n" for text in texts if re.search(r"[^\W\d_]{3}", text)]


def _core_title(archive: Archive) -> str | None:
    if "docProps/core.xml" not in archive:
        return None
    return next((e.text for e in archive.xml("docProps/core.xml") if local_name(e) == "title"), None)
