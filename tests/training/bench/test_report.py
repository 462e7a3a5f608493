"""The report of a run: what its page says of scores, gaps, faults and the paper, and its pictures."""

from __future__ import annotations

import json
import sys

import pytest

from tests.training.bench.rows import row, write_run
from training.bench.report import facts, terminal_tables, write_report

HEADER = {
    "command": "d2a bench squad --limit 2",
    "versions": {"torch": "2.13"},
    "checkpoint": None,
    "k": 3,
    "suites": {
        "squad": {
            "n": 2,
            "num_total": 10570,
            "is_complete": False,
            "metric": "squad",
            "num_atoms": 12,
            "mean_bank_atoms": 6.0,
            "note": "drawn | at random",
        }
    },
    "systems": {
        "doc2atom": {"status": "ok", "domain": {"squad": "in-domain"}},
        "blind": {"status": "unavailable", "why": "no weights"},
        "d2l-ckpt": {"status": "unavailable", "why": "the release\nis not here"},
    },
    "seconds": {"squad": {"doc2atom": 61.4}},
}
ROWS = [
    row("a", 1.0, answerability=0.9, refusal_logprob=-5.0, gold_rank=1, extra={"bm25_rank": 2}),
    row("b", 0.5, answerability=0.8, refusal_logprob=-4.0, gold_rank=None, extra={"bm25_rank": 1}),
]
REFUSAL = [
    row("a", 1.0, suite="refusal/squad", answerability=0.9, refusal_logprob=-5.0),
    row("u", 0.0, suite="refusal/squad", kind="probe", answerability=0.1, refusal_logprob=-1.0, ungated=("Rome", 0.0)),
]


def page(folder, rows, **header):
    """The report of a run, as text."""
    write_report(write_run(folder, rows, **{**HEADER, **header}))
    return (folder / "report.md").read_text("utf-8")


def table(text, title):
    """The rows of the table under a title, without its header."""
    lines = text.split(f"## {title}\n")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return cells[2:]


def test_the_head_names_the_command_and_every_plain_fact(tmp_path):
    text = page(tmp_path, ROWS)
    assert text.startswith("# Benchmark\n\n    d2a bench squad --limit 2\n")
    assert "\n- versions.torch: 2.13\n" in text and "\n- answering, seconds: 61\n" in text
    assert "checkpoint" not in text.split("## ")[0].split("Scores are")[0]
    assert dict(facts({"a": {"b": [1, 2]}, "c": None})) == {"a.b": "1, 2"}


def test_scores_stand_beside_the_papers_and_missing_systems_keep_their_row(tmp_path):
    text = page(tmp_path, ROWS)
    assert "2 of 10,570 questions." in text and "6.0 atoms on average, 12 in all" in text
    ours, *others = table(text, "squad, subset, n = 2")
    # F1 (1 + 0.5) / 2 and EM 1 of 2; the paper's Table 1 has 59.71 and 59.82 for its memory on SQuAD.
    assert ours[:5] == ["doc2atom", "75.0 [50.0, 100.0]", "75.0", "50.0", "75.0"]
    assert ours[5:] == ["75.0", "0.0", "2", "0", "in-domain", "59.71", "59.82"]
    said = {row[0]: (row[1], row[-2]) for row in others}
    assert said["blind"] == ("could not run", "") and said["d2l-ckpt"] == ("could not run", "73.20")
    assert said["d2l-raw"] == ("not asked", "18.67") and said["base+ctx"] == ("not asked", "86.35")
    assert ["d2l-ckpt", "the release is not here"] in table(text, "Could not run")


def test_a_system_that_an_interrupted_run_has_not_come_to_keeps_its_row(tmp_path):
    systems = {**HEADER["systems"], "base+ctx": {"status": "ok", "domain": {}}}
    text = page(tmp_path, ROWS, systems=systems)
    said = {row[0]: row[1] for row in table(text, "squad, subset, n = 2")}
    assert said["base+ctx"] == "to come" and "- **unfinished**: 2 rows are still to come" in text


def test_rows_that_failed_are_counted_and_said(tmp_path):
    failed = row("b", 0.0, prediction="", error="out of memory")
    text = page(tmp_path, [ROWS[0], failed])
    assert "**1 row(s) failed** and score 0" in text
    assert table(text, "squad, subset, n = 2")[0][7:9] == ["2", "1"]


