"""`d2a bench` over a runner that is a stand-in: what reaches it, what is printed, and what bad input says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2a_cli._bench import describe
from tests.training.bench.rows import row, write_run

Run = Callable[..., Any]
HEADER = {
    "suites": {"squad": {"n": 2, "num_total": 10570, "is_complete": False, "metric": "squad"}},
    "systems": {
        "doc2atom": {"status": "ok", "domain": {"squad": "in-domain"}},
        "blind": {"status": "unavailable", "why": "blind has no trained weights"},
    },
}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces the runner and the measurement of cost; collects what they are asked for."""
    asked: list[Any] = []

    def run_bench(request: Any, on_event: Callable[[dict], None]) -> Path:
        asked.append(request)
        on_event({"event": "suite", "suite": "squad", "total": 2, "systems": ["doc2atom"]})
        on_event({"event": "rows", "suite": "squad", "system": "doc2atom", "done": 1, "total": 2})
        on_event({"event": "rows", "suite": "squad", "system": "doc2atom", "done": 2, "total": 2})
        return write_run(request.out, [row("a", 1.0), row("b", 0.5)], **HEADER)

    def measure_costs(request: Any, on_event: Callable[[dict], None]) -> Path:
        asked.append("costs")
        target = {"name": "compile a document, invented", "value": 0.05, "limit": 0.1, "unit": "s", "passed": True}
        request.out.mkdir(parents=True, exist_ok=True)
        found = {"runs": {"smollm2 d2a trained cpu": {"targets": [target]}}}
        (request.out / "efficiency.json").write_text(json.dumps(found), "utf-8")
        return request.out

    monkeypatch.setattr("training.bench.run.run_bench", run_bench)
    monkeypatch.setattr("training.bench.costs.measure_costs", measure_costs)
    return asked


def test_every_option_reaches_the_runner(d2a: Run, requests: list[Any], tmp_path: Path) -> None:
    (tmp_path / "d2l").mkdir()
    options = "--limit 5 --seed 3 --bank all --k 4 --protocol official --recipe d2a --batch 8 --device cpu --no-resume"
    more = ["--data", "sets", "--checkpoint", "mine", "--baseline", f"d2l-raw={tmp_path / 'd2l'}", "--out", "here"]
    systems = ["--systems", "doc2atom,d2l-raw", "--systems", "retrieval"]
    assert d2a("bench", "squad", "longbench/hotpotqa", *options.split(), *more, *systems).exit_code == 0
    [asked] = requests
    assert (asked.suites, asked.systems) == (("squad", "longbench/hotpotqa"), ("doc2atom", "d2l-raw", "retrieval"))
    assert (asked.limit, asked.seed, asked.bank, asked.k, asked.protocol) == (5, 3, "all", 4, "official")
    assert (asked.recipe, asked.batch, asked.device, asked.resume) == ("d2a", 8, "cpu", False)
    assert (asked.data, asked.out, asked.model) == (Path("sets"), Path("here"), "smollm2")
    assert asked.baselines == {"d2l-raw": tmp_path / "d2l"} and asked.checkpoint.name == "mine"


def test_scores_go_to_stdout_and_progress_and_faults_to_stderr(d2a: Run, requests: list[Any]) -> None:
    result = d2a("bench", "squad")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:3] == [
        "Scores",
        "suite\tsystem\tF1 [95 %]\tROUGE-L\tEM\tofficial\tn\t",
        "squad\tdoc2atom\t75.0 [50.0, 100.0]\t75.0\t50.0\t75.0\t2\tsubset",
    ]
    notes = result.stderr.splitlines()
    assert notes[:2] == ["squad: 2 questions, 1 systems", "squad doc2atom 2/2"]
    assert "blind could not run: blind has no trained weights" in notes
    assert notes[-1] == "report: runs/bench-smollm2-squad/report.md"
    assert Path("runs/bench-smollm2-squad/report.md").is_file()


def test_json_is_one_object_with_all_figures(d2a: Run, requests: list[Any]) -> None:
    found = json.loads(d2a("bench", "squad", "--json").stdout)
    assert found["suites"]["squad"]["systems"]["doc2atom"]["f1"] == 0.75
    assert found["unavailable"] == {"blind": "blind has no trained weights"}
    assert found["header"]["protocol"] == "paper" and found["folder"] == "runs/bench-smollm2-squad"


@pytest.mark.parametrize(
    ("suites", "asked", "systems", "costs"),
    [
        ("drop squad drop", ("drop", "squad"), "default", False),
        ("refusal/squad refusal", ("refusal/squad", "refusal"), "default", False),
        ("efficiency squad", ("squad",), "default", True),
        (
            "context",
            ("squad", "drop", "ropes", "2wiki", "qasper", "longbench"),
            ("base+ctx", "doc2atom+ctx"),
            False,
        ),
        ("all", ("all", "refusal"), "default and doc2atom+ctx", True),
    ],
)
def test_names_of_suites_stand_for_sets_and_systems(
    d2a: Run, requests: list[Any], suites: str, asked: tuple, systems: Any, costs: bool
) -> None:
    default = ("no-context", "base+ctx", "doc2atom", "shuffled-document", "retrieval")
    known = {"default": default, "default and doc2atom+ctx": (*default, "doc2atom+ctx")}
    assert d2a("bench", *suites.split()).exit_code == 0
    request, *rest = requests
    assert (request.suites, request.systems) == (asked, known.get(systems, systems))
    assert rest == (["costs"] if costs else [])


