"""Reading a bank, without locks and never by halves.

A reader takes the stored documents at one version (a `Snapshot`), reads what it needs, and checks that the
version still holds; if not, it reads again. A document that is being replaced is so seen as it was or as it
will be, never as a mixture. Dimension key: E routing dim.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from models import shards
from models.atoms import Atom
from models.bank_files import REBUILD_HINT, BankIdentity
from models.bank_snapshot import Snapshot, StoredDocument, atom_uid, document_id_of, resolve
from models.bank_tables import BankTables, is_in, row_id
from models.derived import cached
from models.documents import Page
from models.errors import BankError, D2AError
from models.ledger import Ledger
from models.results import DocumentInfo, StoredAtom

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from models.key_matrix import KeyMatrix
    from models.lexical import LexicalIndex

IndexedText = Literal["content", "retrieval", "both"]
T = TypeVar("T")
# With the pauses between them, two seconds of a writer that commits without a break.
_READ_ATTEMPTS = 20


class BankReader:
    """The reading half of `Bank`; every method sees what other processes have committed."""

    def __init__(self, path: Path, identity: BankIdentity) -> None:
        self.path = path
        self.identity = identity
        self._latest: Snapshot | None = None
        self._lexical: tuple[str, LexicalIndex] | None = None
        self._keys: tuple[str, KeyMatrix] | None = None
        try:
            self._tables = BankTables(path / "lancedb")
        except (OSError, RuntimeError, ValueError) as error:
            raise damaged(path, error) from error
        self._ledger = Ledger(self._tables)

    @property
    def version(self) -> int:
        """A number that changes with every change of the stored documents."""
        return self._read(lambda snapshot: snapshot.version)

    @property
    def num_atoms(self) -> int:
        """Atoms of all stored documents."""
        return self._read(lambda snapshot: sum(s.info.num_atoms for s in snapshot.documents.values()))

    @property
    def bank_bytes(self) -> int:
        """Size of everything in the folder, in bytes."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def documents(self) -> list[DocumentInfo]:
        """Return every stored document, oldest first, then every source whose last ingest is pending or failed."""

        def listing(snapshot: Snapshot) -> list[DocumentInfo]:
            stored = [s.info for s in snapshot.documents.values()]
            known = {(source, info.content_hash) for info in stored for source in info.sources}
            unfinished = [e for e in self._ledger.entries() if e.status in ("pending", "failed")]
            return stored + [e.as_document() for e in unfinished if (e.source, e.content_hash) not in known]

        return self._read(listing)

    def resolve(self, ref: str) -> DocumentInfo:
        """Return the document that an id, a unique prefix of one, a source path, a title or a file name stands for.

        Raises:
            BankError: None or several match; up to five candidates are listed.
        """
        return resolve(ref, self.documents())

    def find_content(self, content_hash: str) -> DocumentInfo | None:
        """Return the stored document with this content."""
        stored = self._read(lambda snapshot: snapshot.documents.get(document_id_of(content_hash)))
        return stored.info if stored is not None else None

    def find_source(self, source: str) -> DocumentInfo | None:
        """Return the document last stored under a source."""
        found = self._read(lambda snapshot: [s.info for s in snapshot.documents.values() if source in s.info.sources])
        return found[-1] if found else None

    def text(self, document_id: str) -> str:
        """Return the text of a document, exactly as it was stored."""
        row = self._read(partial(self._document_row, document_id=document_id, columns=["text"]))
        return row["text"].decode("utf-8", "surrogatepass")

    def pages(self, document_id: str) -> tuple[Page, ...]:
        """Return the pages of a document."""
        row = self._read(partial(self._document_row, document_id=document_id, columns=["pages"]))
        return tuple(Page(**page) for page in json.loads(row["pages"]))

    def atoms(self, document_id: str) -> list[StoredAtom]:
        """Return the atoms of a document in their order."""

        def query(snapshot: Snapshot) -> list[StoredAtom]:
            stored = snapshot.get(document_id)
            return self._atoms_at(_all_atoms([stored]), where=is_in("generation", [stored.generation]))

        return self._read(query)

    def atoms_by_uid(self, uids: Sequence[str]) -> list[StoredAtom]:
        """Return atoms in the order of their uids; a BankError for one that is not stored."""

        def query(snapshot: Snapshot) -> list[StoredAtom]:
            places = [snapshot.locate(uid) for uid in uids]
            ids = {row_id(stored.generation, number) for stored, number in places}
            return self._atoms_at(places, where=is_in("id", ids)) if ids else []

        return self._read(query)

    def search(self, key: np.ndarray, *, limit: int) -> list[tuple[str, float]]:
        """Return the atoms whose provenance keys are nearest to a query key, exactly.

        Args:
            key: Float32 [E], finite and not zero.
            limit: At most so many; fewer where the bank holds fewer.

        Returns:
            (uid, cosine in [-1, 1]), best first, ties in the order of `documents` and of their atoms.
        """
        assert key.shape == (self.identity.key_dim,), f"a key has {self.identity.key_dim} values, got {key.shape}"
        assert bool((abs(key) < float("inf")).all()) and key.any(), "a query key must be finite and not zero"
        return self._read(partial(self._nearest, key=key, limit=limit))

    def keys_by_uid(self, uids: Sequence[str]) -> np.ndarray:
        """Return the provenance keys of some atoms, float32 [N, E], in the order of `uids`."""
        import numpy as np

        def query(snapshot: Snapshot) -> np.ndarray:
            rows = np.array([snapshot.row_of(uid) for uid in uids], dtype=np.int64)
            return np.asarray(self._keys_at(snapshot).key_NE[rows])

        return self._read(query)

    def lexical(self, *, text: IndexedText = "content") -> LexicalIndex:
        """Return the full-text index of all atoms, whose `uids` name its rows.

        It is kept on disk and in memory, and made anew when the atoms have changed.

        Args:
            text: What of an atom is indexed: its content, its retrieval text, or both.
        """
        return self._read(partial(self._lexical_at, text=text))

    def load_shard_rows(self, uids: Sequence[str]) -> dict[str, list[Tensor]]:
        """Read the parameters of some atoms, and of no others, from disk.

        Returns:
            For each tensor of the shards, one tensor an atom in the order of `uids` (see `shards.read_rows`).

        Raises:
            BankError: An atom is not stored, or its document's shard is missing or broken; names the document.
        """
        return self._read(partial(self._shard_rows, uids=uids))

    def orphaned_shards(self) -> list[str]:
        """Return the names of files among the shards that no document names; a write under way may have some."""

        def query(snapshot: Snapshot) -> list[str]:
            live = {stored.shard_name for stored in snapshot.documents.values()}
            return sorted(path.name for path in (self.path / "shards").glob("*") if path.name not in live)

        return self._read(query)

    def _read(self, query: Callable[[Snapshot], T]) -> T:
        for attempt in range(_READ_ATTEMPTS):
            try:
                snapshot = self._snapshot()
                try:
                    result = query(snapshot)
                except D2AError:
                    if self._tables.documents.version == snapshot.version:
                        raise
                else:
                    if self._tables.documents.version == snapshot.version:
                        return result
            except D2AError:
                raise
            except (OSError, RuntimeError, ValueError) as error:
                # A purge takes files away from under readers; what is damaged for good fails again.
                if attempt == _READ_ATTEMPTS - 1:
                    raise damaged(self.path, error) from error
            time.sleep(0.01 * attempt)
        raise BankError(f"bank {self.path} keeps changing while it is read", hint="Try again when the ingest is done")

    def _snapshot(self) -> Snapshot:
        version = self._tables.documents.version
        if self._latest is None or self._latest.version != version:
            rows = self._tables.scan(self._tables.documents, ["generation", "info"])
            self._latest = Snapshot.from_rows(version, rows)
        return self._latest

    def _document_row(self, snapshot: Snapshot, *, document_id: str, columns: Sequence[str]) -> dict[str, Any]:
        snapshot.get(document_id)
        return self._tables.scan(self._tables.documents, columns, where=is_in("id", [document_id]))[0]

    def _atoms_at(self, places: Iterable[tuple[StoredDocument, int]], *, where: str | None) -> list[StoredAtom]:
        rows = self._tables.scan(self._tables.atoms, ["id", "atom"], where=where)
        payloads = {row["id"]: row["atom"] for row in rows}
        try:
            return [
                _stored_atom(stored, number, payloads[row_id(stored.generation, number)]) for stored, number in places
            ]
        except KeyError as error:
            raise BankError(f"bank {self.path}: the row of atom {error} is missing", hint=REBUILD_HINT) from error

    def _nearest(self, snapshot: Snapshot, *, key: np.ndarray, limit: int) -> list[tuple[str, float]]:
        rows, cosines = self._keys_at(snapshot).nearest(key, limit=limit)
        return list(zip(snapshot.uids_at(rows.tolist()), cosines.tolist(), strict=True))

    def _keys_at(self, snapshot: Snapshot) -> KeyMatrix:
        from models.key_matrix import FORMAT_VERSION, KeyMatrix

        shape = (snapshot.first_rows[-1], self.identity.key_dim)

        def build() -> KeyMatrix:
            try:
                return KeyMatrix.build(shape, self._key_parts(snapshot))
            except KeyError as error:
                [uid] = snapshot.uids_at([error.args[0]])
                raise BankError(f"bank {self.path}: the row of atom {uid!r} is missing", hint=REBUILD_HINT) from error

        name = f"{snapshot.digest}-{FORMAT_VERSION}"
        if self._keys is None or self._keys[0] != name:
            self._keys = (name, cached(self.path / "keys" / name, partial(KeyMatrix.load, shape=shape), build))
        return self._keys[1]

    def _key_parts(self, snapshot: Snapshot) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        import numpy as np

        for generations, number_K, key_KE in self._tables.key_parts():
            first_K = np.array([snapshot.row_by_generation.get(g, -1) for g in generations], dtype=np.int64)
            live_K = first_K >= 0  # others are of a write that is not committed, or not swept yet
            yield (first_K + number_K)[live_K], key_KE[live_K]

    def _lexical_at(self, snapshot: Snapshot, *, text: IndexedText) -> LexicalIndex:
        from models.lexical import FORMAT_VERSION, LexicalIndex

        def build() -> LexicalIndex:
            atoms = self._atoms_at(_all_atoms(snapshot.documents.values()), where=None)
            return LexicalIndex.build(
                [_indexed_text(a.atom, text) for a in atoms],
                uids=[a.uid for a in atoms],
                documents=[a.document_id for a in atoms],
            )

        name = f"{snapshot.digest}-{text}-{FORMAT_VERSION}"
        if self._lexical is None or self._lexical[0] != name:
            self._lexical = (name, cached(self.path / "lexical" / name, LexicalIndex.load, build))
        return self._lexical[1]

    def _shard_rows(self, snapshot: Snapshot, *, uids: Sequence[str]) -> dict[str, list[Tensor]]:
        positions: dict[StoredDocument, list[tuple[int, int]]] = defaultdict(list)
        for position, uid in enumerate(uids):
            stored, number = snapshot.locate(uid)
            positions[stored].append((position, number))
        rows: dict[str, dict[int, Tensor]] = defaultdict(dict)
        for stored, pairs in positions.items():
            try:
                tensors = shards.read_rows(self.path / "shards" / stored.shard_name, [number for _, number in pairs])
            except BankError as error:
                info = stored.info
                raise BankError(
                    f"document {info.document_id} {info.title!r}: {error.message}", hint=REBUILD_HINT
                ) from error
            for name, values in tensors.items():
                rows[name].update({position: value for (position, _), value in zip(pairs, values, strict=True)})
        return {name: [by_position[i] for i in range(len(uids))] for name, by_position in rows.items()}


def damaged(path: Path, error: Exception) -> BankError:
    """Return the error of a bank whose tables cannot be used, with the first line of LanceDB's long one."""
    line = str(error).strip().split("\n")[0][:200]
    return BankError(f"bank {path} cannot be used: {line}", hint="Check the disk, or restore the folder from a copy")


def _all_atoms(documents: Iterable[StoredDocument]) -> Iterable[tuple[StoredDocument, int]]:
    return ((stored, number) for stored in documents for number in range(stored.info.num_atoms))


def _stored_atom(stored: StoredDocument, number: int, payload: str) -> StoredAtom:
    data = json.loads(payload)
    document_id = stored.info.document_id
    return StoredAtom(
        uid=atom_uid(document_id, number),
        document_id=document_id,
        atom=Atom.from_dict(data["atom"]),
        page_index=data["page_index"],
        page_label=data["page_label"],
    )


def _indexed_text(atom: Atom, text: IndexedText) -> str:
    parts = {"content": [atom.content], "retrieval": [atom.retrieval_text]}
    return "\n".join(parts.get(text, [atom.content, atom.retrieval_text]))
