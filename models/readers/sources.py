"""Which documents the arguments of a command name, and their bytes."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from models.errors import DocumentError
from models.readers.kinds import SUFFIXES

STDIN = "-"


def discover(paths: Iterable[str]) -> list[str]:
    """Return the sources that `paths` name, in order and without repetition.

    Folders are searched recursively, in sorted order, for files with a known suffix; hidden ones are passed
    over. Patterns that the shell has left alone are expanded. What does not exist stays in the list: `read`
    then says so, and the rest of a batch goes on.

    Args:
        paths: Files, folders, glob patterns, or `-` for standard input.
    """
    found: dict[str, str] = {}
    for path in paths:
        for source in _expand(path):
            found.setdefault(source if source == STDIN else os.path.realpath(source), source)
    return list(found.values())


def load(source: str, *, stdin: bytes | None = None) -> bytes:
    """Return the bytes of a source.

    Raises:
        DocumentError: Where it is missing, a folder, not readable, or empty.
    """
    if source == STDIN:
        data = _standard_input() if stdin is None else stdin
        if not data:
            raise DocumentError("standard input: is empty", hint="Pipe a document into the command")
        return data
    try:
        data = Path(source).read_bytes()
    except FileNotFoundError as e:
        raise DocumentError(f"{source}: does not exist", hint="Check the path") from e
    except IsADirectoryError as e:
        raise DocumentError(f"{source}: is a folder that holds no document", hint=_folder_hint()) from e
    except PermissionError as e:
        raise DocumentError(f"{source}: may not be read", hint="Check the file's permissions") from e
    except (OSError, ValueError) as e:
        raise DocumentError(
            f"{source}: cannot be read ({getattr(e, 'strerror', None) or e})", hint="Check the path"
        ) from e
    if not data:
        raise DocumentError(f"{source}: is empty (0 bytes)", hint="Download or export it again")
    return data


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise DocumentError(
            "standard input: nothing is piped in", hint="Pipe a document into the command, or name a file"
        )
    return sys.stdin.buffer.read()


def _expand(path: str) -> Iterator[str]:
    path = os.path.expanduser(path)
    if path == STDIN or os.path.isfile(path):
        yield path
    elif os.path.isdir(path):
        documents = list(_documents(path))
        yield from documents or [path]
    else:
        matches = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
        for match in matches:
            yield from _expand(match)
        if not matches:
            yield path


def _documents(folder: str) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            is_office_lock = name.startswith("~$")
            if not name.startswith(".") and not is_office_lock and Path(name).suffix.lower() in SUFFIXES:
                yield os.path.join(parent, name)


def _folder_hint() -> str:
    return "Known endings: " + " ".join(SUFFIXES)
