"""Folders of files that are made from the tables of a bank and can be deleted at any time.

Holds how such a folder comes to be. What lies in it is the business of `lexical` and `key_matrix`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar


class Derived(Protocol):
    """What can be kept in a folder."""

    def save(self, folder: Path) -> None:
        """Write it into a folder, which is created."""


T = TypeVar("T", bound=Derived)


def cached(folder: Path, load: Callable[[Path], T], build: Callable[[], T]) -> T:
    """Load what a folder keeps, or build it and try to save it there.

    The folder appears whole or not at all. Where it cannot be written, what was built is used from memory.
    """
    try:
        return load(folder)
    except (OSError, ValueError, KeyError, EOFError):
        built = build()
    temporary = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}.tmp")
    try:
        built.save(temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return load(folder)  # which may leave on disk what building had to hold in memory
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        return built
