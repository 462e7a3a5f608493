"""The smaller commands: docs, atoms, status, export, train."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from d2a_cli import _output
from d2a_cli._dashboard import event_line

Run = Callable[..., Any]


@pytest.mark.parametrize(
    "command",
    [("docs", "list"), ("docs", "show", "00c0"), ("docs", "forget", "00c0", "--yes"), ("atoms", "00c0"), ("status",)],
)
def test_json_of_every_command_is_one_valid_value(d2a: Run, command: tuple[str, ...]) -> None:
    result = d2a(*command, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)


def test_forget_without_a_terminal_needs_yes(d2a: Run, memory: Any) -> None:
    result = d2a("docs", "forget", "00c0")
    assert (result.exit_code, memory.calls) == (2, [])
    assert "Add --yes: d2a docs forget 00c0 --yes" in result.stderr
    assert d2a("docs", "forget", "00c0", "--yes").exit_code == 0
    assert memory.calls == [("forget", "00c0ffee00c0ffee")]


@pytest.mark.parametrize(("reply", "exit_code", "num_calls"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 130, 0)])
def test_forget_asks_on_a_terminal(
    d2a: Run, memory: Any, monkeypatch: pytest.MonkeyPatch, reply: str, exit_code: int, num_calls: int
) -> None:
    monkeypatch.setattr(_output, "can_prompt", lambda: True)
    result = d2a("docs", "forget", "00c0", stdin=reply)
    assert (result.exit_code, len(memory.calls)) == (exit_code, num_calls)
    assert "Forget see [smith2020] [/x] :warning: a:b:c (2 atoms)?" in result.stderr


def test_unknown_document_is_one_line(d2a: Run) -> None:
    result = d2a("docs", "show", "ffff")
    assert (result.exit_code, result.stderr) == (1, "error: no document 'ffff'. Run: d2a docs list\n")


def test_empty_memory_lists_nothing_and_says_what_to_do(d2a: Run, memory: Any) -> None:
    memory.stored = []
    result = d2a("docs", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "d2a ingest FILE" in result.stderr
    assert json.loads(d2a("docs", "list", "--json").stdout) == []


def test_atoms_can_be_narrowed_to_a_type(d2a: Run) -> None:
    assert len(d2a("atoms", "00c0").stdout.splitlines()) == 3
    lines = d2a("atoms", "00c0", "--type", "process_step").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["atom", "00c0ffee00c0ffee-000001"]
    assert d2a("atoms", "00c0", "--type", "poem").exit_code == 2


def test_status_prints_the_bank_of_the_flag(d2a: Run) -> None:
    lines = d2a("status", "--bank", "mine").stdout.splitlines()
    assert lines[0] == f"bank: {Path.cwd() / 'mine'}"
    assert "documents_by_status: 1 ok" in lines
    assert f"checkpoint_fingerprint: {'c' * 16}" in lines and f"bank_checkpoint_fingerprint: {'d' * 16}" in lines


def test_status_tells_a_bank_of_another_checkpoint_in_one_line_and_nothing_that_is_not_there(
    d2a: Run, memory: Any
) -> None:
    memory.mismatch = "it differs. Run `d2a ingest --rebuild`"
    assert d2a("status").stdout.splitlines()[-1] == "mismatch: it differs. Run `d2a ingest --rebuild`"
    memory.mismatch, memory.is_empty = None, True
    assert not [line for line in d2a("status").stdout.splitlines() if line.startswith(("mismatch", "bank_checkpoint"))]


def test_export_takes_exactly_one_of_question_and_atom(d2a: Run, memory: Any) -> None:
    assert d2a("export", "out").exit_code == 2
    assert d2a("export", "out", "--question", "q", "--atom", "a").exit_code == 2
    assert memory.calls == []
    result = d2a("export", "out", "--atom", "a")
    assert (result.exit_code, result.stdout) == (0, "out\n")
    assert "all atoms of this memory share this LoRA" in result.stderr
    assert memory.calls == [("export", (Path("out"), None, "a"))]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replaces `train` of `training.run`, not its request, and collects the requests."""
    from training.run import TrainRequest

    requests: list[Any] = []

    def train(request: Any, *, on_event: Callable[[dict], None]) -> Path:
        requests.append(request)
        on_event({"event": "start", "num_steps": 2, "spec": {"rank": 8}})
        on_event({"event": "step", "step": 1, "loss": 2.345678, "top_k": 8})
        return Path("runs/done")

    module = ModuleType("training.run")
    module.TrainRequest = TrainRequest
    module.train = train
    monkeypatch.setitem(sys.modules, "training.run", module)
    return requests


