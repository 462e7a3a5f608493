"""The report of a run: its figures, its curves, and what it says without matplotlib."""

import json
import sys

import pytest

from training.report import read_events, series, write_report

EVENTS = [
    {"event": "start", "system": "doc2atom", "device": "cpu", "spec": {"rank": 8}},
    {"event": "step", "step": 50, "lm": 2.5, "lr": 1e-3, "top_k": 2, "stage": 1},
    {"event": "step", "step": 100, "lm": 2.0, "route": 0.5, "lr": 2e-3, "top_k": 4, "stage": 2},
    {"event": "eval", "step": 100, "loss": 1.75, "top1_passage": 0.5},
]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in EVENTS), "utf-8")
    return tmp_path


def test_curves_are_the_values_where_they_are():
    assert series(EVENTS, "step", ("lm", "route")) == {"lm": ([50, 100], [2.5, 2.0]), "route": ([100], [0.5])}


def test_the_page_holds_facts_and_evaluations(run):
    write_report(run)
    page = (run / "report" / "report.md").read_text()
    assert "- system: doc2atom\n- device: cpu\n" in page and "rank" not in page
    assert "| step | loss | top1_passage |\n| --- | --- | --- |\n| 100 | 1.75 | 0.5 |" in page


def test_without_matplotlib_the_page_says_how_to_get_curves(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    told = write_report(run)
    assert told["pictures"] == [] and "pip install 'd2a[report]'" in told["note"]
    assert told["note"] in (run / "report" / "report.md").read_text()


def test_curves_are_pictures_where_matplotlib_is(run):
    pytest.importorskip("matplotlib", reason="curves need matplotlib")
    told = write_report(run)
    assert told["pictures"] == ["losses", "held_out", "routing", "schedule"] and "note" not in told
    for name in told["pictures"]:
        assert (run / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_resumed_run_did_twice_counts_once(tmp_path):
    told = [*EVENTS, {"event": "resume", "step": 50}, {"event": "step", "step": 100, "lm": 1.9}]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(e) + "\n" for e in told), "utf-8")
    assert series(read_events(path), "step", ("lm",)) == {"lm": ([50, 100], [2.5, 1.9])}
