"""The fake memory behind the one seam of the command line, in an empty home and folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from d2a_cli import _memory
from d2a_cli.app import app

SCRIPT = Path(__file__).with_name("fake_memory.py")
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module `fake_memory`, which lies beside the tests and is no package."""
    spec = importlib.util.spec_from_file_location("fake_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_memory"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder, and no settings in the environment."""
    for name in [n for n in os.environ if n.startswith("D2A_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it would hide what is left in a buffer
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name.lower()))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def memory(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The memory that every command opens; its `config` is what the command opened it with."""
    one = fake.FakeMemory()

    def open_memory(config: Any) -> Any:
        one.config = config
        return one

    monkeypatch.setattr(_memory, "open_memory", open_memory)
    return one


@pytest.fixture
def d2a(memory: Any) -> Callable[..., Any]:
    """Run `d2a ARGS` in this process: the result has exit_code, stdout and stderr."""

    def run(*args: str, stdin: str | bytes | None = None) -> Any:
        result = CliRunner().invoke(app, list(args), input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def shell() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Run `d2a ARGS` over the fake memory in a process of its own, with pipes."""

    def run(*args: str, env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[bytes]:
        more.setdefault("stdin", subprocess.DEVNULL)
        variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})}
        return subprocess.run(
            [sys.executable, str(SCRIPT), *args], capture_output=True, env=variables, timeout=30, **more
        )

    return run