def test_train_prints_progress_on_stderr_and_the_folder_on_stdout(d2a: Run, training: list[Any]) -> None:
    result = d2a("train", "--max-steps", "2", "--seed", "7", "--data", "records")
    assert (result.exit_code, result.stdout) == (0, "runs/done\n")
    assert result.stderr.splitlines() == ["start: num_steps 2", "step 1: loss 2.346, top_k 8"]
    request = training[0]
    assert (request.config, request.model, request.device, request.register) == ("smollm2", "smollm2", "auto", True)
    assert (request.data, request.out) == (Path("records"), Path("runs/smollm2"))
    assert (request.max_steps, request.max_minutes, request.seed) == (2, None, 7)


def test_train_json_is_one_object_a_line(d2a: Run, training: list[Any]) -> None:
    options = ["--config", "mine.toml", "--model", "qwen", "--recipe", "paper", "--tracker", "trackio"]
    result = d2a("train", *options, "--json", "--no-register", "--data", "records", "--resume", "never")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["start", "step"]
    assert result.stderr == ""
    request = training[0]
    assert (request.config, request.model, request.register) == ("mine.toml", "qwen", False)
    assert (request.recipe, request.tracker, request.resume) == ("paper", "trackio", "never")
    assert request.out == Path("runs/mine")
    assert d2a("train", "--json").exit_code == 0 and training[1].data is None  # the paper's sets, from the hub


def test_of_several_processes_only_the_first_one_talks(
    d2a: Run, training: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    result = d2a("train", "--data", "records")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        (["--system", "d2l", "--documents", "atoms"], "atoms"),
        (["--system", "reader", "--prompt", "document"], "document"),
        (["--system", "blind"], None),
    ],
)
def test_train_takes_the_systems_that_the_memory_is_measured_against(
    d2a: Run, training: list[Any], options: list[str], reads: str | None
) -> None:
    assert d2a("train", "--data", "records", *options).exit_code == 0
    assert (training[0].system, training[0].reads) == (options[1], reads)
    assert d2a("train", "--data", "records", "--system", "nonesuch").exit_code == 2


def test_a_dry_run_prints_its_facts_on_stdout_and_trains_nothing(
    d2a: Run, training: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"model": "smollm2", "memory": {"sum_bytes": 3 * 2**30}, "time": {"hours_estimate": 1.23456}}

    def dry_run(request: Any, *, on_event: Callable[[dict], None]) -> dict[str, Any]:
        on_event({"event": "warning", "message": "no evaluation set"})
        on_event({"event": "annotate", "source": "squad", "done": 256, "total": 300})
        return facts

    monkeypatch.setattr("training.dry_run.dry_run", dry_run)
    result = d2a("train", "--data", "records", "--dry-run")
    assert result.stderr.splitlines() == [
        "warning: message no evaluation set",
        "annotate: source squad, done 256, total 300",
    ]
    assert result.stdout.splitlines() == ["model: smollm2", "memory.sum: 3.00 GiB", "time.hours_estimate: 1.235"]
    assert json.loads(d2a("train", "--data", "records", "--dry-run", "--json").stdout) == facts
    assert training == []


def test_event_line_shows_fields_it_does_not_know() -> None:
    assert (
        event_line({"event": "eval", "step": 50, "f1": 0.5, "split": "held-out"}) == "eval 50: f1 0.5, split held-out"
    )
    assert event_line({"event": "done"}) == "done"
