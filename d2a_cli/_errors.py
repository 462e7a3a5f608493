"""The one map from an exception to a line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import typer

from d2a_cli import _output
from models.errors import ConfigError, D2AError

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_UNANSWERABLE = 3
EXIT_INTERRUPTED = 130


class UsageError(D2AError):
    """The command was called in a way that cannot work; ends in exit code 2."""


def debug() -> bool:
    """Return whether the user asked for tracebacks."""
    return os.environ.get("D2A_DEBUG", "") not in ("", "0")


def describe(error: BaseException) -> tuple[str, str | None, int]:
    """Return what went wrong, the next step if there is one, and the exit code."""
    if isinstance(error, D2AError):
        code = EXIT_USAGE if isinstance(error, ConfigError | UsageError) else EXIT_ERROR
        return error.message, error.hint, code
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed", "Run: d2a doctor", EXIT_ERROR
    if isinstance(error, PermissionError):
        return f"no permission to use {error.filename}", "Check its owner, or choose another path", EXIT_ERROR
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist", "Check the path", EXIT_ERROR
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", "Run: d2a doctor", EXIT_ERROR
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory", "Try --device cpu, a smaller --model, or a smaller --top-k", EXIT_ERROR
    return (
        f"internal error, {type(error).__name__}: {error}",
        "Run it again with D2A_DEBUG=1 and report the traceback",
        EXIT_ERROR,
    )


def one_line(error: BaseException) -> str:
    """Return the line that the user reads."""
    message, hint, _ = describe(error)
    return f"{message.rstrip('.')}. {hint}" if hint else message


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turn what a command raises into its line and exit code; let typer's own exceptions pass."""
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.TyperException):
        raise
    except (KeyboardInterrupt, typer.Abort) as error:
        _output.note("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error
    except BrokenPipeError as error:
        _drop_stdout()
        raise typer.Exit(EXIT_ERROR) from error
    except Exception as error:
        if debug():
            traceback.print_exc()
        _output.note(f"error: {one_line(error)}")
        raise typer.Exit(describe(error)[2]) from error


def _drop_stdout() -> None:
    """Send what is still buffered nowhere: the reader has gone, and the interpreter would complain at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
