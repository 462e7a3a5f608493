"""Documents made on the spot, for the tests of the readers."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import pytest
from reportlab.pdfgen.canvas import Canvas

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


@pytest.fixture
def make_pdf() -> Callable[..., bytes]:
    """A PDF with one page for each list of lines; an empty list is a page with a drawing and no text."""

    def build(*pages: Sequence[str], title: str | None = None) -> bytes:
        buffer = BytesIO()
        canvas = Canvas(buffer)
        if title:
            canvas.setTitle(title)
        for lines in pages:
            for number, line in enumerate(lines):
                canvas.drawString(72, 770 - 14 * number, line)
            if not lines:
                canvas.rect(100, 100, 300, 300, fill=1)
            canvas.showPage()
        canvas.save()
        return buffer.getvalue()

    return build


@pytest.fixture
def make_zip() -> Callable[[dict[str, str]], bytes]:
    """A zip container with the given members."""

    def build(members: dict[str, str]) -> bytes:
        buffer = BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        return buffer.getvalue()

    return build


@pytest.fixture
def make_docx(make_zip: Callable[[dict[str, str]], bytes]) -> Callable[..., bytes]:
    """A Word file with the given body; keyword arguments are further parts, as `footnotes="<w:footnote ...>"`."""

    def build(body: str, **parts: str) -> bytes:
        members = {"word/document.xml": f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'}
        for name, content in parts.items():
            members[f"word/{name}.xml"] = f'<w:{name} xmlns:w="{WORD}">{content}</w:{name}>'
        return make_zip(members)

    return build


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes | str], str]:
    """Write a file in a folder of its own and return its path."""

    def put(name: str, data: bytes | str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return str(path)

    return put
