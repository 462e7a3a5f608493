"""The one place where the command line opens a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.config import MemoryConfig
    from models.memory import DocumentMemory


def open_memory(config: MemoryConfig) -> DocumentMemory:
    """Return the memory of `config`; nothing heavy is loaded before its first use."""
    from models.memory import DocumentMemory

    return DocumentMemory(config)
