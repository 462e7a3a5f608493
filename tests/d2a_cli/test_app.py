"""Start-up, exit codes and streams of the whole program, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "lancedb", "openai", "pypdf", "pyarrow", "numpy", "rich", "prompt_toolkit", "tomlkit")


def environment() -> dict[str, str]:
    """The test's environment, with the packages on the path."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def test_help_imports_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys\nfrom d2a_cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        f"sys.stderr.write(' '.join(m for m in {HEAVY} if m in sys.modules))"
    )
    seconds = []  # of processor time, since the machine may be busy with other things
    for _ in range(3):
        start = os.times()
        done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=30)
        end = os.times()
        seconds.append(end.children_user + end.children_system - start.children_user - start.children_system)
        assert done.stderr == ""
    assert "ingest" in done.stdout
    assert min(seconds) < 0.4


def test_usage_faults_end_in_2(shell: Callable[..., Any]) -> None:
    unknown = shell("aks")
    assert (unknown.returncode, unknown.stdout) == (2, b"")
    assert b"Did you mean 'ask'" in unknown.stderr


def test_no_arguments_print_help(d2a: Callable[..., Any]) -> None:
    assert "Commands:" in d2a().output


def test_version_is_printed(d2a: Callable[..., Any]) -> None:
    result = d2a("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("d2a ")


def test_forget_in_a_pipe_does_not_wait(shell: Callable[..., Any]) -> None:
    result = shell("docs", "forget", "00c0", stdin=subprocess.PIPE)
    assert result.returncode == 2
    assert b"--yes" in result.stderr


def test_ask_with_a_closed_stdin_does_not_wait(fake: Any) -> None:
    command = f'exec "{sys.executable}" "{fake.__file__}" ask <&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment(), timeout=30)
    assert done.returncode == 2
    assert b"there is no question" in done.stderr


def test_reader_that_has_left_causes_no_noise(fake: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.Popen(
        [sys.executable, fake.__file__, "config", "show"], stdout=writer, stderr=subprocess.PIPE, env=environment()
    )
    os.close(writer)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (1, b"")


def test_ctrl_c_ends_in_130_without_a_traceback(fake: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, fake.__file__, "ask", "sleep"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # A shell that runs the tests in the background makes its children ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout.read(5) == b"In 18"  # the first token is there at once, though the line has not ended
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, error) == (130, b"interrupted\n")
