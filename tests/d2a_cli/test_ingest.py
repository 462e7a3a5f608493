"""`d2a ingest`: report, progress, cost preview."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from d2a_cli import _output, _progress
from models.results import IngestProgress

Run = Callable[..., Any]
LARGE = SimpleNamespace(num_calls=120, num_input_tokens=90_000, num_output_tokens=60_000, cost_usd=0.125)


def test_stored_documents_are_data_and_failed_ones_are_lines_on_stderr(d2a: Run) -> None:
    result = d2a("ingest", "a.pdf", "bad.pdf", "half.pdf")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["added", "partial"]
    assert lines[0].split("\t")[1:] == [
        "00c0ffee00c0ffee",
        "see [smith2020] [/x] :warning: a:b:c",
        "3 pages",
        "2 atoms",
    ]
    # 2 documents with 2 atoms each; 1.5 + 0.25 + 1.5 s
    assert result.stderr.splitlines() == [
        "[1/3] a.pdf",
        "[2/3] bad.pdf",
        "[3/3] half.pdf",
        "failed: bad.pdf: it is empty",
        "partial: half.pdf: page 2 lost",
        "1 added, 1 failed, 1 partial; 4 atoms; 3.2 s",
    ]
    assert d2a("ingest", "a.pdf").exit_code == 0


def test_json_report_holds_every_item(d2a: Run) -> None:
    result = d2a("ingest", "--json", "a.pdf", "bad.pdf")
    items = json.loads(result.stdout)["items"]
    assert [(i["source"], i["outcome"]) for i in items] == [("a.pdf", "added"), ("bad.pdf", "failed")]
    assert items[0]["document"]["num_atoms"] == 2
    assert result.exit_code == 1


def test_nothing_to_ingest_is_a_usage_error(d2a: Run, memory: Any) -> None:
    assert d2a("ingest").exit_code == 2
    assert memory.calls == []


def test_rebuild_alone_recompiles_what_is_stored(d2a: Run, memory: Any) -> None:
    assert d2a("ingest", "--rebuild").exit_code == 0
    assert memory.calls == [("rebuild", None)]
    d2a("ingest", "--rebuild", "a.pdf")
    assert memory.calls[-1] == ("ingest", (["a.pdf"], {"password": None, "stdin": None, "rebuild": True}))


def test_dash_takes_the_document_from_the_pipe(d2a: Run, memory: Any) -> None:
    d2a("ingest", "-", "--password", "pw", stdin=b"\xff\x00raw")
    assert memory.calls == [("ingest", (["-"], {"password": "pw", "stdin": b"\xff\x00raw", "rebuild": False}))]


def test_flags_reach_the_memory(d2a: Run, memory: Any) -> None:
    d2a("ingest", "a.pdf", "--atomizer", "openai", "--store", "full")
    assert (memory.config.atomizer.backend, memory.config.store) == ("openai", "full")


def test_large_job_is_refused_without_a_terminal_and_without_consent(d2a: Run, memory: Any) -> None:
    memory.job = LARGE
    result = d2a("ingest", "a.pdf")
    assert (result.exit_code, memory.calls) == (2, [])
    assert "about 120 requests: 90000 tokens in, up to 60000 out, about $0.12" in result.stderr
    assert "Add --yes" in result.stderr
    assert d2a("ingest", "a.pdf", "--yes").exit_code == 0
    assert [c[0] for c in memory.calls] == ["ingest"]


@pytest.mark.parametrize(("reply", "exit_code", "num_ingests"), [("y\n", 0, 1), ("n\n", 1, 0)])
def test_large_job_asks_on_a_terminal(
    d2a: Run, memory: Any, monkeypatch: pytest.MonkeyPatch, reply: str, exit_code: int, num_ingests: int
) -> None:
    monkeypatch.setattr(_output, "can_prompt", lambda: True)
    memory.job = LARGE
    result = d2a("ingest", "a.pdf", stdin=reply)
    assert (result.exit_code, len(memory.calls)) == (exit_code, num_ingests)
    assert "Go on?" in result.stderr and "Go on?" not in result.stdout


def test_small_job_is_previewed_but_not_asked_about(d2a: Run, memory: Any) -> None:
    memory.job = SimpleNamespace(num_calls=3, num_input_tokens=900, num_output_tokens=600, cost_usd=None)
    result = d2a("ingest", "a.pdf")
    assert result.exit_code == 0
    assert "about 3 requests: 900 tokens in, up to 600 out, price unknown" in result.stderr


def test_bar_counts_pages_and_atoms() -> None:
    progress = IngestProgress(
        source="/a/b [x].pdf", stage="compile", pages=3, num_pages=41, atoms=7, source_index=1, num_sources=5
    )
    assert _progress.describe(progress) == "[2/5] b [x].pdf  compile  3/41 pages  7 atoms"


def test_bar_lives_on_stderr_of_a_terminal_only(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_output, "is_terminal", lambda stream: stream is sys.stderr)
    result = d2a("ingest", "a.pdf")
    assert result.exit_code == 0
    assert result.stdout.startswith("added\t")
    assert "[1/1] a.pdf\n" not in result.stderr  # the plain line is not shown beside the bar
