"""HTML pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from models.errors import DocumentError
from models.readers import read
from models.readers.html import render

Write = Callable[[str, bytes | str], str]


def _text(body: str) -> str:
    return render(f"<html><body>{body}</body></html>")[0]


def test_blocks_become_paragraphs_headings_and_items() -> None:
    html = "<h2>Food</h2><p>They eat\n  <b>seeds</b> and<br>fruit.</p><ul><li>oak</li><li><p>ash</p></li></ul>"
    assert _text(html) == "## Food\n\nThey eat seeds and\nfruit.\n\n- oak\n- ash"


def test_a_table_row_is_a_line_and_lists_in_cells_survive() -> None:
    html = "<table><tr><th>Founded<td>1975</tr><tr><th>Founders<td><ul><li>Ann</li><li>Bob</li></ul></tr></table>"
    assert _text(html) == "Founded | 1975\nFounders | Ann, Bob"


def test_a_table_that_lays_out_a_page_yields_paragraphs() -> None:
    long = "A sentence of the letter. " * 30
    html = f"<table><tr><td>Logo</td><td><p>{long}</p><p>Yours</p></td></tr></table>"
    assert _text(html).split("\n\n") == ["Logo", long.strip(), "Yours"]


def test_what_a_browser_does_not_show_is_left_out() -> None:
    html = (
        "<script>var a</script><style>p{}</style><nav>Home</nav><p>Shown</p><p hidden>h</p>"
        '<div style="display: none">d</div><div role="navigation">n</div><!-- c --><footer>f</footer>'
    )
    assert _text(html) == "Shown"


def test_the_main_element_is_enough_where_it_holds_most_of_the_text() -> None:
    story = "The story is told here at some length. " * 5
    assert _text(f"<div>Advertisement</div><main><p>{story}</p></main>") == story.strip()
    assert "Advertisement" in _text(f"<div>Advertisement {story * 3}</div><main>Short</main>")


def test_reference_marks_go_and_exponents_stay() -> None:
    html = "<p>It grew<sup>[3]</sup> to 10<sup>6</sup> CO<sub>2</sub>, the 5<sup>th</sup> time.</p>"
    assert _text(html) == "It grew to 10⁶ CO2, the 5th time."


def test_preformatted_text_keeps_its_lines() -> None:
    assert _text("<p>Run</p><pre>if x:\n    go()</pre>") == "Run\n\nif x:\n    go()"


@pytest.mark.parametrize("tag", ["div", "span", "blockquote", "b", "ul><li"])
def test_deep_nesting_does_not_crash(tag: str) -> None:
    assert "deep text" in _text(f"<{tag}>" * 5000 + "deep text")


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="windows-1251">', "cp1251"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">', "shift_jis"),
        ('<meta charset="windows-1252">', "utf-8"),
        ("", "utf-8-sig"),
    ],
)
def test_the_declared_encoding_is_followed_where_it_fits(write: Write, head: str, encoding: str) -> None:
    sentence = "日本語の文章" if encoding == "shift_jis" else "Привет, мир"
    declared = head.replace("windows-1252", "ascii")
    page = f"<html><head>{declared}</head><body>{sentence}</body></html>"
    assert read(write("a.html", page.encode(encoding))).text == sentence


def test_the_title_loses_the_name_of_the_site(write: Write) -> None:
    page = "<html><head><title>Heron - Bird Library</title></head><body><h1>Heron</h1><p>Wades.</p></body></html>"
    assert read(write("a.html", page)).title == "Heron"


def test_html_saved_under_another_suffix_is_read_as_html(write: Write) -> None:
    page = "<!DOCTYPE html><html><body><p>Not found</p></body></html>"
    for name in ("a.pdf", "b.txt", "c"):
        document = read(write(name, page))
        assert (document.text, document.media_type) == ("Not found", "text/html")


def test_a_page_without_text_is_refused(write: Write) -> None:
    with pytest.raises(DocumentError, match=r"a\.html: holds no text"):
        read(write("a.html", "<html><body><img src=x></body></html>"))
