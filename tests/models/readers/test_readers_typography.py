"""Headings of PDFs, told by size and weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO

from pypdf import PdfReader
from reportlab.pdfgen.canvas import Canvas

from models.readers import read
from models.readers.typography import Line, mark_headings, read_runs, to_lines

Write = Callable[[str, bytes | str], str]
BODY = [
    Line("The ferry to Lindau leaves at seven in the morning and returns", 10.0),
    Line("before noon on every day on which the lake is calm.", 10.0),
]


def _headings(*lines: Line) -> list[str]:
    return [line for line in mark_headings([lines])[0].split("\n") if line.startswith("#")]


def _styled_pdf(lines: Sequence[tuple[str, str, float]]) -> bytes:
    buffer = BytesIO()
    canvas = Canvas(buffer)
    for number, (text, font, size) in enumerate(lines):
        canvas.setFont(font, size)
        canvas.drawString(72, 770 - 24 * number, text)
    canvas.save()
    return buffer.getvalue()


def test_larger_and_bold_lines_are_headings_and_levels_follow_their_style() -> None:
    title, section = Line("Ferries of the lake", 20.0, True), Line("Winter timetable", 14.0)
    assert _headings(title, *BODY, section, *BODY, Line("Sundays", 10.0, True), *BODY) == [
        "# Ferries of the lake",
        "## Winter timetable",
        "### Sundays",
    ]


def test_numbering_orders_headings_of_one_style() -> None:
    style = (14.0, True)
    headings = _headings(
        Line("Ferries of the lake", *style), Line("1. Piers", *style), *BODY, Line("1.1 Lindau", *style), *BODY
    )
    assert headings == ["# Ferries of the lake", "## 1. Piers", "### 1.1 Lindau"]


def test_an_article_at_the_head_of_a_heading_is_no_number() -> None:
    assert _headings(Line("Piers", 14.0), *BODY, Line("A Look at the Timetable", 14.0), *BODY) == [
        "# Piers",
        "# A Look at the Timetable",
    ]


def test_lines_of_one_heading_are_joined() -> None:
    assert _headings(Line("Rules for the carriage", 16.0), Line("of bicycles and dogs", 16.0), *BODY, *BODY) == [
        "# Rules for the carriage of bicycles and dogs"
    ]


def test_what_reads_like_body_text_is_no_heading() -> None:
    for text in (
        "The lake was frozen that day.",  # a sentence
        "a continued line of an emphasised sentence",
        "Total $ 821.14",
        "Anna Weber,† Carl Roth‡",
        "12 | 14 | 19",
        "Piers of the lake ........ 14",
        "A very long line in bold type that goes on and on until nobody would call it a heading any more",
    ):
        assert _headings(*BODY, Line(text, 14.0, True), *BODY) == [], text


def test_a_bold_line_that_goes_on_in_lower_case_is_no_heading() -> None:
    assert _headings(Line("Passengers must keep", 10.0, True), Line("their tickets until they leave.", 10.0)) == []


def test_bold_says_nothing_where_the_body_is_bold() -> None:
    bold = [Line(line.text, line.size, True) for line in BODY]
    assert _headings(*bold, Line("Sundays", 10.0, True), *bold) == []


def test_a_poster_has_no_headings() -> None:
    assert _headings(Line("Ferry today", 40.0), Line("From Lindau", 30.0), Line("Seven in the morning", 10.0)) == []


def test_the_lines_of_a_page_are_its_text() -> None:
    page = PdfReader(
        BytesIO(_styled_pdf([("Piers", "Helvetica-Bold", 16), ("Lindau has two of them.", "Times-Roman", 10)]))
    ).pages[0]
    text, runs = read_runs(page)
    lines = to_lines(runs)
    assert "\n".join(line.text for line in lines) == text == page.extract_text()
    assert [(line.size, line.is_bold) for line in lines if line.text.strip()] == [(16.0, True), (10.0, False)]


def test_a_heading_of_a_pdf_stands_by_itself_and_names_no_title_twice(write: Write) -> None:
    body = ("Lindau has two piers, and the ferry calls at both of them.", "Times-Roman", 11)
    pdf = _styled_pdf(
        [
            ("Ferries of the lake", "Helvetica-Bold", 18),
            ("1. Piers", "Helvetica-Bold", 18),
            *[body] * 6,
            ("2. Fares", "Helvetica-Bold", 18),
            *[body] * 6,
        ]
    )
    document = read(write("a.pdf", pdf))
    assert document.title == "Ferries of the lake"
    assert document.text.startswith("# Ferries of the lake\n\n## 1. Piers\n\nLindau has two piers")
    assert "\n\n## 2. Fares\n\nLindau" in document.text