def test_efficiency_alone_asks_no_questions_and_shows_its_figures(d2a: Run, requests: list[Any]) -> None:
    result = d2a("bench", "efficiency")
    assert requests == ["costs"]
    assert "compile a document, invented\t0.05\t0.1\ts\tyes\t" in result.stdout.splitlines()


def test_all_systems_are_asked_for_by_one_word(d2a: Run, requests: list[Any]) -> None:
    from training.bench.systems import SYSTEMS

    assert d2a("bench", "squad", "--systems", "all").exit_code == 0
    assert requests[0].systems == SYSTEMS


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sqaud"], "error: unknown suite 'sqaud'. Did you mean 'squad'"),
        (["longbench/hotpot"], "error: unknown suite 'longbench/hotpot'. Did you mean 'longbench/hotpotqa'"),
        (["compre", "a", "b"], "error: unknown suite 'compre'. Did you mean 'compare'?"),
        (["refusal/context"], "error: unknown suite 'context'. Known: squad, "),
        (["squad", "--systems", "doc2atoms"], "error: unknown system 'doc2atoms'. Did you mean 'doc2atom'"),
        (["squad", "--baseline", "d2l-raw"], "error: --baseline must be SYSTEM=PATH, got 'd2l-raw'"),
        (["squad", "--baseline", "d2l=x"], "error: unknown system 'd2l'"),
        (["squad", "--baseline", "blind=nowhere"], "error: --baseline blind: nowhere does not exist"),
    ],
)
def test_bad_input_is_one_line_that_helps(d2a: Run, requests: list[Any], arguments: list[str], line: str) -> None:
    result = d2a("bench", *arguments)
    assert (result.exit_code, result.stdout, requests) == (2, "", [])
    assert result.stderr.startswith(line) and result.stderr.count("\n") == 1


def test_missing_data_names_the_option(d2a: Run) -> None:
    result = d2a("bench", "squad", "--data", "nowhere", "--limit", "1")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr == "error: nowhere does not exist. Pass the folder of the data with --data\n"


def test_a_stopped_run_says_how_to_go_on(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_bench(request: Any, on_event: Callable[[dict], None]) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("training.bench.run.run_bench", run_bench)
    result = d2a("bench", "squad", "--out", "here")
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [
        "stopped; rows are kept in here. Run the same command again to go on",
        "interrupted",
    ]


def test_two_runs_are_compared_and_what_differs_is_said(d2a: Run) -> None:
    write_run(Path("a"), [row("s0", 0.5), row("s1", 0.5)], seed=0)
    write_run(Path("b"), [row("s0", 0.75), row("s1", 0.75)], seed=1)
    result = d2a("bench", "compare", "a", "b")
    assert result.stdout.splitlines()[1:] == [
        "suite\tsystem\tn\tA\tB\tdifference [95 %]\tB is\tleft out",
        "squad\tdoc2atom\t2\t50.0\t75.0\t+25.0 [+25.0, +25.0]\tbetter\t0",
    ]
    assert result.stderr == "warning: seed differs: 0 and 1\n"
    found = json.loads(d2a("bench", "compare", "a", "b", "--json", "--score", "em").stdout)
    assert (found["score"], found["comparisons"][0]["difference"]) == ("em", 0.0)


def test_two_systems_of_a_run_are_compared(d2a: Run) -> None:
    write_run(Path("a"), [row("s0", 0.5), row("s0", 1.0, system="no-context")])
    result = d2a("bench", "compare", "a", "--systems", "doc2atom", "no-context")
    assert result.stdout.splitlines()[1].split("\t")[3:5] == ["doc2atom", "no-context"]
    assert result.stdout.splitlines()[2].split("\t")[3:6] == ["50.0", "100.0", "+50.0 [+50.0, +50.0]"]
    for wrong in (["a"], ["a", "a", "--systems", "x", "y"], ["a", "a", "a"]):
        refused = d2a("bench", "compare", *wrong)
        assert refused.exit_code == 2 and "compare takes two runs, or one run and two systems" in refused.stderr


def test_a_report_is_written_anew_from_the_rows(d2a: Run) -> None:
    folder = write_run(Path("a"), [row("s0", 0.5)], **HEADER)
    assert d2a("bench", "report", "a").exit_code == 0
    assert "# Benchmark" in (folder / "report.md").read_text("utf-8")
    nothing = d2a("bench", "report", "elsewhere")
    assert nothing.exit_code == 1 and "elsewhere holds no benchmark" in nothing.stderr


def test_names_in_events_cannot_steer_the_terminal() -> None:
    told = describe({"event": "rows", "suite": "a\x1b[2J", "system": "b\n", "done": 1000, "total": 2000})
    assert told == "a b 1,000/2,000"
    assert describe({"event": "part", "part": "compile", "status": "done"}) == "part: part compile, status done"
