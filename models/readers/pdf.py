"""PDF files, through pypdf: text, headings, tables, page labels, form fields; no character recognition.

Holds the way from a file to its pages; `models.readers.typography` finds headings, `models.readers.layout`
tables. A page that cannot be read costs that page, not the document, and is named in the warnings.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import statistics
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

from models.errors import DocumentError
from models.readers.clean import damage, normalise, squash
from models.readers.extract import Extract, Progress
from models.readers.flow import drop_running_lines, flow
from models.readers.layout import join_rows, looks_tabular
from models.readers.typography import NUMBERED, Line, mark_headings, read_runs, to_lines

logger = logging.getLogger(__name__)

_OCR_HINT = "Run OCR first, for example `ocrmypdf {name} with-text.pdf`, and give the result"
_NUM_TITLE_CHARACTERS = range(8, 200)
_MAX_PARENTS = 20
_TITLE_SIZE = 1.2  # against the median of the page


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read a PDF.

    Raises:
        DocumentError: For a broken or encrypted file, or one without any text.
    """
    with _quiet_pypdf():
        reader = _open(data, name=name, password=password)
        raw: list[str] = []
        lines: list[list[Line]] = []
        forms: list[str] = []
        lost: dict[int, str] = {}
        attached: list[str] = []
        num_pages = len(reader.pages)
        for index in range(num_pages):
            text, form = "", ""
            lines.append([])
            # A malformed file can make pypdf raise nearly anything; what it costs is one page.
            try:
                page = reader.pages[index]
                text, runs = read_runs(page)
                lines[-1] = _with_tables(page, to_lines(runs))
                form, names = _annotations(page)
                attached += names
            except Exception as e:
                lost[index] = type(e).__name__
                logger.debug("%s: page %d: %s", name, index + 1, e)
            raw.append(text)
            forms.append(form)
            on_page(index + 1, num_pages)
        labels = _labels(reader, num_pages)
        titles = [_metadata_title(reader), _largest_text(lines[0] if lines else [])]
        attached += _attachments(reader)
    if not any(map(str.strip, [*raw, *forms])):
        _raise_without_text(name, num_pages, lost)
    pages = flow(drop_running_lines([normalise(text) for text in mark_headings(lines)]))
    pages = [_with_form(page, form) for page, form in zip(pages, forms, strict=True)]
    warnings = [*_page_warnings(raw, forms, labels, lost), *damage(raw)]
    warnings += [f"the attachment {file!r} was not read; save it and ingest it by itself" for file in attached]
    return Extract(pages=pages, labels=labels, titles=titles, warnings=warnings)


@contextlib.contextmanager
def _quiet_pypdf() -> Iterator[None]:
    """Keep pypdf's remarks on malformed files out of the terminal; the root logger gets them at DEBUG only."""
    pypdf_logger = logging.getLogger("pypdf")
    level = pypdf_logger.level
    if not logger.isEnabledFor(logging.DEBUG):
        pypdf_logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        pypdf_logger.setLevel(level)


def _open(data: bytes, *, name: str, password: str | None) -> Any:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError, WrongPasswordError

    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and password is not None and not reader.decrypt(password):
            reader.decrypt("")
        len(reader.pages)
        return reader
    except (FileNotDecryptedError, WrongPasswordError) as e:
        if password is None:
            raise DocumentError(f"{name}: is encrypted", hint="Give its password with --password") from e
        raise DocumentError(f"{name}: is encrypted, and the password does not open it", hint="Check --password") from e
    except DependencyError as e:
        raise DocumentError(f"{name}: is encrypted", hint="Install the package `cryptography` to open it") from e
    except Exception as e:
        raise DocumentError(
            f"{name}: is cut short or damaged ({e})", hint="Download it again, or repair it with qpdf"
        ) from e


def _annotations(page: Any) -> tuple[str, list[str]]:
    """What lies on a page besides its text, and the names of files attached to it.

    The first is a line `field: value` for each filled field of a form, and text that was typed onto the page.
    """
    lines, attached = [], []
    for reference in page.get("/Annots") or []:
        annotation = reference.get_object()
        kind = annotation.get("/Subtype")
        if kind == "/FreeText":
            lines.append(squash(str(annotation.get("/Contents") or "")))
        elif kind == "/Widget":
            lines.append(_field(annotation))
        elif kind == "/FileAttachment":
            file = annotation["/FS"]
            attached.append(normalise(str(file.get("/UF") or file.get("/F"))))
    return normalise("\n".join(dict.fromkeys(filter(None, lines)))), attached


