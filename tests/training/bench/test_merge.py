"""Runs that were made side by side become one, unless they do not belong together."""

import json

import pytest

from models.errors import D2AError
from tests.training.bench.rows import row, write_run
from training.bench.merge import main, merge_runs
from training.bench.results import read_results

OK = {"status": "ok", "domain": {}}


def suite(n: int = 2, samples: str = "ab") -> dict:
    return {"samples": samples, "n": n, "num_total": n, "is_complete": True, "metric": "squad", "note": ""}


def runs(folder, **more):
    """Two systems on SQuAD in two folders, one of them on DROP in a third."""
    rows = [row("a", 1.0), row("b", 0.0)]
    facts = {"suites": {"squad": suite()}, "k": 3, "checkpoint": "c0ffee", "versions": {"torch": "2.11"}}
    trained = {"doc2atom": {"status": "ok", "domain": {"squad": "in-domain"}}}
    one = write_run(folder / "1", rows, **facts, systems={**trained, "blind": {"status": "unavailable", "why": "none"}})
    two = write_run(
        folder / "2",
        [row("a", 0.5, system="no-context"), row("b", 0.5, system="no-context")],
        **{**facts, "systems": {"no-context": OK}, "command": "d2a bench squad --systems no-context", "limit": 9},
    )
    drop = {"systems": {"doc2atom": {"status": "ok", "domain": {"drop": "zero-shot"}}}, "suites": {"drop": suite(1)}}
    three = write_run(
        folder / "3",
        [row("a", 0.25, suite="drop")],
        **{**facts, **drop, "seconds": {"drop": {"doc2atom": 2.5}}, **more},
    )
    return [one, two, three]


def test_runs_side_by_side_become_one_with_its_report(tmp_path, capsys):
    page = tmp_path / "page.md"
    folders = [str(folder) for folder in runs(tmp_path)]
    assert main([str(tmp_path / "all"), *folders, "--page", str(page)]) == 0
    merged = read_results(tmp_path / "all")
    assert list(merged.rows) == [("squad", "no-context"), ("squad", "doc2atom"), ("drop", "doc2atom")]
    assert [r.scores["f1"] for r in merged.rows["squad", "no-context"]] == [0.5, 0.5]
    header = merged.header
    assert header["systems"]["doc2atom"]["domain"] == {"squad": "in-domain", "drop": "zero-shot"}
    assert merged.unavailable() == {"blind": "none"}
    assert header["seconds"] == {"drop": {"doc2atom": 2.5}} and header["versions"] == {"torch": "2.11"}
    assert "limit" not in header  # one run drew samples, which its suite says
    # No run asked DROP without context: nothing is missing.
    assert (merged.num_missing("squad"), merged.num_missing("drop")) == (0, 0)
    text = page.read_text("utf-8")
    assert "\n    d2a bench squad\n    d2a bench squad --systems no-context\n    d2a bench squad\n\n" in text
    assert "unfinished" not in text and "![" not in text and "25.0" in text
    assert capsys.readouterr().out.strip() == str(tmp_path / "all" / "report.md")


def test_rows_that_a_merged_run_lacks_are_missing(tmp_path):
    folders = runs(tmp_path)
    lines = (folders[1] / "predictions.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folders[1] / "predictions.jsonl").write_text(lines[0], "utf-8")
    assert read_results(merge_runs(folders, tmp_path / "all")).num_missing("squad") == 1


def test_runs_of_different_conditions_or_with_the_same_rows_are_refused(tmp_path, capsys):
    folders = [str(folder) for folder in runs(tmp_path, checkpoint="decaf")]
    assert main([str(tmp_path / "all"), *folders]) == 1
    assert "measured with checkpoint decaf" in capsys.readouterr().err
    assert main([str(tmp_path / "all"), folders[0], folders[0]]) == 1
    assert "holds rows of squad doc2atom, which another run has" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model", "base", "protocol", "bank", "k", "seed", "recipe", "threshold"])
def test_runs_that_differ_in_any_condition_are_refused(name, tmp_path):
    with pytest.raises(D2AError, match=f"3 was measured with {name} other, .*1 with "):
        merge_runs(runs(tmp_path, **{name: "other"}), tmp_path / "all")


def test_runs_that_drew_other_samples_of_a_suite_are_refused(tmp_path, capsys):
    folders = [str(folder) for folder in runs(tmp_path)]
    facts = {"suites": {"drop": suite(1, "b")}, "systems": {"no-context": OK}, "k": 3}
    other = write_run(tmp_path / "4", [row("b", 0.5, suite="drop", system="no-context")], **facts)
    assert main([str(tmp_path / "all"), *folders, str(other)]) == 1
    told = capsys.readouterr().err
    assert f"{other} was asked other samples of drop than {folders[2]}. Merge runs of one --limit" in told


def test_a_run_without_memory_serves_another_checkpoint(tmp_path):
    rows = [row("a", 1.0, system="base+ctx", suite="ropes"), row("a", 1.0, system="base+ctx", suite="refusal/squad")]
    suites = {"refusal/squad": suite(1), "ropes": suite(1)}
    facts = {"systems": {"base+ctx": OK}, "suites": suites, "k": 3, "checkpoint": "decaf", "threshold": 0.5}
    header = read_results(
        merge_runs([write_run(tmp_path / "0", rows, **facts), *runs(tmp_path)], tmp_path / "all")
    ).header
    assert header["checkpoint"] == "c0ffee" and "threshold" not in header
    # In the order of the suites and systems that there are, refusal last.
    assert list(header["suites"]) == ["squad", "drop", "ropes", "refusal/squad"]
    assert list(header["systems"]) == ["no-context", "base+ctx", "doc2atom", "blind"]


def test_costs_come_along(tmp_path):
    folders = runs(tmp_path)
    costs = {"runs": {"gemma": {"targets": []}}}
    (folders[2] / "efficiency.json").write_text(json.dumps(costs), "utf-8")
    assert read_results(merge_runs(folders, tmp_path / "all")).efficiency == costs


def test_a_folder_without_a_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "all")])
    assert main([str(tmp_path / "all"), str(tmp_path / "none")]) == 1
    assert "none holds no benchmark" in capsys.readouterr().err


def test_trained_checkpoints_of_all_runs_come_together_unless_two_are_of_one_system(tmp_path):
    *two, third = runs(tmp_path, baselines={"blind": "runs/blind"})
    assert read_results(merge_runs([*two, third], tmp_path / "all")).header["baselines"] == {"blind": "runs/blind"}
    facts = {"suites": {"ropes": suite(1)}, "systems": {"no-context": OK}, "k": 3}
    other = [row("a", 0.5, suite="ropes", system="no-context")]
    fourth = write_run(tmp_path / "4", other, **facts, baselines={"blind": "runs/another"})
    with pytest.raises(D2AError, match="4 was measured with blind of runs/another, another run with runs/blind"):
        merge_runs([*two, third, fourth], tmp_path / "more")
