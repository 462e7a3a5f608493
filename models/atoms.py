"""The schema of knowledge atoms, questions and annotation records.

Holds the output schema of the annotation pipeline (paper, appendix, table "Output schema") as plain
data, with the deterministic checks that keep a record consistent. It holds no tensors and no parsing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from models.errors import AtomizerError

SEMANTIC_TYPES = ("fact_claim", "entity_attribute", "event_relation", "process_step", "evidence_fragment")
ABSTRACTION_LEVELS = ("abstract", "evidence", "hybrid")
RELATION_TYPES = (
    "supports",
    "elaborates",
    "causes",
    "precedes",
    "follows",
    "contradicts",
    "same_entity",
    "same_event",
    "part_of",
)
QUESTION_TYPES = (
    "single_hop",
    "multi_hop",
    "comparison",
    "temporal",
    "causal",
    "procedural",
    "aggregation",
    "field_lookup",
    "evidence_grounded",
    "irrelevant",
)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A typed edge from the atom that holds it to `target`, another atom of the same document."""

    type: str
    target: str

    def __post_init__(self) -> None:
        _require(self.type in RELATION_TYPES, "Relation", "type", f"one of {RELATION_TYPES}", self.type)


@dataclass(frozen=True, kw_only=True)
class Atom:
    """The smallest unit of knowledge that can be retrieved and written on its own.

    Args:
        atom_id: `atom_0`, `atom_1`, ...: unique within its document.
        content: Self-contained statement; what the memory is compiled from.
        source_span: Verbatim substring of the document's text.
        retrieval_text: Entity, attribute and qualifiers, an indexing anchor close to a question's words.
        confidence: In [0, 1].
        conflict_group: Shared by mutually inconsistent atoms, else None.
        span_valid: False where `source_span` was not found in the document.
        char_start, char_end: Offsets of the span in the document's text, -1 where not found.
    """

    atom_id: str
    semantic_type: str
    content: str
    source_span: str
    retrieval_text: str
    is_answer_bearing: bool = True
    abstraction_level: str = "evidence"
    conflict_group: str | None = None
    confidence: float = 1.0
    relations: tuple[Relation, ...] = ()
    span_valid: bool = True
    char_start: int = -1
    char_end: int = -1

    def __post_init__(self) -> None:
        where = f"atom {self.atom_id!r}"
        _require(
            self.semantic_type in SEMANTIC_TYPES, where, "semantic_type", f"one of {SEMANTIC_TYPES}", self.semantic_type
        )
        _require(
            self.abstraction_level in ABSTRACTION_LEVELS,
            where,
            "abstraction_level",
            f"one of {ABSTRACTION_LEVELS}",
            self.abstraction_level,
        )
        _require(0.0 <= self.confidence <= 1.0, where, "confidence", "in [0, 1]", self.confidence)
        _require(bool(self.content.strip()), where, "content", "non-empty text", self.content)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Atom:
        """Build an atom from its JSON form; unknown keys are an error."""
        relations = tuple(Relation(**r) for r in data.get("relations", ()))
        return cls(**{**data, "relations": relations})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with every field of the schema."""
        return {**asdict(self), "relations": [asdict(r) for r in self.relations]}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question over a document's atoms, with the role of each atom in its answer.

    `relevant_atom_ids` and `has_conflict` are derived by `AnnotationRecord.validated`.
    """

    question: str
    answers: tuple[str, ...] = ()
    question_type: str = "single_hop"
    gold_atom_ids: tuple[str, ...] = ()
    supporting_atom_ids: tuple[str, ...] = ()
    distractor_atom_ids: tuple[str, ...] = ()
    relevant_atom_ids: tuple[str, ...] = ()
    is_irrelevant: bool = False
    has_conflict: bool = False
    is_generated_irrelevant: bool = False
    question_id: str = ""
    annotation_warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(
            self.question_type in QUESTION_TYPES,
            "question",
            "question_type",
            f"one of {QUESTION_TYPES}",
            self.question_type,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Question:
        """Build a question from its JSON form; lists become tuples."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})


@dataclass(frozen=True, kw_only=True)
class AnnotationMeta:
    """How an annotation came about: what was tried, what was dropped, and why.

    Args:
        num_questions: Probes among them, of which there are `num_irrelevant_generated`, rescued ones included.
    """

    annotator: str
    mode: str = "ingest"
    decomposition_status: str = "ok"
    question_status: str = "none"
    num_atoms: int = 0
    num_questions: int = 0
    num_irrelevant_generated: int = 0
    num_invalid_spans: int = 0
    num_windows: int = 0
    num_failed_windows: int = 0
    num_dropped: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnnotationMeta:
        """Build from the JSON form."""
        return cls(**{**data, "warnings": tuple(data.get("warnings", ()))})


@dataclass(frozen=True, kw_only=True)
class AnnotationRecord:
    """A context with its atoms and its questions: one training sample."""

    context: str
    atoms: tuple[Atom, ...]
    qa_pairs: tuple[Question, ...] = ()
    title: str = ""
    annotation_meta: AnnotationMeta = field(default_factory=lambda: AnnotationMeta(annotator="unknown"))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AnnotationRecord:
        """Build from the JSON form; a record without `qa_pairs` is atom-only."""
        return cls(
            context=data["context"],
            title=data.get("title", ""),
            atoms=tuple(Atom.from_dict(a) for a in data["atoms"]),
            qa_pairs=tuple(Question.from_dict(q) for q in data.get("qa_pairs", ())),
            annotation_meta=AnnotationMeta.from_dict(data["annotation_meta"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "atoms": [a.to_dict() for a in self.atoms]}

    def validated(self) -> AnnotationRecord:
        """Return the record after the deterministic cross-validation of the paper's appendix.

        Ids that name no atom are dropped, irrelevant questions lose their gold atoms, and
        `relevant_atom_ids` and `has_conflict` are derived anew.
        """
        groups = {a.atom_id: a.conflict_group for a in self.atoms}
        return replace(self, qa_pairs=tuple(_validate_question(q, groups) for q in self.qa_pairs))


def _validate_question(question: Question, groups: dict[str, str | None]) -> Question:
    def known(ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(i for i in dict.fromkeys(ids) if i in groups)

    named = (*question.gold_atom_ids, *question.supporting_atom_ids, *question.distractor_atom_ids)
    unknown = [i for i in dict.fromkeys(named) if i not in groups]
    gold = () if question.is_irrelevant else known(question.gold_atom_ids)
    supporting = tuple(i for i in known(question.supporting_atom_ids) if i not in gold)
    relevant = gold + supporting
    conflicting = [groups[i] for i in relevant if groups[i] is not None]
    return replace(
        question,
        gold_atom_ids=gold,
        supporting_atom_ids=supporting,
        distractor_atom_ids=tuple(i for i in known(question.distractor_atom_ids) if i not in relevant),
        relevant_atom_ids=relevant,
        has_conflict=len(conflicting) != len(set(conflicting)),
        question_type="irrelevant" if question.is_irrelevant else question.question_type,
        annotation_warnings=(*question.annotation_warnings, *(f"unknown atom id {i}" for i in unknown)),
    )


def _require(condition: bool, where: str, name: str, constraint: str, value: object) -> None:
    if not condition:
        raise AtomizerError(f"{where}: {name} must be {constraint}, got {value!r}")
