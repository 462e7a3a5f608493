"""The three LanceDB tables of a bank, and the few operations on them that are needed.

    documents   one row a document: the generation of its atoms that counts, its text and pages
    atoms       one row an atom and generation: its provenance key and its JSON
    ledger      one row a source: how far its last ingest got

Everything a user wrote goes into JSON with ASCII escapes or into bytes, and filters name hex ids only:
quotes, NULs and lone surrogates of file names reach neither SQL nor Arrow strings. Dimension key: N atoms,
E routing dim.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.startup import import_lancedb

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lancedb.table import Table

# Readers look at one version for well under a second, and try again should it go. Old versions are what makes
# a bank large: 300 small documents in a row leave 72 MB with an hour of them, 2 MB with none.
KEEP_VERSIONS_FOR = timedelta(minutes=1)
# Reading slows down with the number of fragments, one a write: four times at 200.
MAX_FRAGMENTS = 32


def is_in(column: str, values: Iterable[str]) -> str:
    """Return the SQL filter for a column of hex ids."""
    listed = list(values)
    assert all(set(v) <= set("0123456789abcdef-") for v in listed), f"ids must be hex, got {listed}"
    return f"{column} IN ({', '.join(repr(v) for v in listed)})"


class BankTables:
    """Handles on the tables, each of which sees other processes' commits at its next read."""

    def __init__(self, folder: Path) -> None:
        lancedb = import_lancedb()
        self._connection = lancedb.connect(str(folder.absolute()), read_consistency_interval=timedelta(0))
        self.documents, self.atoms, self.ledger = (self._connection.open_table(n) for n in _NAMES)

    @staticmethod
    def create(folder: Path, key_dim: int) -> None:
        """Create empty tables in place of whatever an interrupted creation left."""
        lancedb = import_lancedb()
        shutil.rmtree(folder, ignore_errors=True)
        connection = lancedb.connect(str(folder.absolute()))
        for name, schema in _schemas(key_dim).items():
            table = connection.create_table(name, schema=schema)
            # Without it, two processes that insert the same new id would both succeed.
            table.set_unenforced_primary_key("id")

    def upsert(self, table: Table, rows: Sequence[dict[str, Any]], *, delete: Sequence[str] = ()) -> None:
        """Insert or replace rows and delete the rows of other ids, all in one commit."""
        import pyarrow as pa

        if not rows:
            if delete:
                table.delete(is_in("id", delete))
            return
        merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        if delete:
            merge = merge.when_not_matched_by_source_delete(is_in("id", delete))
        merge.execute(pa.Table.from_pylist(rows, schema=table.schema))

    def add_atoms(self, generation: str, payloads: Sequence[str], keys_NE: np.ndarray) -> None:
        """Append a generation of atoms in one commit; nothing counts it before its document names it."""
        import pyarrow as pa

        keys = pa.FixedSizeListArray.from_arrays(pa.array(keys_NE.reshape(-1)), keys_NE.shape[1])
        columns = {
            "id": [row_id(generation, number) for number in range(len(payloads))],
            "generation": [generation] * len(payloads),
            "number": range(len(payloads)),
            "atom": payloads,
            "key": keys,
        }
        self.atoms.add(pa.table({k: v if k == "key" else list(v) for k, v in columns.items()}, self.atoms.schema))

    def scan(self, table: Table, columns: Sequence[str], *, where: str | None = None) -> list[dict[str, Any]]:
        """Return some columns of all rows, or of those of a filter."""
        query = table.search()
        if where is not None:
            query = query.where(where, prefilter=True)
        return query.select(list(columns)).to_list()

    def key_parts(self) -> Iterator[tuple[list[str], np.ndarray, np.ndarray]]:
        """Yield the generations, numbers (int64) and keys (float32) of all atoms of any generation, in parts."""
        for batch in self.atoms.search().select(["generation", "number", "key"]).to_batches():
            numbers = batch["number"].to_numpy().astype("int64")
            yield batch["generation"].to_pylist(), numbers, batch["key"].flatten().to_numpy().reshape(len(numbers), -1)

    def tidy(self) -> None:
        """Merge fragments where there are many, and drop old versions that no reader can still be using."""
        for table in (self.documents, self.atoms, self.ledger):
            if table.stats()["fragment_stats"]["num_fragments"] > MAX_FRAGMENTS:
                table.optimize(cleanup_older_than=KEEP_VERSIONS_FOR)

    def purge(self) -> None:
        """Rewrite every table with its live rows only and drop all that was there before.

        LanceDB's own compaction keeps deleted rows in files where they are less than a tenth, so a
        forgotten text would stay readable on disk.
        """
        for name in _NAMES:
            rows = self._connection.open_table(name).to_arrow()
            table = self._connection.create_table(name, data=rows, mode="overwrite")
            with warnings.catch_warnings():
                # The warning is about other processes: writers are locked out, and readers try again.
                warnings.simplefilter("ignore", UserWarning)
                table.optimize(cleanup_older_than=timedelta(0))


def row_id(generation: str, number: int) -> str:
    """Return the id of an atom's row."""
    return f"{generation}-{number:06x}"


_NAMES = ("documents", "atoms", "ledger")


def _schemas(key_dim: int) -> dict[str, pa.Schema]:
    import pyarrow as pa

    def schema(**columns: pa.DataType) -> pa.Schema:
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])

    text, key = pa.string(), pa.list_(pa.float32(), key_dim)
    return {
        "documents": schema(id=text, generation=text, info=text, pages=text, text=pa.large_binary()),
        "atoms": schema(id=text, generation=text, number=pa.int32(), atom=text, key=key),
        "ledger": schema(id=text, entry=text),
    }
