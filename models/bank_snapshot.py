"""What a bank holds at one moment, and how a document is named by hand.

Holds plain data read from the `documents` table; reading it and keeping it consistent is `bank`'s affair.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from models.errors import BankError
from models.results import DocumentInfo

LIST_HINT = "Run `d2a docs list` to see what the bank holds"
_MAX_CANDIDATES = 5
_UID = re.compile(r"([0-9a-f]{16})-([0-9a-f]{6})")
_TUPLES = ("sources", "warnings")


@dataclass(frozen=True, eq=False)
class StoredDocument:
    """A document and the generation of its atoms that counts."""

    info: DocumentInfo
    generation: str

    @property
    def shard_name(self) -> str:
        """Name of the file with its atoms' parameters."""
        return f"{self.info.document_id}-{self.generation}.safetensors"

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StoredDocument:
        """Build from a row of the `documents` table."""
        info = json.loads(row["info"])
        return cls(DocumentInfo(**info | {name: tuple(info[name]) for name in _TUPLES}), row["generation"])


@dataclass(frozen=True)
class Snapshot:
    """The stored documents at one version of the `documents` table, oldest first."""

    version: int
    documents: Mapping[str, StoredDocument]

    @classmethod
    def from_rows(cls, version: int, rows: Iterable[Mapping[str, Any]]) -> Snapshot:
        """Build from all rows of the `documents` table."""
        stored = sorted(map(StoredDocument.from_row, rows), key=lambda s: (s.info.ingested_at, s.info.document_id))
        return cls(version, {s.info.document_id: s for s in stored})

    @cached_property
    def by_generation(self) -> dict[str, StoredDocument]:
        """The documents by live generation."""
        return {s.generation: s for s in self.documents.values()}

    @cached_property
    def first_rows(self) -> list[int]:
        """The row of each document's first atom, where all atoms are counted document by document, and their number."""
        return list(accumulate((s.info.num_atoms for s in self.documents.values()), initial=0))

    @cached_property
    def row_by_generation(self) -> dict[str, int]:
        """The row of the first atom by live generation."""
        return dict(zip(self.by_generation, self.first_rows, strict=False))

    @cached_property
    def digest(self) -> str:
        """Hex name of the set of live atoms: equal where and only where no atom differs."""
        return hashlib.sha256(" ".join(sorted(self.by_generation)).encode()).hexdigest()[:16]

    def get(self, document_id: str) -> StoredDocument:
        """Return a document; a BankError where it is not stored."""
        if document_id not in self.documents:
            raise BankError(f"the bank holds no document {document_id!r}", hint=LIST_HINT)
        return self.documents[document_id]

    def locate(self, uid: str) -> tuple[StoredDocument, int]:
        """Return the document and the number of an atom; a BankError where there is no such atom."""
        match = _UID.fullmatch(uid)
        stored = self.documents.get(match[1]) if match else None
        if stored is None or int(match[2], 16) >= stored.info.num_atoms:
            raise BankError(f"the bank holds no atom {uid!r}", hint=LIST_HINT)
        return stored, int(match[2], 16)

    def uids_at(self, rows: Iterable[int]) -> list[str]:
        """Return the uids of the atoms with some rows."""
        ids = list(self.documents)
        places = ((bisect_right(self.first_rows, row) - 1, row) for row in rows)
        return [atom_uid(ids[place], row - self.first_rows[place]) for place, row in places]

    def row_of(self, uid: str) -> int:
        """Return the row of an atom; a BankError where there is no such atom."""
        stored, number = self.locate(uid)
        return self.row_by_generation[stored.generation] + number


def document_id_of(content_hash: str) -> str:
    """Return the id of the document with a content: the same under every path."""
    return content_hash[:16]


def atom_uid(document_id: str, number: int) -> str:
    """Return the uid of the atom with a number in its document."""
    return f"{document_id}-{number:06x}"


def resolve(ref: str, documents: Sequence[DocumentInfo]) -> DocumentInfo:
    """Find the one document that a user means.

    Tried in this order, the first kind that matches anything decides: the full id; a source path as given or
    made absolute; a prefix of the id, a title or a file name.

    Raises:
        BankError: Nothing matches, or several do; up to five candidates are listed.
    """
    paths = {ref, os.path.abspath(ref)} if ref and "\0" not in ref else {ref}
    kinds = (
        lambda d: ref == d.document_id,
        lambda d: not paths.isdisjoint(d.sources),
        lambda d: bool(ref) and (d.document_id.startswith(ref.lower()) or ref in _names(d)),
    )
    for matches in kinds:
        found = [d for d in documents if matches(d)]
        if len(found) == 1:
            return found[0]
        if found:
            raise BankError(f"{ref!r} is ambiguous: {_listed(found)}", hint="Name it by its id")
    names = {name: d for d in documents for name in _names(d)}
    similar = {names[n].document_id: names[n] for n in difflib.get_close_matches(ref, names, n=_MAX_CANDIDATES)}
    candidates = list(similar.values()) or list(documents)
    known = f"; it holds {_listed(candidates)}" if candidates else ""
    raise BankError(f"the bank holds no document {ref!r}{known}", hint=LIST_HINT)


def _names(info: DocumentInfo) -> set[str]:
    return {info.title, *(os.path.basename(source) for source in info.sources)}


def _listed(documents: Sequence[DocumentInfo]) -> str:
    shown = [f"{d.document_id} {d.title!r}" for d in documents[:_MAX_CANDIDATES]]
    return ", ".join(shown + (["…"] if len(documents) > _MAX_CANDIDATES else []))
