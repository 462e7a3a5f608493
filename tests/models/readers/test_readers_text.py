"""Plain text, Markdown and CSV, in any common encoding."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models.readers import read
from models.readers.encoding import decode

Write = Callable[[str, bytes | str], str]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Die Straße führt über die Brücke, der Käse kostet 3 €.", "cp1252"),
        ("über straße", "cp1252"),
        ("Les élèves étaient là, à l’école.", "cp1252"),
        ("日本語の文章を読みます。明日は雨でしょう。", "shift_jis"),
        ("日本語の文章を読みます。明日は雨でしょう。", "euc_jp"),
        ("机器学习模型是人工智能的一个分支。", "gb18030"),
        ("Привет, мир. Это короткий текст о погоде.", "cp1251"),
        ("naïve ✓ 机", "utf-8"),
        ("naïve ✓ 机", "utf-8-sig"),
        ("naïve ✓ 机", "utf-16"),
        ("plain words in a row", "utf-16-le"),
        ("plain words in a row", "utf-16-be"),
    ],
)
def test_text_in_a_common_encoding_comes_out_right(write: Write, text: str, encoding: str) -> None:
    document = read(write("a.txt", text.encode(encoding)))
    assert (document.text, document.warnings) == (text, ())


def test_replaced_bytes_are_counted() -> None:
    text, warnings = decode(b"\xff\xfe" + "good ".encode("utf-16-le") + b"\x00\xdc")
    assert text == "good \ufffd"
    assert warnings == ["1 bytes do not fit utf-16 and were replaced; save the file as UTF-8"]


def test_one_bad_byte_does_not_spoil_a_utf8_text() -> None:
    data = ("Ω — 机器 " * 40).encode() + b"\xff"
    text, warnings = decode(data)
    assert text.startswith("Ω — 机器")
    assert warnings == ["1 bytes do not fit utf-8 and were replaced; save the file as UTF-8"]


def test_hard_wrapped_text_is_unwrapped_and_paragraphs_stay(write: Write) -> None:
    text = (
        "The ferry leaves the northern pier at seven and calls at both\n"
        "islands before noon. Tickets are sold on board, and bicycles\n"
        "travel free of charge.\n\n"
        "On Sundays the boat does not stop at the smaller island, since\n"
        "its pier is closed to everyone but the lighthouse keeper.\n"
    )
    first, second = read(write("a.txt", text)).text.split("\n\n")
    assert first.endswith("both islands before noon. Tickets are sold on board, and bicycles travel free of charge.")
    assert second.startswith("On Sundays the boat does not stop at the smaller island, since its pier")


def test_lines_that_are_records_stay_lines(write: Write) -> None:
    lines = [f"2024-01-{day:02d} 12:00:{day:02d} INFO request {day} took {day * 7} ms" for day in range(1, 20)]
    assert read(write("a.log", "\n".join(lines))).text.split("\n") == lines


def test_form_feeds_part_pages(write: Write) -> None:
    document = read(write("a.txt", "One.\fTwo.\f"))
    assert [document.text[p.char_start : p.char_end].strip() for p in document.pages] == ["One.", "Two."]


def test_a_csv_row_carries_the_names_of_its_columns(write: Write) -> None:
    document = read(write("people.csv", 'name;born;note\nAda;1815;"wrote; a\nprogram"\nAlan;1912;\n'))
    assert document.text == "name: Ada; born: 1815; note: wrote; a program\nname: Alan; born: 1912"
    assert document.title == "people"


def test_a_shift_jis_csv_comes_out_right(write: Write) -> None:
    data = "名前,年齢,住所\r\n山田花子,41,札幌\r\n鈴木一郎,28,福岡\r\n".encode("cp932")
    assert (
        read(write("a.csv", data)).text == "名前: 山田花子; 年齢: 41; 住所: 札幌\n名前: 鈴木一郎; 年齢: 28; 住所: 福岡"
    )


def test_a_csv_without_a_header_keeps_its_first_row(write: Write) -> None:
    assert read(write("a.tsv", "1\t2.5\tx\n2\t3.5\ty\n")).text == "1 | 2.5 | x\n2 | 3.5 | y"


def test_years_may_head_the_columns_of_a_csv(write: Write) -> None:
    assert read(write("a.csv", "country,2019,2020\nNorway,5,6\n")).text == "country: Norway; 2019: 5; 2020: 6"


def test_a_comma_in_prose_does_not_become_the_delimiter_of_tab_separated_text(write: Write) -> None:
    text = read(write("a.tsv", "place\tremark\nOslo\tcold, dark, dear\nRome\twarm\n")).text
    assert text == "place: Oslo; remark: cold, dark, dear\nplace: Rome; remark: warm"


def test_markdown_reads_as_rendered_prose_with_its_marks_of_structure(write: Write) -> None:
    source = (
        "---\ntitle: Lakes\n---\n# Of lakes\n\nA **lake** is a [body](http://x.org/a_(b)) of\nstill *water*.\n\n"
        "- deep\n- wide and\n  long\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    document = read(write("a.md", source))
    assert document.title == "Lakes"
    assert document.text == (
        "title: Lakes\n\n# Of lakes\n\nA lake is a body of still water.\n\n"
        "- deep\n- wide and long\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )


def test_code_in_markdown_is_left_alone(write: Write) -> None:
    source = (
        "Call it:\n\n```python\nx = a[0](**options)\ny = b * c * d\n```\n\nDone with snake_case_names and 2 * 3 * 4."
    )
    assert read(write("a.md", source)).text == source


def test_the_first_heading_of_markdown_is_the_title(write: Write) -> None:
    assert read(write("a.md", "Intro line.\n\n# The *real* title\n")).title == "The real title"
