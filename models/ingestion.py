"""Ingest: from sources to stored documents, one at a time, each whole or not at all.

A source goes through read, atomize, compile and store. A fault of one document ends that document, not the
batch; the bank's ledger keeps what is pending, partial or failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.atomizer import Atomization, Atomizer
from models.atoms import Atom
from models.documents import Document
from models.errors import AtomizerError, BaseModelError, CheckpointError, D2AError
from models.results import DocumentInfo, IngestItem, IngestProgress, IngestReport

if TYPE_CHECKING:
    from models.bank import Bank
    from models.engine import Engine

OnProgress = Callable[[IngestProgress], None]
# Many small writes leave many old table versions; one rewrite at the end removes them.
COMPACT_AFTER = 16


class Ingestion:
    """One call's worth of sources into one bank.

    Args:
        engine: Called when the first document must be compiled; unchanged ones never load a model.
        again: Decompose and compile also what is unchanged.
    """

    def __init__(
        self, bank: Bank, atomizer: Atomizer, engine: Callable[[], Engine], *, again: bool, on_progress: OnProgress
    ) -> None:
        self.bank, self.atomizer, self.engine = bank, atomizer, engine
        self.again = again
        self.on_progress = on_progress

    def run(self, sources: Sequence[str], *, password: str | None, stdin: bytes | None) -> IngestReport:
        """Ingest every source and report on each."""
        items = []
        for index, source in enumerate(sources):
            items.append(self._one(source, index, len(sources), password, stdin))
        if sum(i.outcome in ("added", "replaced", "partial") for i in items) >= COMPACT_AFTER:
            self.bank.compact()
        return IngestReport(items=tuple(items))

    def _one(self, source: str, index: int, count: int, password: str | None, stdin: bytes | None) -> IngestItem:
        begin = time.monotonic()

        def progress(stage: str, **counts: int | None) -> None:
            self.on_progress(
                IngestProgress(source=source, stage=stage, source_index=index, num_sources=count, **counts)
            )

        name = source if source == "-" else os.path.abspath(source)
        try:
            item = self._ingest(source, name, progress, password, stdin)
        except (BaseModelError, CheckpointError):
            raise  # no other document would fare better
        except D2AError as error:
            if name == "-" or os.path.exists(name):
                self.bank.fail(name, error.message)
            item = IngestItem(source=source, outcome="failed", message=str(error))
        progress("done")
        return IngestItem(
            source=source,
            outcome=item.outcome,
            message=item.message,
            document=item.document,
            seconds=time.monotonic() - begin,
        )

    def _ingest(
        self, source: str, name: str, progress: Callable[..., None], password: str | None, stdin: bytes | None
    ) -> IngestItem:
        from models.readers import read

        progress("read")
        document = read(
            source,
            password=password,
            stdin=stdin,
            on_page=lambda done, total: progress("read", pages=done, num_pages=total),
        )
        document = Document(**{**vars(document), "source": name})
        same = self.bank.find_content(document.content_hash)
        # What is piped in has no name of its own: another text there is another document, not a new version.
        before = None if name == "-" else self.bank.find_source(name)
        if same is not None and same.status == "ok" and not self.again:
            return self._known(source, name, same, before)
        engine = self.engine()  # a base that is not there is told before an endpoint is paid for atoms
        self.bank.begin(name, document.content_hash)
        pages = len(document.pages)
        progress("atomize", pages=pages, num_pages=pages)
        result = self.atomizer.atomize(document)
        atoms = usable_atoms(result, source)
        progress("compile", pages=pages, num_pages=pages, atoms=0, num_atoms=len(atoms))
        keys, shard = engine.compile(
            atoms,
            store=self.bank.identity.store,
            on_progress=lambda done: progress(
                "compile", pages=pages, num_pages=pages, atoms=done, num_atoms=len(atoms)
            ),
        )
        progress("store", pages=pages, num_pages=pages, atoms=len(atoms), num_atoms=len(atoms))
        reason = _partial_reason(result)
        info = self.bank.put(
            document,
            atoms,
            keys=keys,
            shard=shard,
            atomizer=self.atomizer.fingerprint,
            status="partial" if reason else "ok",
            reason=reason,
            replaces=before.document_id if before else None,
        )
        outcome = "partial" if reason else "replaced" if before or same else "added"
        return IngestItem(source=source, outcome=outcome, message=reason, document=info)

    def _known(self, source: str, name: str, same: DocumentInfo, before: DocumentInfo | None) -> IngestItem:
        if name in same.sources:
            if any(name in d.sources for d in self.bank.documents() if d.status in ("pending", "failed")):
                self.bank.add_source(same.document_id, name)  # the other version that was tried has been given up
            return IngestItem(source=source, outcome="unchanged", document=same)
        self.bank.add_source(same.document_id, name, replaces=before.document_id if before else None)
        known = same.sources[0]
        return IngestItem(source=source, outcome="duplicate", message=f"same content as {known}", document=same)


def usable_atoms(result: Atomization, source: str) -> tuple[Atom, ...]:
    """Return the atoms that can be stored: those whose span stands in the document, so that quotes are verbatim.

    Raises:
        AtomizerError: There is none.
    """
    atoms = tuple(a for a in result.atoms if a.span_valid)
    if not atoms:
        raise AtomizerError(
            f"{source}: no statement could be made of its text", hint="See what was read with --atomizer rules"
        )
    return atoms


def _partial_reason(result: Atomization) -> str:
    meta = result.meta
    if not meta.num_failed_windows:
        return ""
    lost = f"{meta.num_failed_windows} of {meta.num_windows} windows failed: {'; '.join(meta.warnings[:3])}"
    return f"{lost}. Run the same command again to retry them"


def recompile(old: Bank, new: Bank, engine: Engine, on_progress: OnProgress) -> IngestReport:
    """Compile every stored atom of `old` anew into `new`, without reading or decomposing anything."""
    documents = old.documents()
    items = []
    for index, info in enumerate(documents):
        begin = time.monotonic()
        if info.status in ("pending", "failed"):
            for source in info.sources:
                new.fail(source, info.reason or "interrupted")
            continue
        atoms = [a.atom for a in old.atoms(info.document_id)]
        place = {"source": info.sources[0], "source_index": index, "num_sources": len(documents)}
        count = partial(_count_compiled, on_progress, place, len(atoms))
        keys, shard = engine.compile(atoms, store=new.identity.store, on_progress=count)
        document = Document(
            source=info.sources[0],
            title=info.title,
            media_type=info.media_type,
            text=old.text(info.document_id),
            pages=old.pages(info.document_id),
            warnings=info.warnings,
        )
        stored = new.put(
            document, atoms, keys=keys, shard=shard, atomizer=info.atomizer, status=info.status, reason=info.reason
        )
        for source in info.sources[1:]:
            new.add_source(stored.document_id, source)
        items.append(
            IngestItem(source=info.sources[0], outcome="replaced", document=stored, seconds=time.monotonic() - begin)
        )
    return IngestReport(items=tuple(items))


def _count_compiled(on_progress: OnProgress, place: dict, num_atoms: int, done: int) -> None:
    on_progress(IngestProgress(stage="compile", atoms=done, num_atoms=num_atoms, **place))


def swap_folders(new: Path, old: Path) -> None:
    """Put the folder `new` in the place of `old`; until that is done, `old` survives under `backup_of(old)`."""
    import shutil

    backup = backup_of(old)
    shutil.rmtree(backup, ignore_errors=True)  # left by a swap that was cut off when `new` stood already
    old.rename(backup)
    new.rename(old)
    shutil.rmtree(backup)


def backup_of(bank: Path) -> Path:
    """Return where a rebuild keeps the bank that it replaces, for the length of the swap."""
    return bank.with_name(f"{bank.name}.before-rebuild")
