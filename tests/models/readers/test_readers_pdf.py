"""PDF files, whole and broken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import BytesIO

import pytest
from pypdf import PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import NameObject, StreamObject
from reportlab.lib.colors import black
from reportlab.pdfgen.canvas import Canvas

from models.errors import DocumentError
from models.readers import read

Make = Callable[..., bytes]
Write = Callable[[str, bytes | str], str]


def _written(writer: PdfWriter) -> bytes:
    buffer = BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def test_pages_follow_one_another_and_cover_the_text(make_pdf: Make, write: Write) -> None:
    document = read(write("a.pdf", make_pdf(["First page."], ["Second page."], ["Third page."])))
    assert [document.text[p.char_start : p.char_end].strip() for p in document.pages] == [
        "First page.",
        "Second page.",
        "Third page.",
    ]
    assert document.pages[0].char_start == 0
    assert document.pages[-1].char_end == len(document.text)
    assert all(a.char_end == b.char_start for a, b in zip(document.pages, document.pages[1:], strict=False))
    assert document.page_at(document.text.index("Second")).label == "2"


def test_printed_page_labels_are_kept(make_pdf: Make, write: Write) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(["Preface text."], ["Body text."], ["More."]))))
    writer.set_page_label(0, 0, style=PageLabelStyle.LOWERCASE_ROMAN, start=4)
    writer.set_page_label(1, 2, style=PageLabelStyle.DECIMAL, start=1)
    document = read(write("a.pdf", _written(writer)))
    assert [page.label for page in document.pages] == ["iv", "1", "2"]


def test_progress_counts_pages(make_pdf: Make, write: Write) -> None:
    seen: list[tuple[int, int | None]] = []
    read(write("a.pdf", make_pdf(["One."], ["Two."])), on_page=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_a_scan_is_refused_with_the_way_to_ocr(make_pdf: Make, write: Write) -> None:
    with pytest.raises(DocumentError, match=r"scan\.pdf: none of its 2 pages has text.*ocrmypdf"):
        read(write("scan.pdf", make_pdf([], [])))


def test_pages_without_text_among_others_are_named(make_pdf: Make, write: Write) -> None:
    document = read(write("a.pdf", make_pdf(["Text one."], [], ["Text two."], [], ["Text three."])))
    assert document.warnings == ("pages 2, 4 without text: blank, or a scan that needs OCR",)
    assert len(document.pages) == 5


def test_a_page_that_fails_costs_that_page_only(make_pdf: Make, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from pypdf import PageObject
    from pypdf.errors import LimitReachedError

    extract_text = PageObject.extract_text

    def failing(self: PageObject, *args: object, **kwargs: object) -> str:
        if self.page_number == 1:
            raise LimitReachedError("too large")
        return extract_text(self, *args, **kwargs)

    monkeypatch.setattr(PageObject, "extract_text", failing)
    document = read(write("a.pdf", make_pdf(["Kept one."], ["Lost."], ["Kept two."])))
    assert document.warnings == ("page 2 could not be read (LimitReachedError)",)
    assert "Kept one." in document.text
    assert "Kept two." in document.text


def test_a_page_of_garbage_bytes_is_named_and_the_others_are_kept(make_pdf: Make, write: Write) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(["Kept one."], ["Lost."], ["Kept two."]))))
    stream = StreamObject()
    stream.set_data(b"\x93\xff(((<< [ q 17 Tf \x00 BT ET ]] ((")
    writer.pages[1][NameObject("/Contents")] = writer._add_object(stream)
    document = read(write("a.pdf", _written(writer)))
    assert "Kept one." in document.text
    assert "Kept two." in document.text
    assert any("page 2" in warning for warning in document.warnings)


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_an_empty_user_password_opens_silently(make_pdf: Make, write: Write, algorithm: str) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(["Open to all."]))))
    writer.encrypt(user_password="", owner_password="boss", algorithm=algorithm)
    path = write("a.pdf", _written(writer))
    assert read(path).text.strip() == "Open to all."
    assert read(path, password="not needed").text.strip() == "Open to all."


def test_a_real_password_is_asked_for_and_checked(make_pdf: Make, write: Write) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(["For your eyes only."]))))
    writer.encrypt(user_password="secret", algorithm="AES-256")
    path = write("a.pdf", _written(writer))
    with pytest.raises(DocumentError, match=r"a\.pdf: is encrypted\. Give its password with --password"):
        read(path)
    with pytest.raises(DocumentError, match="the password does not open it"):
        read(path, password="guess")
    assert read(path, password="secret").text.strip() == "For your eyes only."


def test_a_truncated_file_is_one_clear_line(make_pdf: Make, write: Write) -> None:
    data = make_pdf(["Some text that is going to be cut."] * 40)
    with pytest.raises(DocumentError, match=r"a\.pdf: .*(cut short or damaged|has no pages|none of its)") as caught:
        read(write("a.pdf", data[: len(data) // 3]))
    assert "\n" not in str(caught.value)


def test_the_values_of_form_fields_are_part_of_the_page(write: Write) -> None:
    buffer = BytesIO()
    canvas = Canvas(buffer)
    canvas.drawString(72, 770, "Membership form")
    canvas.acroForm.textfield(name="surname", value="Lovelace", x=72, y=700, borderColor=black)
    canvas.acroForm.textfield(name="remark", value="", x=72, y=650)
    canvas.save()
    assert read(write("a.pdf", buffer.getvalue())).text.strip() == "Membership form\n\nsurname: Lovelace"


def test_attachments_are_named(make_pdf: Make, write: Write) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(make_pdf(["Cover letter."]))))
    writer.add_attachment("data.csv", b"a,b\n1,2\n")
    document = read(write("a.pdf", _written(writer)))
    assert document.warnings == ("the attachment 'data.csv' was not read; save it and ingest it by itself",)


def test_remarks_of_pypdf_reach_no_terminal(
    make_pdf: Make, write: Write, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # Junk before the header and a broken cross-reference table make pypdf complain; it reads them all the same.
    data = b"junk\n" * 5 + make_pdf(["Still readable."]).replace(b"startxref\n", b"startxref\n9")
    level = logging.getLogger("pypdf").level
    assert read(write("a.pdf", data)).text.strip() == "Still readable."
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.name.startswith("pypdf")]
    assert logging.getLogger("pypdf").level == level


@pytest.mark.parametrize(
    ("metadata", "title"),
    [
        ("Tides of the North Sea", "Tides of the North Sea"),
        ("untitled", "The Harbour in Winter"),
        ("Microsoft Word - draft3.doc", "The Harbour in Winter"),
        ("report_final.pdf", "The Harbour in Winter"),
    ],
)
def test_the_title_is_the_metadatas_where_sensible(make_pdf: Make, write: Write, metadata: str, title: str) -> None:
    lines = ["The Harbour in Winter", "", "The boats lie on the shore until the ice has gone, and nobody works."]
    assert read(write("a.pdf", make_pdf(lines, title=metadata))).title == title


def test_the_largest_type_gives_a_title_that_spans_lines(write: Write) -> None:
    buffer = BytesIO()
    canvas = Canvas(buffer)
    canvas.setFont("Helvetica", 9)
    canvas.drawString(72, 800, "Journal of Ports, volume 3")
    canvas.setFont("Helvetica-Bold", 20)
    canvas.drawString(72, 770, "Silting of Harbours after")
    canvas.drawString(72, 745, "the Closure of Rivers")
    canvas.setFont("Helvetica", 10)
    for number in range(8):
        canvas.drawString(72, 700 - 14 * number, f"line {number} of the body of this paper, set in small type")
    canvas.save()
    assert read(write("a.pdf", buffer.getvalue())).title == "Silting of Harbours after the Closure of Rivers"


def test_a_file_of_many_pages_accounts_for_each(make_pdf: Make, write: Write) -> None:
    document = read(write("a.pdf", make_pdf(*([f"Entry {number} of the register."] for number in range(300)))))
    assert len(document.pages) == 300
    assert all(f"Entry {page.index} of" in document.text[page.char_start : page.char_end] for page in document.pages)
