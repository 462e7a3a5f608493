"""Finding documents, refusing what is none, and staying light."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import DocumentError
from models.readers import discover, read

Make = Callable[..., bytes]
Write = Callable[[str, bytes | str], str]


def test_folders_are_searched_in_order_for_known_kinds(write: Write, tmp_path: Path) -> None:
    for name in ("b/z.txt", "b/a.MD", "a.pdf", "b/tool.exe", ".hidden/x.txt", "b/.x.txt", "b/~$a.docx"):
        write(name, "x")
    assert discover([str(tmp_path)]) == [str(tmp_path / name) for name in ("a.pdf", "b/a.MD", "b/z.txt")]


def test_patterns_expand_and_repetitions_go(write: Write, tmp_path: Path) -> None:
    one, two = write("one.txt", "x"), write("sub/two.txt", "x")
    assert discover([two, f"{tmp_path}/**/*.txt", "-", one, "-"]) == [two, one, "-"]


def test_a_file_is_taken_whatever_its_suffix(write: Write) -> None:
    assert read(write("NOTES", "Some notes.")).media_type == "text/plain"


def test_what_does_not_exist_stays_in_the_list_and_read_says_so(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.pdf")
    assert discover([missing, "*.nothing"]) == [missing, "*.nothing"]
    with pytest.raises(DocumentError, match=r"no\.pdf: does not exist\. Check the path"):
        read(missing)


def test_a_folder_without_documents_stays_in_the_list_and_read_says_so(tmp_path: Path) -> None:
    assert discover([str(tmp_path)]) == [str(tmp_path)]
    with pytest.raises(DocumentError, match=r"is a folder that holds no document\. Known endings: \.pdf"):
        read(str(tmp_path))


def test_an_empty_file_is_refused(write: Write) -> None:
    with pytest.raises(DocumentError, match=r"zero\.pdf: is empty \(0 bytes\)"):
        read(write("zero.pdf", b""))


def test_a_file_of_blanks_holds_no_text(write: Write) -> None:
    with pytest.raises(DocumentError, match=r"a\.txt: holds no text"):
        read(write("a.txt", " \n\t\n"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(write: Write) -> None:
    path = write("a.txt", "x")
    Path(path).chmod(0)
    with pytest.raises(DocumentError, match=r"a\.txt: may not be read"):
        read(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(50), r"is an image, .*ocrmypdf"),
        (b"\x7fELF" + bytes(range(32)) * 20, r"is of a kind that cannot be read\. Supported: PDF, Word"),
        (b"{\\rtf1 hello}", r"rich-text file.*\.docx"),
    ],
)
def test_other_kinds_are_named_and_the_way_out_is_shown(write: Write, data: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read(write("a.bin", data))


def test_other_zip_containers_are_named(write: Write, make_zip: Make) -> None:
    with pytest.raises(DocumentError, match=r"a\.xlsx: is an Excel workbook.*\.csv"):
        read(write("a.xlsx", make_zip({"xl/workbook.xml": "<a/>"})))
    with pytest.raises(DocumentError, match=r"a\.zip: is a zip archive.*Unpack it"):
        read(write("a.zip", make_zip({"notes.txt": "x"})))


def test_a_pdf_that_is_no_pdf_is_refused(write: Write) -> None:
    with pytest.raises(DocumentError, match=r"a\.pdf: is not a PDF file inside"):
        read(write("a.pdf", "just words"))


def test_a_pdf_without_a_suffix_is_recognised(write: Write, make_pdf: Make) -> None:
    assert read(write("download", make_pdf(["Hello there."]))).media_type == "application/pdf"


def test_standard_input_is_sniffed_like_a_file(make_pdf: Make) -> None:
    document = read("-", stdin=make_pdf(["Piped in."]))
    assert (document.source, document.text.strip(), document.media_type) == ("-", "Piped in.", "application/pdf")
    assert read("-", stdin=b"plain and without a title, is it not.").title == "standard input"
    with pytest.raises(DocumentError, match="standard input: is empty"):
        read("-", stdin=b"")


def test_one_bad_file_does_not_hinder_the_rest(write: Write, make_pdf: Make, tmp_path: Path) -> None:
    good = make_pdf(["Good text."])
    write("a_zero.pdf", b"")
    write("b_cut.pdf", good[:200])
    write("c_page.pdf", "<html><body>An error page</body></html>")
    write("d_good.pdf", good)
    outcomes = []
    for source in discover([str(tmp_path)]):
        try:
            outcomes.append(read(source).text.strip())
        except DocumentError as e:
            assert str(e).startswith(source)
            outcomes.append("refused")
    assert outcomes == ["refused", "refused", "An error page", "Good text."]


def test_the_package_imports_no_reader_library() -> None:
    heavy = ("pypdf", "selectolax", "chardet", "torch")
    code = f"import sys, models.readers; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
