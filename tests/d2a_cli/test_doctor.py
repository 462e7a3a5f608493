"""`d2a doctor`: every check has a level and, where something is wrong, a next step."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from d2a_cli import _memory
from models.errors import BaseModelError, CheckpointError

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A torch that takes no seconds to import and has only a CPU."""
    torch = ModuleType("torch")
    torch.__version__ = "2.0"
    torch.cuda = SimpleNamespace(is_available=lambda: False)
    torch.backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


def checks(result: Any) -> dict[str, dict[str, str]]:
    return {c["name"]: c for c in json.loads(result.stdout)["checks"]}


def test_sound_installation_passes(d2a: Run) -> None:
    result = d2a("doctor")
    assert result.exit_code == 0, result.output
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"ok"}
    names = {line.split()[1] for line in result.stdout.splitlines()}
    assert names == {"python", "settings", "torch", "flash-attn", "atomizer", "base", "checkpoint", "bank"}


def test_missing_base_and_checkpoint_fail_with_the_command_that_adds_them(
    d2a: Run, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, error in (
        ("base", BaseModelError("not installed", hint="Run: pip install the-base")),
        ("checkpoint", CheckpointError("none for gemma", hint="Run: d2a train --model gemma")),
    ):

        def warm_up(error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(memory, "warm_up", warm_up)
        result = d2a("doctor", "--json")
        assert result.exit_code == 1
        check = checks(result)[name]
        assert (check["level"], check["message"], check["next_step"]) == ("fail", error.message, error.hint)
        assert checks(result)["bank"]["level"] == "ok"  # one fault does not hide the other checks


def test_documents_that_are_not_whole_are_named(d2a: Run, memory: Any, fake: ModuleType) -> None:
    memory.stored = [fake.document(status="partial", reason="window 3 failed", title="a")]
    result = d2a("doctor")
    assert result.exit_code == 0
    assert "warn  document    a is partial: window 3 failed. Retry: d2a ingest '/docs/" in result.stdout
    memory.stored = [
        fake.document(status="failed", reason="it is empty", num_atoms=0, sources=("b.pdf",), title="b.pdf")
    ]
    assert "b.pdf is failed: it is empty. Retry: d2a ingest b.pdf" in d2a("doctor").stdout
    memory.stored = [fake.document(num_atoms=5, title="a")]
    result = d2a("doctor")
    assert result.exit_code == 1
    assert "fail  document    a has 2 of 5 atoms. Run: d2a ingest --rebuild" in result.stdout


def test_faults_of_the_bank_are_told_with_their_repair(d2a: Run, memory: Any) -> None:
    memory.faults = [
        SimpleNamespace(message="2 shards too many", next_step="The next ingest removes them", harmful=False)
    ]
    result = d2a("doctor")
    assert result.exit_code == 0
    assert "warn  bank        2 shards too many. The next ingest removes them" in result.stdout
    memory.faults = [SimpleNamespace(message="a shard is missing", next_step="Run: d2a ingest --rebuild", harmful=True)]
    result = d2a("doctor")
    assert result.exit_code == 1
    assert "fail  bank        a shard is missing. Run: d2a ingest --rebuild" in result.stdout


def test_no_bank_yet_is_a_warning(d2a: Run, memory: Any) -> None:
    memory.is_empty = True
    result = d2a("doctor", "--json")
    assert result.exit_code == 0
    assert (checks(result)["bank"]["level"], checks(result)["bank"]["next_step"]) == ("warn", "Run: d2a ingest FILE")


def test_device_that_is_not_there_fails(d2a: Run) -> None:
    result = d2a("doctor", "--json", "--device", "cuda")
    assert result.exit_code == 1
    assert checks(result)["torch"]["message"] == "2.0 has no cuda; it has cpu"


def test_broken_settings_fail_and_end_the_checks(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2A_TOP_K", "many")
    result = d2a("doctor", "--json")
    assert result.exit_code == 1
    assert checks(result)["settings"]["level"] == "fail"
    assert "D2A_TOP_K" in checks(result)["settings"]["message"]


def test_misspelt_variable_is_a_warning_with_the_right_name(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2A_MODEL", "gemma")
    check = checks(d2a("doctor", "--json"))["settings"]
    assert (check["level"], check["next_step"]) == ("warn", "Did you mean D2A_PRESET?")


@pytest.mark.parametrize(
    ("base_url", "key", "level"),
    [
        (None, None, "fail"),
        (None, "sk-secret", "ok"),
        ("http://localhost:8080/v1", None, "ok"),
        ("localhost:8080/v1", "sk-secret", "fail"),
        ("https://u:sk-secret@host/v1", "k", "ok"),
    ],
)
def test_endpoint_of_the_atomizer(
    d2a: Run, monkeypatch: pytest.MonkeyPatch, base_url: str | None, key: str | None, level: str
) -> None:
    monkeypatch.setenv("D2A_ATOMIZER_BACKEND", "openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if base_url:
        monkeypatch.setenv("D2A_ATOMIZER_BASE_URL", base_url)
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    result = d2a("doctor", "--json")
    assert checks(result)["atomizer"]["level"] == level
    assert "sk-secret" not in result.output


def test_memory_that_cannot_be_opened_fails(d2a: Run, fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "open_memory", fake.failing_memory)
    result = d2a("doctor")
    assert result.exit_code == 1
    assert "fail  memory      the bank was made by smollm2, not gemma. Run: d2a ingest --rebuild" in result.stdout


def test_nothing_is_downloaded(d2a: Run, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    seen = []
    monkeypatch.setattr(memory, "warm_up", lambda: seen.append(os.environ.get("HF_HUB_OFFLINE")))
    d2a("doctor")
    assert seen == ["1"]
