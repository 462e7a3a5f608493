"""Text that could steer a terminal, through every channel."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from d2a_cli import _output


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a\x1b]0;title\x07b", "ab"),  # OSC ended by BEL
        ("a\x1b]8;;http://x\x1b\\b", "ab"),  # OSC ended by ST
        ("a\x9d0;title\x9cb", "ab"),  # the same in 8-bit controls
        ("a\x1bP1$q\x1b\\b", "ab"),  # DCS
        ("a\x1b[1;31mb\x9b2Jc", "abc"),  # CSI, 7 and 8 bit
        ("a\x1b(Bb", "ab"),  # character set
        ("a\x1b]0;never ended b", "a]0;never ended b"),  # a lone introducer swallows nothing
        ("a\x1b]0;x\nkept\x07", "a]0;x\nkept"),
        ("a\x00\x08\x7f\x85b", "ab"),
        ("a\u202eb\u2066c\u200fd", "abcd"),
        ("a\r\nb\rc\td", "a\nb\nc\td"),
        ("[red]x[/red] :smile: 机 é\u200dk", "[red]x[/red] :smile: 机 é\u200dk"),
    ],
)
def test_sanitize_drops_what_steers_a_terminal_and_nothing_else(text: str, plain: str) -> None:
    assert _output.sanitize(text) == plain


def test_sanitizing_twice_changes_nothing_even_where_removal_joins_two_halves() -> None:
    # Taking out the inner sequence brings ESC and [ together; the ESC must not survive that.
    text = "\x1b\x1b[31m[2J"
    assert _output.sanitize(text) == _output.sanitize(_output.sanitize(text)) == "[2J"


def test_json_escapes_eight_bit_controls_and_reads_back_equal(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"t": "\x9b2J\x7f\u202e ≤ 机 \x1b"}
    _output.emit_json(value)
    written = capsys.readouterr().out
    assert json.loads(written) == value
    assert not any(c in written for c in "\x9b\x7f\u202e\x1b")
    assert "≤ 机" in written


@pytest.mark.parametrize(
    "command", [("docs", "list"), ("docs", "show", "00c0"), ("atoms", "00c0"), ("ask", "q", "--explain")]
)
@pytest.mark.parametrize("is_terminal", [False, True])
def test_hostile_titles_stay_text(
    d2a: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], is_terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(_output, "is_terminal", lambda stream: is_terminal and stream is sys.stdout)
    result = d2a(*command)
    assert result.exit_code == 0
    assert not any(c in result.stdout for c in "\x1b\x07\x9b\u202e")
    assert "see [smith2020] [/x] :warning: a:b:c" in result.stdout


def test_table_is_whole_when_piped_and_cut_to_the_width_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("x" * 100, "a\tb\nc")]  # the long column gives way, the short one stays whole
    _output.table(("long", "short"), rows)
    assert capsys.readouterr().out == f"long\tshort\n{'x' * 100}\ta b c\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(_output, "is_terminal", lambda stream: True)
    _output.table(("long", "short"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[1].rstrip().endswith("a b c")


def test_output_is_utf8_under_any_code_page(shell: Callable[..., Any]) -> None:
    result = shell("ask", "When?", env={"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"})
    assert result.returncode == 0
    assert "In 1874 ≤ ✓ 机." in result.stdout.decode("utf-8")


def test_lone_surrogates_do_not_end_the_output() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        _output.use_utf8()
        _output.line("caf\udce9 ≤")
        stream.flush()
    assert stream.buffer.getvalue() == b"caf\\udce9 \xe2\x89\xa4\n"


def test_our_logs_are_lines_on_stderr_and_those_of_libraries_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in ("", "models", "training", "d2a_cli")]
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    try:
        with warnings.catch_warnings():
            _output.route_logs(debug=False)
            logging.getLogger("models.base").warning("using \x1b[31m%s", "sdpa")
            logging.getLogger("models.base").info("converting")
            logging.getLogger("models.base").debug("noise")
            logging.getLogger("pypdf").error("noise")
            warnings.warn("noise", stacklevel=1)
    finally:
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.level, logger.propagate, logger.handlers = level, propagate, handlers
    assert capsys.readouterr().err == "warning: using sdpa\nconverting\n"


def test_real_terminal_gets_no_sequence_from_a_document(fake: ModuleType, home: Any) -> None:
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, fake.__file__, "docs", "list"],
        stdin=subprocess.DEVNULL,
        stdout=side,
        stderr=side,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200", "NO_COLOR": "1", "TERM": "xterm"},
    )
    os.close(side)
    shown = b""
    while chunk := _read(main):
        shown += chunk
    assert process.wait(timeout=20) == 0
    text = shown.decode()
    assert "see [smith2020] [/x] :warning: a:b:c" in text
    # NO_COLOR leaves rich's bold; only those may start with ESC.
    assert "\x1b]" not in text and "\x1b[2J" not in text and "\x9b" not in text and "\x07" not in text


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux reports the closed side of a pseudo-terminal as an error
        return b""
