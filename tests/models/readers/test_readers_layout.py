"""Tables of PDFs, whose cells are told apart by gaps."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import pytest
from pypdf import PageObject
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import BaseDocTemplate, Frame, PageTemplate, Paragraph, SimpleDocTemplate, Table

from models.atomizer import build_atomizer
from models.config import AtomizerConfig
from models.readers import read
from models.readers.layout import join_rows, looks_tabular
from models.readers.typography import Line

Write = Callable[[str, bytes | str], str]
STYLES = getSampleStyleSheet()
PROSE = "The harbour was closed in 1912, since the sand had filled its northern basin and nobody paid a dredger. "
TABLE = [
    ["Year", "Ships", "Tonnage", "Longest ship"],
    ["1909", "212", "41,200", "Aurora"],
    ["1910", "187", "38,950", "Prince of Wales"],
    ["1911", "95", "", "Gull"],
    ["1912", "12", "2,100", "Gull"],
]


def _pdf(*flowables: object) -> bytes:
    buffer = BytesIO()
    SimpleDocTemplate(buffer).build(list(flowables))
    return buffer.getvalue()


def _joined(plain: str, layout: str) -> list[str]:
    return [line.text for line in join_rows([Line(text) for text in plain.split("\n")], layout)]


def test_a_table_becomes_rows_and_an_empty_cell_keeps_its_place(write: Write) -> None:
    prose = Paragraph(PROSE * 3, STYLES["BodyText"])
    text = read(write("a.pdf", _pdf(prose, Table(TABLE), prose))).text
    assert text.split("\n\n")[1].split("\n") == [
        "Year | Ships | Tonnage | Longest ship",
        "1909 | 212 | 41,200 | Aurora",
        "1910 | 187 | 38,950 | Prince of Wales",
        "1911 | 95 | | Gull",
        "1912 | 12 | 2,100 | Gull",
    ]


def test_a_row_atom_names_its_columns_and_its_heading(write: Write) -> None:
    heading = Paragraph("3. Traffic", STYLES["Heading1"])
    prose = Paragraph(PROSE * 5, STYLES["BodyText"])
    document = read(write("harbour.pdf", _pdf(heading, Table(TABLE), prose)))
    contents = [atom.content for atom in build_atomizer(AtomizerConfig()).atomize(document).atoms]
    assert "Traffic: Year: 1911; Ships: 95; Longest ship: Gull" in contents
    assert contents[-1].endswith(PROSE.strip())


def test_columns_of_prose_are_no_table(write: Write) -> None:
    buffer = BytesIO()
    document = BaseDocTemplate(buffer)
    document.addPageTemplates(PageTemplate(frames=[Frame(50, 50, 230, 740), Frame(310, 50, 230, 740)]))
    document.build([Paragraph(PROSE * 4, STYLES["BodyText"]) for _ in range(20)])
    assert " | " not in read(write("a.pdf", buffer.getvalue())).text


def test_cells_on_lines_of_their_own_make_a_row() -> None:
    layout = "Pilot      Eva Kral\nClerk      Tomas Dvorak\nMaster     Jan Novak"
    assert _joined("Pilot\nEva Kral\nClerk\nTomas Dvorak\nMaster\nJan Novak", layout) == [
        "Pilot | Eva Kral",
        "Clerk | Tomas Dvorak",
        "Master | Jan Novak",
    ]


def test_gaps_of_justified_prose_make_no_cells() -> None:
    layout = "The  harbour    was closed\nin the year when    the\nsand had    filled its northern basin"
    plain = "The harbour was closed\nin the year when the\nsand had filled its northern basin"
    assert _joined(plain, layout) == plain.split("\n")


def test_rows_may_begin_in_lower_case_where_they_hold_figures() -> None:
    layout = "length     14 m\nbeam        4 m\ndraught     2 m"
    assert _joined("length 14 m\nbeam 4 m\ndraught 2 m", layout) == ["length | 14 m", "beam | 4 m", "draught | 2 m"]


def test_two_lines_with_one_gap_are_no_table() -> None:
    layout = "Ferry company          1 May 1912\nLindau                 Page 3"
    plain = "Ferry company 1 May 1912\nLindau Page 3"
    assert _joined(plain, layout) == plain.split("\n")


def test_a_page_of_sentences_is_not_laid_out_again() -> None:
    assert not looks_tabular([Line("The harbour was closed."), Line("It had filled with"), Line("sand.")])
    assert looks_tabular([Line("Year Ships"), Line("1909 212"), Line("1910 187")])


def test_a_layout_that_fails_costs_the_tables_only(
    write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(PageObject, "_layout_mode_text", fail)
    document = read(write("a.pdf", _pdf(Table(TABLE))))
    assert "1910" in document.text
    assert document.warnings == ()