def test_a_complete_suite_says_so(tmp_path):
    complete = {"squad": {**HEADER["suites"]["squad"], "num_total": 2, "is_complete": True}}
    assert "## squad, complete\n" in page(tmp_path, ROWS, suites=complete)


def test_routing_stands_beside_bm25(tmp_path):
    assert table(page(tmp_path, ROWS), "squad, routing") == [
        ["doc2atom", "2", "50.0", "50.0"],
        ["BM25 on the same atoms", "2", "50.0", "100.0"],
    ]


def test_overall_is_given_both_ways_and_says_what_is_missing(tmp_path):
    rows = [row("a", 1.0), row("x", 0.5, suite="drop")]
    text = page(tmp_path, rows)
    [found] = table(text, "Overall")
    # Weighted by 460 questions of SQuAD and 223 of DROP: (460 + 111.5) / 683 = 0.8367.
    assert (
        found[:3] == ["doc2atom", "75.0 [75.0, 75.0]", "83.7 [83.7, 83.7]"]
        and found[5] == "2 of 13"
        and found[6:] == ["37.99", "35.72"]
    )
    assert "inferred from its Overall" in text and "Some systems lack 2wiki, qasper, ropes" in text


def test_refusal_tells_the_refusers_apart_and_stands_beside_the_papers(tmp_path):
    bare = [row("a", 0.0, suite="refusal/squad", system="no-context", prediction="Oslo")]
    bare += [row("u", 0.0, suite="refusal/squad", system="no-context", prediction="unanswerable", kind="probe")]
    text = page(tmp_path, [*REFUSAL, *bare])
    found = {(line[0], line[1]): line[2:] for line in table(text, "Refusal, refusal/squad")}
    assert found["doc2atom", "gate"][:2] == ["100.0 [100.0, 100.0]", "100.0"]
    assert found["doc2atom", "generation"][:2] == ["0.0 [0.0, 0.0]", "0.0"]
    assert found["doc2atom", "both"][-2:] == ["85.25", "54.13"]
    # The base under the same prompt refuses what it should and answers wrongly what it should not.
    assert found["no-context", "prompt alone"][1:4] == ["100.0", "0.0 [0.0, 0.0]", "0.0"]
    assert table(text, "Answerable or not, refusal/squad")[0] == ["doc2atom", "gate", "100.0", "0.250"]


def test_the_memory_beside_the_document_is_a_paired_difference(tmp_path):
    rows = [row("a", 0.5, system="base+ctx"), row("a", 1.0, system="doc2atom+ctx")]
    rows += [row("a", 1.0, system=system, suite="refusal/squad") for system in ("base+ctx", "doc2atom+ctx")]
    [found] = table(page(tmp_path, rows), "The memory beside the document, F1")
    assert found[2:] == ["1", "50.0", "100.0", "+50.0 [+50.0, +50.0]", "better", "0"]


def test_costs_alone_make_a_report(tmp_path):
    target = {"name": "compile", "value": 0.0512345, "limit": 0.1, "unit": "s", "passed": True, "note": "warm"}
    costs = {"runs": {"gemma": {"targets": [target, {**target, "value": None, "passed": None}]}}}
    (tmp_path / "efficiency.json").write_text(json.dumps(costs), "utf-8")
    summary = write_report(tmp_path)
    found = table((tmp_path / "report.md").read_text("utf-8"), "Efficiency, gemma")
    assert found == [["compile", "0.05123", "0.1", "s", "yes", "warm"], ["compile", "", "0.1", "s", "", "warm"]]
    assert summary["efficiency"] == costs


