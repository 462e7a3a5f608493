"""Real documents of many kinds, where the shared data folder lies beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import DocumentError
from models.readers import discover, read

_DOCS = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "docs"
_PASSWORDS = {"2206.01062_pg3.pdf": "1234", "crazyones-encrypted-256.pdf": "password"}
_SCANS = {"ocr_test.pdf"}

pytestmark = pytest.mark.skipif(not _DOCS.is_dir(), reason="shared/data/docs is absent")


def test_every_file_is_read_or_refused_for_a_reason() -> None:
    for source in discover([str(_DOCS)]):
        name = Path(source).name
        if name in _SCANS:
            with pytest.raises(DocumentError, match="OCR"):
                read(source)
        elif name != "paper.pdf":
            document = read(source, password=_PASSWORDS.get(name))
            assert document.text.strip(), name
            assert document.text == "".join(document.text[p.char_start : p.char_end] for p in document.pages), name


def test_a_long_paper_reads_as_running_text() -> None:
    document = read(str(_DOCS / "paper.pdf"))
    assert len(document.pages) == 41
    assert document.title == "A Perspective on Explanations of Molecular Prediction Models"
    assert "their applications in predicting solubility, blood-brain barrier permeability" in document.text
    assert "self-explaining models" in document.text.lower()
    # A sentence that runs over the break between the printed pages 4 and 5.
    assert "we identify that an agreed upon evaluation metric is necessary in XAI" in document.text
    headings = [line.lstrip("# ") for line in document.text.split("\n") if line.startswith("#")]
    assert headings[:4] == [document.title, "Abstract", "Introduction", "Theory"]
    assert headings[-3:] == ["Conclusion and outlook", "Acknowledgements", "References"]
