"""What reaches the terminal: data on stdout, prose and progress on stderr.

Text of documents, models and file names is untrusted: every function here takes out what could steer
a terminal, and none of them reads its text as markup. It knows nothing of memories or answers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

# A whole sequence goes, not only its first byte, or its parameters would stay behind as litter. The
# bodies are bounded and end at a line break, so that a lone introducer cannot swallow the text after it.
_SEQUENCES = re.compile(
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|\x1b[ -/]+[0-~]"  # charset selection and the like
)
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Characters up to which a column of a table is never cut.
_NARROW = 16
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}]")


def sanitize(text: object, *, one_line: bool = False) -> str:
    """Return `text` without control sequences, control characters and bidirectional overrides.

    Args:
        one_line: Also fold every run of white space into one blank.
    """
    plain = str(text).replace("\r\n", "\n").replace("\r", "\n")
    plain = _UNSAFE.sub("", _SEQUENCES.sub("", plain))
    return " ".join(plain.split()) if one_line else plain


def use_utf8() -> None:
    """Make both streams write UTF-8 whatever the console's code page, and never fail on a character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def is_terminal(stream: Any) -> bool:
    """Return whether a person sits at `stream`; a closed or missing one counts as none."""
    try:
        return bool(stream is not None and stream.isatty())
    except ValueError:
        return False


def can_prompt() -> bool:
    """Return whether a question to the user can be seen and answered."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def write(text: str) -> None:
    """Write a piece of data to stdout at once, without a line end."""
    sys.stdout.write(sanitize(text))
    sys.stdout.flush()


def line(text: object = "") -> None:
    """Write a line of data to stdout."""
    sys.stdout.write(sanitize(text) + "\n")


def note(text: object) -> None:
    """Write a line of prose to stderr."""
    sys.stderr.write(sanitize(text, one_line=True) + "\n")
    sys.stderr.flush()


def emit_json(value: Any, *, indent: int | None = 2) -> None:
    """Write `value` as JSON to stdout; characters that could steer a terminal become escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    sys.stdout.write(re.sub(f"[\x7f-\x9f{_BIDI}]", lambda m: f"\\u{ord(m[0]):04x}", text) + "\n")
    sys.stdout.flush()


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows to stdout: a table on a terminal, tab-separated lines with a header elsewhere."""
    cells = [[sanitize(cell, one_line=True) for cell in row] for row in rows]
    if not is_terminal(sys.stdout):
        for row in [list(headers), *cells]:
            sys.stdout.write("\t".join(row) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header, column in zip(headers, zip(*cells, strict=True) if cells else [()] * len(headers), strict=True):
        width = max(map(len, (header, *column)))
        # Numbers and ids stay whole: rich takes the missing width from the columns that may wrap.
        grid.add_column(header, no_wrap=width <= _NARROW)
    for row in cells:
        grid.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    Console(file=sys.stdout, markup=False, emoji=False, highlight=False).print(grid)


class _NoteHandler(logging.Handler):
    """Shows a log record as one line on the stderr of the moment, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
            note(prefix + record.getMessage())


def route_logs(*, debug: bool) -> None:
    """Show what our own packages report as lines; keep libraries quiet unless `debug`."""
    root = logging.getLogger()
    handler = _NoteHandler()
    if debug:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        return
    warnings.simplefilter("ignore")
    root.addHandler(logging.NullHandler())
    for name in ("models", "training", "d2a_cli"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