def test_the_parts_of_costs_have_tables_and_what_is_missing_a_note(tmp_path):
    times = {"n": 6, "mean_ms": 1073.36, "p50_ms": 1050.0, "p95_ms": 1253.7}
    slow = {"n": 2, "mean_ms": 2000.0, "p50_ms": 2000.0, "p95_ms": 2100.0}
    bank = {"num_atoms": 100000, "routing": times, "question": {**times, "added_mib": 54.0}, "words": "used"}
    kinds = {"no adapter": {"tokens_per_s": 40.0, "tokens_per_s_whole": 35.0}}
    kinds["adapter"] = {"tokens_per_s": 39.0, "tokens_per_s_whole": 34.0}
    parts = {
        "compile": {
            "invented": {**times, "added_mib": 9.3, "parts": {"encoder": times}, "first": slow},
            "seconds": 17.2,
        },
        "d2l": {"invented": {"mean_chunks": 3.0, "batched": {"left_out": "too large"}}, "parameters": 7},
        "questions": {"banks": [bank]},
        "generation": {
            "kinds": kinds,
            "overhead_of": {"adapter": 0.0286},
            "overhead_quartiles": [0.0103, 0.0412],
            "new_tokens": 24,
            "top_k": 8,
        },
        "product": {"left_out": "lancedb is not installed here"},
    }
    # 13.43 GB are 13.43e9 / 2^20 = 12,808 MiB.
    paper = {"doc2atom_s": 2.1, "doc2atom_gb": 13.43}
    costs = {"runs": {"gemma": {"targets": [], "parts": parts, "paper": paper}}}
    (tmp_path / "efficiency.json").write_text(json.dumps(costs), "utf-8")
    write_report(tmp_path)
    text = (tmp_path / "report.md").read_text("utf-8")
    assert table(text, "gemma: compiling a document") == [
        ["invented", "doc2atom", "6", "1.0734", "1.0500", "1.2537", "9.3"],
        ["invented", "doc2atom, for the first time", "2", "2.0000", "2.0000", "2.1000", ""],
        ["invented", "of which encoder", "6", "1.0734", "1.0500", "1.2537", ""],
        ["paper, one A100", "doc2atom", "", "2.10", "", "", "12,808"],
    ]
    assert table(text, "gemma: questions to a growing bank") == [["100,000", "1050", "1254", "1.05", "54", "used"]]
    assert table(text, "gemma: generation")[1] == ["adapter", "39", "34", "2.9"]
    assert "the middle half of the turns lies between 1.0 and 4.1 % of time added" in text.lower()
    assert "Product: lancedb is not installed here." in text


def test_the_summary_on_disk_is_what_is_returned(tmp_path):
    returned = write_report(write_run(tmp_path, [*ROWS, *REFUSAL], **HEADER))
    kept = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert kept["suites"]["squad"]["systems"]["doc2atom"]["f1"] == 0.75
    assert kept == {k: v for k, v in json.loads(json.dumps(returned)).items() if k in kept}
    titles = [found.title for found in terminal_tables(tmp_path, returned)]
    assert titles == ["Scores", "Overall", "Refusal F1 by kind of unanswerable question"]


def test_without_matplotlib_one_line_says_how_to_get_pictures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = write_report(write_run(tmp_path, ROWS, **HEADER))
    assert told["pictures"] == [] and "pip install 'd2a[report]'" in told["note"]
    assert told["note"] in (tmp_path / "report.md").read_text("utf-8")


def test_pictures_are_drawn_for_what_has_figures(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    told = write_report(write_run(tmp_path / "both", [*ROWS, *REFUSAL], **HEADER))
    assert told["pictures"] == ["f1.png", "risk_coverage.png", "refusal.png"] and "note" not in told
    for name in told["pictures"]:
        assert (tmp_path / "both" / name).read_bytes().startswith(b"\x89PNG")
    assert write_report(write_run(tmp_path / "one", ROWS, **HEADER))["pictures"] == ["f1.png"]


def test_the_bars_are_the_means_and_the_whiskers_their_intervals():
    figure = pytest.importorskip("matplotlib.figure", reason="pictures need matplotlib")
    from training.bench.charts import _f1_panel

    axes = figure.Figure().subplots()
    systems = {"doc2atom": {"f1": 0.75, "f1_interval": (0.5, 0.875)}, "blind": {"f1": 0.25, "f1_interval": (0.25, 0.5)}}
    _f1_panel({"label": "complete", "systems": systems}, {"doc2atom": "C0", "blind": "C1"})(axes)
    assert [bar.get_width() for bar in axes.patches] == [75.0, 25.0]
    [whiskers] = [c for c in axes.collections if hasattr(c, "get_segments")]
    assert [[x for x, _ in segment] for segment in whiskers.get_segments()] == [[50.0, 87.5], [25.0, 50.0]]
