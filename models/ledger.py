"""The ledger of a bank: how far the last ingest of each source got, kept even where it got nowhere."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from models.bank_tables import BankTables, is_in
from models.results import DocumentInfo, DocumentStatus


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """What became of one source.

    Args:
        content_hash: Of the content that was being ingested; empty where it could not be read.
        attempts: Failures since the last success.
    """

    source: str
    content_hash: str = ""
    status: DocumentStatus = "pending"
    reason: str = ""
    attempts: int = 0
    updated_at: str = ""

    def as_document(self) -> DocumentInfo:
        """Return the entry as the listing shows a source of which nothing is stored."""
        return DocumentInfo(
            document_id=source_id(self.source),
            title=os.path.basename(self.source) or self.source,
            sources=(self.source,),
            media_type="",
            content_hash=self.content_hash,
            num_pages=0,
            num_atoms=0,
            status=self.status,
            reason=self.reason,
            ingested_at=self.updated_at,
        )


class Ledger:
    """Entries by source. Methods that change it expect the writers' lock to be held."""

    def __init__(self, tables: BankTables) -> None:
        self._tables = tables

    def entries(self) -> list[LedgerEntry]:
        """Return every entry, oldest first."""
        rows = self._tables.scan(self._tables.ledger, ["entry"])
        return sorted((LedgerEntry(**json.loads(row["entry"])) for row in rows), key=lambda e: (e.updated_at, e.source))

    def begin(self, source: str, content_hash: str) -> None:
        """Note that an ingest has started."""
        self._put(replace(self._get(source), content_hash=content_hash, status="pending", reason=""))

    def fail(self, source: str, reason: str) -> None:
        """Note that an ingest has failed."""
        entry = self._get(source)
        self._put(replace(entry, status="failed", reason=reason, attempts=entry.attempts + 1))

    def done(self, source: str, content_hash: str, status: DocumentStatus, reason: str = "") -> None:
        """Note that a source's content is stored."""
        self._put(LedgerEntry(source=source, content_hash=content_hash, status=status, reason=reason))

    def drop(self, sources: Iterable[str]) -> None:
        """Remove the entries of some sources."""
        self._tables.upsert(self._tables.ledger, [], delete=[source_id(source) for source in sources])

    def _get(self, source: str) -> LedgerEntry:
        rows = self._tables.scan(self._tables.ledger, ["entry"], where=is_in("id", [source_id(source)]))
        return LedgerEntry(**json.loads(rows[0]["entry"])) if rows else LedgerEntry(source=source)

    def _put(self, entry: LedgerEntry) -> None:
        entry = replace(entry, updated_at=now())
        row = {"id": source_id(entry.source), "entry": json.dumps(asdict(entry))}
        self._tables.upsert(self._tables.ledger, [row])


def source_id(source: str) -> str:
    """Return the hex id of a source, by which a failed or pending one can be named."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def now() -> str:
    """Return the time of day in UTC, to the microsecond, so that text order is time order."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
