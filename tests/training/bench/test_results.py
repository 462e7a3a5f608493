"""The folder of a run read back: whole, interrupted and broken."""

from __future__ import annotations

import pytest

from models.errors import D2AError
from tests.training.bench.rows import row, write_run
from training.bench.results import read_results


def test_rows_come_back_by_suite_and_system_in_their_order(tmp_path):
    rows = [row("a", 1.0), row("b", 0.5), row("a", 0.0, system="no-context"), row("x", 1.0, suite="drop")]
    found = read_results(write_run(tmp_path, rows))
    assert list(found.rows) == [("squad", "doc2atom"), ("squad", "no-context"), ("drop", "doc2atom")]
    assert [one.sample_id for one in found.rows["squad", "doc2atom"]] == ["a", "b"]
    assert found.rows["squad", "doc2atom"][0] == rows[0]
    assert (found.suites, found.systems) == (["squad", "drop"], ["doc2atom", "no-context"])


def test_a_line_that_a_killed_run_left_half_is_not_a_row(tmp_path):
    folder = write_run(tmp_path, [row("a", 1.0), row("b", 0.5)])
    path = folder / "predictions.jsonl"
    path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    assert [one.sample_id for one in read_results(folder).rows["squad", "doc2atom"]] == ["a"]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    folder = write_run(tmp_path, [row("a", 1.0), row("b", 0.5)])
    path = folder / "predictions.jsonl"
    path.write_text('{"suite": "squad"}\n' + path.read_text("utf-8"), "utf-8")
    with pytest.raises(D2AError, match=r"predictions\.jsonl: line 1 is not a row.*--no-resume"):
        read_results(folder)


def test_a_folder_without_a_run_says_what_to_name(tmp_path):
    with pytest.raises(D2AError, match=r"holds no benchmark, run\.json is missing\. Name the --out of d2a bench"):
        read_results(tmp_path)


def test_systems_that_could_not_run_keep_their_reason(tmp_path):
    systems = {"doc2atom": {"status": "ok", "domain": {"squad": "in-domain"}}}
    systems["d2l-ckpt"] = {"status": "unavailable", "why": "the release is not here"}
    found = read_results(write_run(tmp_path, [row("a", 1.0)], systems=systems))
    assert found.unavailable() == {"d2l-ckpt": "the release is not here"}
    assert found.domain("squad", "doc2atom") == "in-domain" and found.domain("drop", "doc2atom") == ""