def _field(widget: Any) -> str:
    name, value = _inherited(widget, "/TU") or _inherited(widget, "/T") or "field", _inherited(widget, "/V")
    shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    shown = squash(shown.removeprefix("/"))
    return f"{squash(str(name))}: {shown}" if shown and shown != "Off" else ""


def _inherited(field: Any, key: str) -> Any:
    """The value of `key`, from the field or the nearest parent that has it."""
    for _ in range(_MAX_PARENTS):
        if key in field:
            return field[key]
        if "/Parent" not in field:
            return None
        field = field["/Parent"]
    return None


def _with_form(page: str, form: str) -> str:
    if not form:
        return page
    body = page.rstrip("\n ")
    return f"{body}\n\n{form}\n\n" if body else f"{form}\n\n"


def _labels(reader: Any, num_pages: int) -> list[str]:
    plain = [str(i + 1) for i in range(num_pages)]
    try:
        labels = [normalise(label).strip() for label in reader.page_labels]
    except Exception as e:
        logger.debug("page labels: %s", e)
        return plain
    return [label or number for label, number in zip(labels, plain, strict=True)] if len(labels) == num_pages else plain


def _with_tables(page: Any, lines: list[Line]) -> list[Line]:
    """Join the cells of table rows; a layout that pypdf cannot tell costs the tables, not the page."""
    if not looks_tabular(lines):
        return lines
    try:
        layout = page.extract_text(extraction_mode="layout", layout_mode_space_vertically=False)
    except Exception as e:
        logger.debug("layout: %s", e)
        return lines
    return join_rows(lines, layout)


def _metadata_title(reader: Any) -> str | None:
    with contextlib.suppress(Exception):
        return reader.metadata.title if reader.metadata else None
    return None


def _largest_text(lines: list[Line]) -> str | None:
    """What is set in the largest type on a page, where it stands out, up to a numbered heading."""
    filled = [line for line in lines if line.size and sum(map(str.isalpha, line.text)) > 1]
    largest = max((line.size for line in filled), default=0.0)
    if not filled or largest < _TITLE_SIZE * statistics.median(line.size for line in filled):
        return None
    first, *others = itertools.dropwhile(lambda line: line.size != largest, filled)
    rest = itertools.takewhile(lambda line: line.size == largest and not NUMBERED.match(line.text.strip()), others)
    title = squash(" ".join(line.text for line in [first, *rest]))
    return title if len(title) in _NUM_TITLE_CHARACTERS else None


def _attachments(reader: Any) -> list[str]:
    try:
        return [normalise(name) for name in reader.attachments]
    except Exception as e:
        logger.debug("attachments: %s", e)
        return []


def _page_warnings(raw: list[str], forms: list[str], labels: list[str], lost: dict[int, str]) -> list[str]:
    empty = [
        i for i, (text, form) in enumerate(zip(raw, forms, strict=True)) if not (text + form).strip() and i not in lost
    ]
    warnings = []
    if lost:
        warnings.append(f"{_pages(lost, labels)} could not be read ({', '.join(sorted(set(lost.values())))})")
    if empty:
        warnings.append(f"{_pages(empty, labels)} without text: blank, or a scan that needs OCR")
    return warnings


def _pages(indices: Iterable[int], labels: list[str]) -> str:
    named = [labels[i] if labels[i] == str(i + 1) else f"{labels[i]} ({i + 1} in the file)" for i in indices]
    return f"page{'s' if len(named) > 1 else ''} {', '.join(named)}"


def _raise_without_text(name: str, num_pages: int, lost: dict[int, str]) -> None:
    if num_pages == 0:
        raise DocumentError(f"{name}: has no pages", hint="Download or export it again")
    if len(lost) == num_pages:
        reasons = ", ".join(sorted(set(lost.values())))
        raise DocumentError(
            f"{name}: none of its {num_pages} pages could be read ({reasons})", hint="Repair it, for example with qpdf"
        )
    pages = "its only page has no" if num_pages == 1 else f"none of its {num_pages} pages has"
    raise DocumentError(f"{name}: {pages} text, it is probably a scan", hint=_OCR_HINT.format(name=name))
