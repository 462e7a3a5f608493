"""Word files: nothing that a reader sees may vanish."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models.errors import DocumentError
from models.readers import read

Make = Callable[..., bytes]
Write = Callable[[str, bytes | str], str]


def _p(text: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def test_headings_paragraphs_and_lists_are_told_apart(make_docx: Make, write: Write) -> None:
    styles = '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    body = (
        _p("Bees", '<w:pStyle w:val="berschrift1"/>')
        + _p("They live in hives.")
        + _p("queen", "<w:numPr/>")
        + _p("drones", "<w:numPr/>")
    )
    document = read(write("a.docx", make_docx(body, styles=styles)))
    assert document.text == "# Bees\n\nThey live in hives.\n\n- queen\n- drones"
    assert document.title == "Bees"


def test_a_table_row_is_a_line(make_docx: Make, write: Write) -> None:
    def cell(text: str) -> str:
        return f"<w:tc>{_p(text)}</w:tc>"

    rows = "".join(f"<w:tr>{cell(a)}{cell(b)}</w:tr>" for a, b in [("City", "People"), ("Bern", "134,000")])
    assert read(write("a.docx", make_docx(f"<w:tbl>{rows}</w:tbl>"))).text == "City | People\nBern | 134,000"


def test_a_fact_that_stands_only_in_a_footnote_is_kept(make_docx: Make, write: Write) -> None:
    notes = f'<w:footnote w:id="2">{_p("The vote was 51 to 49.")}</w:footnote>'
    body = '<w:p><w:r><w:t>It passed.</w:t></w:r><w:r><w:footnoteReference w:id="2"/></w:r></w:p>'
    text = read(write("a.docx", make_docx(body, footnotes=notes))).text
    assert text == "It passed.\n\nFootnote: The vote was 51 to 49."


def test_a_body_that_is_nothing_but_a_footnote_is_no_empty_document(make_docx: Make, write: Write) -> None:
    notes = f'<w:footnote w:id="2">{_p("All there is.")}</w:footnote>'
    assert read(write("a.docx", make_docx("<w:p/>", footnotes=notes))).text == "Footnote: All there is."


def test_separators_of_footnotes_are_no_text(make_docx: Make, write: Write) -> None:
    notes = f'<w:footnote w:id="0" w:type="separator">{_p("____")}</w:footnote>'
    assert read(write("a.docx", make_docx(_p("Body."), footnotes=notes))).text == "Body."


def test_comments_are_kept_with_their_author(make_docx: Make, write: Write) -> None:
    comments = f'<w:comment w:id="7" w:author="Ann">{_p("Check the year.")}</w:comment>'
    body = '<w:p><w:r><w:t>Built in 1901.</w:t></w:r><w:r><w:commentReference w:id="7"/></w:r></w:p>'
    text = read(write("a.docx", make_docx(body, comments=comments))).text
    assert text == "Built in 1901.\n\nComment by Ann: Check the year."


def test_a_text_box_is_read_once(make_docx: Make, write: Write) -> None:
    box = f"<w:txbxContent>{_p('Danger: 400 volts')}</w:txbxContent>"
    body = (
        '<w:p xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><w:r><w:t>See the box.</w:t>'
        f"<mc:AlternateContent><mc:Choice>{box}</mc:Choice><mc:Fallback>{box}</mc:Fallback></mc:AlternateContent>"
        "</w:r></w:p>"
    )
    assert read(write("a.docx", make_docx(body))).text == "See the box.\n\nDanger: 400 volts"


def test_the_style_of_a_text_box_is_not_that_of_the_paragraph_around_it(make_docx: Make, write: Write) -> None:
    box = f"<w:txbxContent>{_p('Boxed', '<w:numPr/>')}</w:txbxContent>"
    body = f"<w:p><w:r><w:t>Plain words.</w:t><w:pict>{box}</w:pict></w:r></w:p>"
    assert read(write("a.docx", make_docx(body))).text == "Plain words.\n\n- Boxed"


def test_a_table_inside_a_cell_is_read_once(make_docx: Make, write: Write) -> None:
    inner = f"<w:tbl><w:tr><w:tc>{_p('inner')}</w:tc></w:tr></w:tbl>"
    body = f"<w:tbl><w:tr><w:tc>{_p('outer')}</w:tc><w:tc>{inner}</w:tc></w:tr></w:tbl>"
    assert read(write("a.docx", make_docx(body))).text == "outer | inner"


def test_letterheads_are_read_and_bare_page_numbers_are_not(make_docx: Make, write: Write) -> None:
    text = read(write("a.docx", make_docx(_p("Dear Sir,"), header1=_p("Baker and Sons"), footer1=_p("3")))).text
    assert text == "Header: Baker and Sons\n\nDear Sir,"


def test_tracked_insertions_count_and_deletions_do_not(make_docx: Make, write: Write) -> None:
    body = (
        "<w:p><w:r><w:t>The fee is </w:t></w:r><w:del><w:r><w:delText>30</w:delText></w:r></w:del>"
        "<w:ins><w:r><w:t>45</w:t></w:r></w:ins><w:r><w:t> euros.</w:t></w:r></w:p>"
    )
    assert read(write("a.docx", make_docx(body))).text == "The fee is 45 euros."


def test_links_fields_and_content_controls_keep_their_text(make_docx: Make, write: Write) -> None:
    body = (
        f"<w:sdt><w:sdtContent>{_p('In a control.')}</w:sdtContent></w:sdt>"
        "<w:p><w:hyperlink><w:r><w:t>In a link</w:t></w:r></w:hyperlink>"
        "<w:r><w:instrText>PAGE</w:instrText></w:r><w:r><w:tab/><w:t>after</w:t></w:r></w:p>"
    )
    assert read(write("a.docx", make_docx(body))).text == "In a control.\n\nIn a link after"


def test_a_raised_exponent_stays_an_exponent(make_docx: Make, write: Write) -> None:
    raised = '<w:r><w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>6</w:t></w:r>'
    body = f"<w:p><w:r><w:t>10</w:t></w:r>{raised}<w:r><w:t> cells</w:t></w:r></w:p>"
    assert read(write("a.docx", make_docx(body))).text == "10⁶ cells"


def test_a_container_cut_short_is_one_clear_line(make_docx: Make, write: Write) -> None:
    data = make_docx(_p("Body."))
    with pytest.raises(DocumentError, match=r"a\.docx: is cut short or damaged\. Download or export it again"):
        read(write("a.docx", data[: len(data) // 2]))


@pytest.mark.parametrize("at", [0.05, 0.2, 0.35])
def test_a_container_with_a_hole_is_one_clear_line(make_docx: Make, write: Write, at: float) -> None:
    data = make_docx(_p("".join(chr(0x4E00 + 37 * n % 20000) for n in range(3000))))
    start = int(at * len(data))
    with pytest.raises(DocumentError, match=r"a\.docx: is (cut short or damaged|of a kind|not a Word)"):
        read(write("a.docx", data[:start] + data[start + 900 :]))


def test_broken_markup_is_one_clear_line(make_zip: Make, write: Write) -> None:
    with pytest.raises(DocumentError, match=r"a\.docx: .*word/document\.xml is not well-formed"):
        read(write("a.docx", make_zip({"word/document.xml": "<w:document><w:p>"})))


def test_an_encrypted_or_old_office_file_says_what_to_do(write: Write) -> None:
    with pytest.raises(DocumentError, match=r"old or an encrypted Office file.*save it as \.docx"):
        read(write("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)))
