"""A memory without a model, for tests of the command line; as a script, `d2a` over it.

`FakeMemory` records its calls. What it answers depends on the question, see `ask`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from models.atoms import Atom
from models.config import MemoryConfig
from models.errors import BankError, CheckpointError, DocumentError
from models.results import (
    Answer,
    Citation,
    DocumentInfo,
    ExportReport,
    IngestItem,
    IngestProgress,
    IngestReport,
    MemoryStatus,
    RoutedAtom,
    StoredAtom,
)

HOSTILE = "see [smith2020] [/x] \x1b]0;pwn\x07\x1b[2J\u202e\x9b31m :warning: a:b:c"
# The same after sanitizing: the two sequences and the override are gone, brackets and colons are not.
HARMLESS = "see [smith2020] [/x]  :warning: a:b:c"
DOCUMENT_ID = "00c0ffee00c0ffee"


def document(**changes: Any) -> DocumentInfo:
    """Return the one document of the fake memory."""
    values: dict[str, Any] = {
        "document_id": DOCUMENT_ID,
        "title": HOSTILE,
        "sources": (f"/docs/{HOSTILE}.pdf",),
        "media_type": "application/pdf",
        "content_hash": "ab" * 32,
        "num_pages": 3,
        "num_atoms": 2,
        "status": "ok",
    }
    return DocumentInfo(**{**values, **changes})


def routed(**changes: Any) -> RoutedAtom:
    """Return a candidate."""
    values: dict[str, Any] = {
        "uid": f"{DOCUMENT_ID}-000001",
        "document_id": DOCUMENT_ID,
        "document_title": HOSTILE,
        "page_label": "iv",
        "content": "The lighthouse was lit in 1874. " * 8,
        "cosine": 0.75,
        "lexical": 0.5,
        "rerank": None,
        "score": 2.25,
        "weight": 0.875,
        "selected": True,
    }
    return RoutedAtom(**{**values, **changes})


def answer(question: str, **changes: Any) -> Answer:
    """Return an answer with one citation and two candidates."""
    citation = Citation(
        document_id=DOCUMENT_ID,
        document_title=HOSTILE,
        source="/docs/a.pdf",
        page_index=3,
        page_label="iv",
        quote="The lighthouse\nwas lit in 1874 \x1b[31m≤ ✓ 机.",
        char_start=10,
        char_end=40,
        atom_uid=f"{DOCUMENT_ID}-000001",
        weight=0.875,
        holds_answer=True,
    )
    values: dict[str, Any] = {
        "status": "answered",
        "text": "In 1874 ≤ ✓ 机.",
        "answerability": 0.9,
        "threshold": 0.5,
        "refused_by": None,
        "supported": True,
        "citations": (citation,),
        "atoms": (routed(uid="low", weight=0.0, score=-1.5, selected=False), routed()),
        "context": "none",
        "recipe": "d2a",
        "timings": {"total_ms": 12.5},
        "num_tokens": 4,
    }
    return Answer(question=question, **{**values, **changes})


class FakeMemory:
    """Answers from a script; `calls` holds (name, arguments) in order."""

    def __init__(self, config: MemoryConfig | None = None) -> None:
        self.config = config
        self.calls: list[tuple[str, Any]] = []
        self.job: SimpleNamespace | None = None
        self.stored = [document()]
        self.is_empty = False
        self.faults: list[Any] = []
        self.mismatch: str | None = None

    def ask(self, question: str, *, on_token: Callable[[str], None] | None = None, on_routed: Any = None) -> Answer:
        """Answer, refuse or fail by a word of the question."""
        self.calls.append(("ask", question))
        tell = on_token or (lambda token: None)
        if "gate" in question:
            return answer(question, status="unanswerable", text="unanswerable", answerability=0.125, refused_by="gate")
        if "model" in question:
            for token in ("Un", "answer", "able."):
                tell(token)
            return answer(question, status="unanswerable", text="unanswerable", refused_by="model")
        if "broken" in question:
            raise CheckpointError("no checkpoint for \x1b[31mgemma\x1b[0m", hint="Run: d2a train --model gemma")
        if "stop" in question:
            tell("In 18")
            raise KeyboardInterrupt
        if "sleep" in question:
            tell("In 18")
            time.sleep(30)
        if "bug" in question:
            raise RuntimeError("index 7\nout of range")
        found = answer(question, supported="guess" not in question)
        for token in (" In 18", "74 ≤", " ✓ 机", ".", "\x1b]0;pwn\x07", "\x1b", "[2J"):
            tell(token)
        return found

    def ingest(
        self, sources: Sequence[str], *, on_progress: Callable[[IngestProgress], None], **more: Any
    ) -> IngestReport:
        """Take every source; one whose name holds `bad` fails, `half` is partial."""
        self.calls.append(("ingest", (list(sources), more)))
        items = []
        for index, source in enumerate(sources):
            where = {"source": source, "source_index": index, "num_sources": len(sources), "num_pages": 3}
            on_progress(IngestProgress(stage="read", pages=1, **where))
            on_progress(IngestProgress(stage="compile", pages=3, atoms=1, num_atoms=2, **where))
            if "bad" in source:
                items.append(IngestItem(source=source, outcome="failed", message="it is empty", seconds=0.25))
                continue
            outcome = "partial" if "half" in source else "added"
            items.append(
                IngestItem(source=source, outcome=outcome, message="page 2 lost", document=document(), seconds=1.5)
            )
        return IngestReport(items=tuple(items))

    def rebuild(self, *, on_progress: Any = None) -> IngestReport:
        """Recompile the one document."""
        self.calls.append(("rebuild", None))
        return IngestReport(items=(IngestItem(source="/docs/a.pdf", outcome="replaced", document=document()),))

    def estimate(self, sources: Sequence[str], **more: Any) -> SimpleNamespace | None:
        """Return what the test has set."""
        return self.job

    def documents(self) -> list[DocumentInfo]:
        """Return what the test has set."""
        return self.stored

    def document(self, ref: str) -> DocumentInfo:
        """Find by id."""
        if not DOCUMENT_ID.startswith(ref):
            raise BankError(f"no document {ref!r}", hint="Run: d2a docs list")
        return self.stored[0]

    def atoms(self, ref: str) -> list[StoredAtom]:
        """Return two atoms of two types."""
        self.document(ref)
        return [
            StoredAtom(
                uid=f"{DOCUMENT_ID}-{number:06x}",
                document_id=DOCUMENT_ID,
                page_index=0,
                page_label="1",
                atom=Atom(
                    atom_id=f"atom_{number}", semantic_type=type_, content=HOSTILE, source_span="x", retrieval_text="x"
                ),
            )
            for number, type_ in enumerate(("fact_claim", "process_step"))
        ]

    def forget(self, ref: str) -> DocumentInfo:
        """Record it."""
        self.calls.append(("forget", ref))
        return self.stored[0]

    def export(self, folder: Path, *, question: str | None = None, atom_uid: str | None = None) -> ExportReport:
        """Record it."""
        self.calls.append(("export", (folder, question, atom_uid)))
        return ExportReport(path=str(folder), rank=8, atom_uids=("a", "b"), question=question, shared=True)

    def status(self) -> MemoryStatus:
        """Return a bank with one document."""
        return MemoryStatus(
            bank=str(self.config.bank if self.config else "bank"),
            exists=not self.is_empty,
            preset="smollm2",
            recipe="d2a",
            base_fingerprint="b" * 16,
            checkpoint_fingerprint="c" * 16,
            checkpoint="shipped",
            bank_base_fingerprint=None if self.is_empty else "b" * 16,
            bank_checkpoint_fingerprint=None if self.is_empty else "d" * 16,
            store="compact",
            num_documents=1,
            num_atoms=2,
            bank_bytes=1_500_000,
            documents_by_status={"ok": 1},
            mismatch=self.mismatch,
        )

    def bank_faults(self) -> list[Any]:
        return self.faults

    def warm_up(self) -> None:
        """Record it."""
        self.calls.append(("warm_up", None))


def failing_memory(config: MemoryConfig) -> FakeMemory:
    """Stand for a memory that cannot be opened."""
    raise DocumentError("the bank was made by smollm2, not gemma", hint="Run: d2a ingest --rebuild")


if __name__ == "__main__":
    from d2a_cli import _memory, app

    _memory.open_memory = FakeMemory  # type: ignore[assignment]
    sys.argv[0] = "d2a"
    app.main()
