"""Checks of a bank's files against its tables, each fault with the command that repairs it. Repairs nothing itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from models.bank_reader import BankReader
from models.errors import BankError

RECOMPILE = "Run: d2a ingest --rebuild"


@dataclass(frozen=True, kw_only=True)
class BankFault:
    """Something in a bank that does not fit the rest.

    Args:
        harmful: Whether questions suffer; else it only takes room.
    """

    message: str
    next_step: str
    harmful: bool


def bank_faults(bank: BankReader) -> Iterator[BankFault]:
    """Yield shards that are missing, broken, short or unnamed, and a full-text index that knows other atoms."""
    uids: list[str] = []
    for info in bank.documents():
        if info.status not in ("ok", "partial"):
            continue
        numbered = [f"{info.document_id}-{number:06x}" for number in range(info.num_atoms)]
        uids += numbered
        try:
            bank.load_shard_rows(numbered[-1:])
        except BankError as error:
            yield BankFault(message=error.message, next_step=RECOMPILE, harmful=True)
    if sorted(bank.lexical().uids) != sorted(uids):
        folder = bank.path / "lexical"
        message = "the full-text index does not hold the atoms of the bank"
        yield BankFault(message=message, next_step=f"Run: rm -r {shlex.quote(str(folder))}", harmful=True)
    if orphans := bank.orphaned_shards():
        message = f"{len(orphans)} shards belong to no document, first {orphans[0]}"
        yield BankFault(message=message, next_step="The next ingest removes them", harmful=False)
