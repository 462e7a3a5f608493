"""Which kinds of document can be read, and how a file's content tells its kind.

Content outweighs the suffix: an HTML page saved as `.pdf` is read as HTML. Holds no reader.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePath

from models.errors import DocumentError
from models.readers.encoding import unmarked_utf16


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of document; `module` is its reader within `models.readers`."""

    name: str
    media_type: str
    module: str
    suffixes: tuple[str, ...]


PDF = Kind(name="PDF", media_type="application/pdf", module="pdf", suffixes=(".pdf",))
DOCX = Kind(
    name="Word (.docx)",
    media_type="application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    module="docx",
    suffixes=(".docx", ".docm", ".dotx"),
)
HTML = Kind(name="HTML", media_type="text/html", module="html", suffixes=(".html", ".htm", ".xhtml"))
EPUB = Kind(name="EPUB", media_type="application/epub+zip", module="epub", suffixes=(".epub",))
MARKDOWN = Kind(name="Markdown", media_type="text/markdown", module="markdown", suffixes=(".md", ".markdown"))
CSV = Kind(name="CSV", media_type="text/csv", module="table", suffixes=(".csv", ".tsv"))
TEXT = Kind(name="plain text", media_type="text/plain", module="text", suffixes=(".txt", ".text", ".rst", ".log"))
KINDS = (PDF, DOCX, HTML, EPUB, MARKDOWN, CSV, TEXT)
SUFFIXES = {suffix: kind for kind in KINDS for suffix in kind.suffixes}

_HTML_START = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body)\b", re.I | re.S
)
_FOREIGN = (
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old or an encrypted Office file",
        "Remove its password and save it as .docx",
    ),
    (b"{\\rtf", "a rich-text file", "Save it as .docx"),
    (b"\x89PNG", "an image", "Run OCR first, for example with ocrmypdf, and give the resulting PDF"),
    (b"\xff\xd8\xff", "an image", "Run OCR first, for example with ocrmypdf, and give the resulting PDF"),
    (b"II*\0", "an image", "Run OCR first, for example with ocrmypdf, and give the resulting PDF"),
    (b"MM\0*", "an image", "Run OCR first, for example with ocrmypdf, and give the resulting PDF"),
    (b"GIF8", "an image", "Run OCR first, for example with ocrmypdf, and give the resulting PDF"),
    (b"%!PS", "a PostScript file", "Turn it into a PDF first, for example with ps2pdf"),
)
_UTF16_OR_32_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SNIFF_BYTES = 8192
SUPPORTED = "Supported: " + ", ".join(kind.name for kind in KINDS)


def sniff(data: bytes, name: str) -> Kind:
    """Return the kind of `data`, told by its content where that is plain, else by the suffix of `name`.

    Raises:
        DocumentError: For a kind that cannot be read, naming it and those that can.
    """
    head = data[:_SNIFF_BYTES]
    by_suffix = SUFFIXES.get(PurePath(name).suffix.lower())
    for start, what, hint in _FOREIGN:
        if head.startswith(start):
            raise DocumentError(f"{name}: is {what}, which cannot be read", hint=hint)
    if b"%PDF-" in head[:1024]:
        return PDF
    if head.startswith(b"PK\x03\x04"):
        return _sniff_zip(data, name)
    if _HTML_START.match(head):
        return HTML
    if by_suffix in (PDF, DOCX, EPUB):
        raise DocumentError(
            f"{name}: is not a {by_suffix.name} file inside, or is damaged", hint="Download or export it again"
        )
    if _is_binary(head):
        raise DocumentError(f"{name}: is of a kind that cannot be read", hint=SUPPORTED)
    return by_suffix or TEXT


def _sniff_zip(data: bytes, name: str) -> Kind:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            members = set(archive.namelist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as e:
        raise DocumentError(f"{name}: is cut short or damaged", hint="Download or export it again") from e
    if "META-INF/container.xml" in members:
        return EPUB
    if any(member.startswith("word/") for member in members):
        return DOCX
    foreign = {"xl/": "an Excel workbook", "ppt/": "a PowerPoint file", "content.xml": "an OpenDocument file"}
    what = next((w for start, w in foreign.items() if any(m.startswith(start) for m in members)), "a zip archive")
    hint = "Unpack it and give its files" if what == "a zip archive" else "Export it as PDF, .docx or .csv"
    raise DocumentError(f"{name}: is {what}, which cannot be read", hint=hint)


def _is_binary(head: bytes) -> bool:
    if head.startswith(_UTF16_OR_32_MARKS) or unmarked_utf16(head):
        return False
    return len(_CONTROL.findall(head)) > max(8, 0.02 * len(head))
