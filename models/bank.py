"""The bank: documents with their atoms and parameters on disk, shared by any number of processes.

    <bank>/lancedb/                                        documents, atoms, ledger (`bank_tables`)
    <bank>/shards/<document_id>-<generation>.safetensors   the atoms' parameters (`shards`)
    <bank>/lexical/, <bank>/keys/                          full-text indices, keys: derived, safe to delete
    <bank>/bank.json, <bank>/.lock                         identity and writers' lock (`bank_files`)

A write must never be seen by halves, yet only one table commits at a time. So each write of a document's
atoms is a *generation* with a random id: first its shard, then its atom rows, and last the row of
`documents` that names it. That last commit decides. Shards and atoms of a generation that no document names
do not exist for readers (`bank_reader`), and the next writer sweeps them.

This module knows nothing of models: keys are numpy, parameters are named tensors that pass through.
Dimension key: N atoms, E routing dim.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models import shards
from models.atoms import Atom
from models.bank_files import BankIdentity, WriterLock, check_identity, create_bank, read_identity
from models.bank_reader import BankReader, damaged
from models.bank_snapshot import Snapshot, StoredDocument, document_id_of
from models.bank_tables import BankTables, is_in
from models.documents import Document
from models.errors import BankError, D2AError
from models.ledger import now
from models.results import DocumentInfo

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["Bank", "BankIdentity"]

# While this file is there, deleted rows may still be readable on disk.
_PURGE_MARK = "purge-pending"


class Bank(BankReader):
    """A bank on disk; made by `Bank.open`."""

    def __init__(self, path: Path, identity: BankIdentity, *, listing_only: bool, lock: WriterLock) -> None:
        super().__init__(path, identity)
        self._listing_only = listing_only
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        identity: BankIdentity | None,
        *,
        create: bool,
        lock_timeout_s: float = 60.0,
        on_wait: Callable[[str], None] | None = None,
    ) -> Bank:
        """Open a bank.

        Args:
            identity: What its parameters must have been made with; None opens a bank of any make, for
                listing and forgetting only.
            create: Make the bank where there is none; needs an identity.
            lock_timeout_s: How long a write waits for another process.
            on_wait: Called with a sentence when a write has to wait.

        Raises:
            BankError: There is no bank, or it is damaged, made with something else, or written by a newer
                d2a. Nothing on disk is touched.
        """
        assert identity is not None or not create, "a new bank needs an identity"
        path = path.absolute()
        lock = WriterLock(path, timeout_s=lock_timeout_s, on_wait=on_wait)
        stored = read_identity(path)
        if stored is None and create:
            create_bank(path, identity, lock=lock, make_tables=BankTables.create)
            stored = read_identity(path)
        if stored is None:
            raise BankError(f"there is no bank at {path}", hint="Run `d2a ingest FILE` to start one")
        if identity is not None:
            check_identity(path, stored, identity)
        return cls(path, stored, listing_only=identity is None, lock=lock)

    def begin(self, source: str, content_hash: str) -> None:
        """Note in the ledger that an ingest of a source has started."""
        with self._writing():
            self._ledger.begin(source, content_hash)

    def fail(self, source: str, reason: str) -> None:
        """Note in the ledger that an ingest of a source has failed; what was stored under it stays."""
        with self._writing():
            self._ledger.fail(source, reason)

    def put(
        self,
        document: Document,
        atoms: Sequence[Atom],
        *,
        keys: np.ndarray,
        shard: Mapping[str, Tensor],
        atomizer: str,
        status: Literal["ok", "partial"],
        reason: str = "",
        replaces: str | None = None,
    ) -> DocumentInfo:
        """Store a document with its atoms and their parameters, whole or not at all.

        Content that is stored already gets its atoms replaced and keeps its other sources.

        Args:
            keys: Provenance keys, float32 [N, E], finite and not zero.
            shard: Parameters of the N atoms, laid out as `shards` says.
            atomizer: Name of what made the atoms.
            status: `partial` with a reason where pages or windows were lost.
            replaces: Id of the document that stood under this source before. It loses the source in the
                same commit, and goes if it has no other.

        Raises:
            BankError: The disk, or another writer that does not finish.
        """
        assert not self._listing_only, "a bank opened without an identity takes no atoms"
        self._check_atoms(atoms, keys, shard)
        with self._writing() as snapshot:
            generation = secrets.token_hex(8)
            info = _info(document, num_atoms=len(atoms), atomizer=atomizer, status=status, reason=reason)
            previous = snapshot.documents.get(info.document_id)
            if previous is not None:
                info = replace(info, sources=tuple(dict.fromkeys((*previous.info.sources, document.source))))
            shard_path = self.path / "shards" / StoredDocument(info, generation).shard_name
            info = replace(info, shard_bytes=shards.write_shard(shard_path, shard))
            self._tables.add_atoms(generation, [_payload(atom, document) for atom in atoms], keys)
            row = {
                "generation": generation,
                "pages": json.dumps([asdict(page) for page in document.pages]),
                "text": document.text.encode("utf-8", "surrogatepass"),
            }
            rows, gone = [_document_row(info, row)], []
            if replaces is not None and replaces != info.document_id:
                left, gone = self._without_source(snapshot, document.source, [replaces])
                rows += left
            self._tables.upsert(self._tables.documents, rows, delete=gone)
            self._ledger.done(document.source, info.content_hash, status, reason)
            self._settle()
        return info

    def add_source(self, document_id: str, source: str, *, replaces: str | None = None) -> None:
        """Note that a stored document's content is also found under another source.

        Args:
            replaces: As in `put`: the document that stood under this source before.
        """
        with self._writing() as snapshot:
            info = snapshot.get(document_id).info
            rows, gone = [], []
            if replaces is not None and replaces != document_id:
                rows, gone = self._without_source(snapshot, source, [replaces])
            if source not in info.sources:
                rows.append(self._with_sources(snapshot, document_id, (*info.sources, source)))
            self._tables.upsert(self._tables.documents, rows, delete=gone)
            self._ledger.done(source, info.content_hash, info.status, info.reason)
            self._settle()

    def drop_source(self, source: str) -> None:
        """Forget a source: its ledger entry goes, and every document that has no other source."""
        with self._writing() as snapshot:
            rows, gone = self._without_source(snapshot, source, list(snapshot.documents))
            self._tables.upsert(self._tables.documents, rows, delete=gone)
            self._ledger.drop([source])
            self._settle()

    def forget(self, document_id: str) -> DocumentInfo:
        """Remove a document, or the note of a failed one, so that nothing of it is left on disk.

        Raises:
            BankError: There is no such document.
        """
        with self._writing() as snapshot:
            found = [info for info in self.documents() if info.document_id == document_id]
            info = found[0] if found else snapshot.get(document_id).info
            (self.path / _PURGE_MARK).touch()
            self._tables.upsert(self._tables.documents, [], delete=[document_id])
            self._ledger.drop(info.sources)
            self._settle()
        return info

    def compact(self) -> None:
        """Rewrite the tables so that nothing deleted or replaced is left on disk."""
        with self._writing():
            (self.path / _PURGE_MARK).touch()
            self._settle()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers waiting for the length of a with block, in which this object writes nothing either."""
        with self._lock.hold():
            yield

    @contextmanager
    def _writing(self) -> Iterator[Snapshot]:
        """Hold the lock, under which the snapshot stays true until this process commits."""
        try:
            with self._lock.hold():
                # A rebuild may have put another bank here while this one waited.
                if (stored := read_identity(self.path)) is not None:
                    check_identity(self.path, stored, self.identity)
                yield self._snapshot()
        except D2AError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise damaged(self.path, error) from error

    def _check_atoms(self, atoms: Sequence[Atom], keys_NE: np.ndarray, shard: Mapping[str, Tensor]) -> None:
        import numpy as np

        expected = (len(atoms), self.identity.key_dim)
        assert atoms, "a document without atoms is a failure, not something to store"
        assert keys_NE.shape == expected and keys_NE.dtype == np.float32, (
            f"keys must be float32 {expected}, got {keys_NE.dtype} {keys_NE.shape}"
        )
        norms = np.linalg.norm(keys_NE, axis=1)
        assert np.isfinite(norms).all() and (norms > 0).all(), "provenance keys must be finite and not zero"
        assert shards.num_rows(shard) == len(atoms), f"a shard of {shards.num_rows(shard)} rows for {len(atoms)} atoms"

    def _without_source(
        self, snapshot: Snapshot, source: str, document_ids: Sequence[str]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the rows of documents that lose a source and keep others, and the ids of those that go."""
        rows, gone = [], []
        for document_id in document_ids:
            stored = snapshot.documents.get(document_id)
            if stored is None or source not in stored.info.sources:
                continue
            left = tuple(s for s in stored.info.sources if s != source)
            if left:
                rows.append(self._with_sources(snapshot, document_id, left))
            else:
                gone.append(document_id)
        return rows, gone

    def _with_sources(self, snapshot: Snapshot, document_id: str, sources: tuple[str, ...]) -> dict[str, Any]:
        row = self._document_row(snapshot, document_id=document_id, columns=["generation", "pages", "text"])
        return _document_row(replace(snapshot.get(document_id).info, sources=sources), row)

    def _settle(self) -> None:
        """Remove what no document names any more, be it from this write or from one that was killed."""
        snapshot = self._snapshot()
        generations = {row["generation"] for row in self._tables.scan(self._tables.atoms, ["generation"])}
        orphans = generations - snapshot.by_generation.keys()
        if orphans:
            self._tables.atoms.delete(is_in("generation", orphans))
        live = {stored.shard_name for stored in snapshot.documents.values()}
        for path in (self.path / "shards").glob("*"):
            if path.name not in live:
                # Windows keeps a file that a reader has open; a later writer takes it.
                with suppress(PermissionError):
                    path.unlink()
        for folder in chain.from_iterable((self.path / name).glob("*") for name in ("lexical", "keys")):
            if not folder.name.startswith(snapshot.digest) or folder.suffix:
                shutil.rmtree(folder, ignore_errors=True)
        if (self.path / _PURGE_MARK).exists():
            self._tables.purge()
            (self.path / _PURGE_MARK).unlink()
        else:
            self._tables.tidy()


def _info(
    document: Document, *, num_atoms: int, atomizer: str, status: Literal["ok", "partial"], reason: str
) -> DocumentInfo:
    return DocumentInfo(
        document_id=document_id_of(document.content_hash),
        title=document.title,
        sources=(document.source,),
        media_type=document.media_type,
        content_hash=document.content_hash,
        num_pages=len(document.pages),
        num_atoms=num_atoms,
        status=status,
        reason=reason,
        warnings=document.warnings,
        atomizer=atomizer,
        ingested_at=now(),
    )


def _document_row(info: DocumentInfo, columns: Mapping[str, Any]) -> dict[str, Any]:
    return {**columns, "id": info.document_id, "info": json.dumps(asdict(info))}


def _payload(atom: Atom, document: Document) -> str:
    page = document.page_at(max(0, atom.char_start))
    return json.dumps({"atom": atom.to_dict(), "page_index": page.index, "page_label": page.label})
