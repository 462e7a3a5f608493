"""Typed results of `DocumentMemory`, as plain data without tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from models.atoms import Atom

DocumentStatus = Literal["ok", "partial", "pending", "failed"]
IngestOutcome = Literal["added", "replaced", "unchanged", "duplicate", "partial", "failed"]
AnswerStatus = Literal["answered", "unanswerable", "error"]


@dataclass(frozen=True, kw_only=True)
class DocumentInfo:
    """A document as the bank knows it.

    Args:
        document_id: Hex, 16 characters; commands accept a unique prefix of it.
        sources: Every path under which this content was ingested.
        status: `partial` where some windows or pages were lost; `failed` rows hold no atoms.
    """

    document_id: str
    title: str
    sources: tuple[str, ...]
    media_type: str
    content_hash: str
    num_pages: int
    num_atoms: int
    status: DocumentStatus
    reason: str = ""
    warnings: tuple[str, ...] = ()
    atomizer: str = ""
    ingested_at: str = ""
    shard_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class StoredAtom:
    """An atom in the bank: `uid` is `<document_id>-<atom number in hex, 6 digits>`."""

    uid: str
    document_id: str
    atom: Atom
    page_index: int
    page_label: str


@dataclass(frozen=True, kw_only=True)
class IngestProgress:
    """One step of an ingest, for a progress bar.

    Args:
        stage: `read`, `atomize`, `compile`, `store`, or `done`.
        pages, atoms: Done so far in this document; totals are None until known.
    """

    source: str
    stage: Literal["read", "atomize", "compile", "store", "done"]
    pages: int = 0
    num_pages: int | None = None
    atoms: int = 0
    num_atoms: int | None = None
    source_index: int = 0
    num_sources: int = 1


@dataclass(frozen=True, kw_only=True)
class IngestItem:
    """What became of one source."""

    source: str
    outcome: IngestOutcome
    message: str = ""
    document: DocumentInfo | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """What became of every source of one call."""

    items: tuple[IngestItem, ...]

    @property
    def failed(self) -> tuple[IngestItem, ...]:
        """The items of which nothing was stored."""
        return tuple(i for i in self.items if i.outcome == "failed")


@dataclass(frozen=True, kw_only=True)
class RoutedAtom:
    """A candidate of the router.

    Args:
        cosine: Similarity of question key and provenance key, in [-1, 1].
        lexical: Normalised BM25, in [0, 1].
        rerank: Cross-encoder score, None where no reranker ran.
        refusal_logprob: Log P that the model refuses under this atom alone, nats; None where it was not read.
        score: Fused score; 0 is the null slot's.
        weight: Routing weight in [0, 1]; 0 for candidates outside the top K.
    """

    uid: str
    document_id: str
    document_title: str
    page_label: str
    content: str
    cosine: float
    lexical: float
    rerank: float | None
    score: float
    weight: float
    selected: bool
    refusal_logprob: float | None = None


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Where an answer comes from.

    Args:
        quote: Verbatim from the stored text of the document, checked before it is shown.
        holds_answer: True where the quoted span contains the answer.
    """

    document_id: str
    document_title: str
    source: str
    page_index: int
    page_label: str
    quote: str
    char_start: int
    char_end: int
    atom_uid: str
    weight: float
    holds_answer: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer, or a refusal, with its reasons.

    Args:
        text: The answer; `unanswerable` for a refusal.
        answerability: In [0, 1]; below `threshold` the gate refuses.
        refused_by: `gate` before generation, `model` where the model itself said so.
        supported: True where some routed atom contains the answer.
        reranker: Name of the cross-encoder that took part; `off`; `absent` where its weights are not here.
        timings: Milliseconds: load_ms, route_ms, compose_ms, first_token_ms, generate_ms, total_ms.
    """

    question: str
    status: AnswerStatus
    text: str
    answerability: float
    threshold: float
    refused_by: Literal["gate", "model"] | None
    supported: bool
    citations: tuple[Citation, ...]
    atoms: tuple[RoutedAtom, ...]
    context: Literal["none", "atoms", "document"]
    recipe: str
    reranker: str = "off"
    timings: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """A micro-LoRA written as a PEFT folder.

    Args:
        shared: All atoms of this memory have this one LoRA: it holds nothing that they say.
    """

    path: str
    rank: int
    atom_uids: tuple[str, ...]
    question: str | None
    shared: bool


@dataclass(frozen=True, kw_only=True)
class MemoryStatus:
    """What a bank holds, what it was made with, and what would read it now.

    Args:
        base_fingerprint, checkpoint_fingerprint: Of the checkpoint that is in use now.
        bank_base_fingerprint, bank_checkpoint_fingerprint: What the bank was compiled with; None without a bank.
        mismatch: How the bank differs from what is in use now, with the next step; None where it fits.
    """

    bank: str
    exists: bool
    preset: str
    recipe: str
    base_fingerprint: str
    checkpoint_fingerprint: str
    checkpoint: str
    bank_base_fingerprint: str | None
    bank_checkpoint_fingerprint: str | None
    store: str
    num_documents: int
    num_atoms: int
    bank_bytes: int
    documents_by_status: dict[str, int] = field(default_factory=dict)
    mismatch: str | None = None
