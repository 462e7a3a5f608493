"""What training takes from annotated records, and how it reads a folder of them.

Holds the filter on spans and warnings. Records stay as they are on disk, so that a stricter or looser filter needs
no new annotation.
Paper: appendix "Source-span validation", "Failure Handling and Quality Logging".
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path

from models.atoms import AnnotationRecord, Question
from training.annotation.crosscheck import PROBE
from training.annotation.shards import read_shards


def usable(record: AnnotationRecord) -> AnnotationRecord:
    """Return a record without atoms whose span is not in the text and without questions that carry a warning.

    What refers to an atom that is gone goes with it: a relation, a distractor, or a question of which it is gold. A
    record of atoms alone stays one.
    """
    kept = {atom.atom_id for atom in record.atoms if atom.span_valid}
    atoms = tuple(
        replace(atom, relations=tuple(r for r in atom.relations if r.target in kept))
        for atom in record.atoms
        if atom.span_valid
    )
    questions = tuple(
        _among(question, kept)
        for question in record.qa_pairs
        if not question.annotation_warnings and kept.issuperset(question.gold_atom_ids)
    )
    return replace(record, atoms=atoms, qa_pairs=questions).validated()


def own_questions(record: AnnotationRecord) -> AnnotationRecord:
    """Return a record made offline without the probes that are other documents' questions.

    A run that asks siblings' and strangers' questions by itself needs none, and they would crowd out the near misses.
    """
    if record.annotation_meta.annotator != "offline":
        return record
    return replace(record, qa_pairs=tuple(q for q in record.qa_pairs if PROBE not in q.question_id))


def within_reach(record: AnnotationRecord, num_atoms: int) -> AnnotationRecord:
    """Return a record without the questions of which an atom behind the first `num_atoms` is gold.

    A sample shows no more of a long document: a question whose answer is not in sight would teach invention.
    """
    seen = {atom.atom_id for atom in record.atoms[:num_atoms]}
    return replace(record, qa_pairs=tuple(q for q in record.qa_pairs if seen.issuperset(q.gold_atom_ids)))


def _among(question: Question, kept: Set[str]) -> Question:
    return replace(
        question,
        supporting_atom_ids=tuple(i for i in question.supporting_atom_ids if i in kept),
        distractor_atom_ids=tuple(i for i in question.distractor_atom_ids if i in kept),
    )


def usable_records(folder: Path) -> Iterator[AnnotationRecord]:
    """Yield what is usable of the records in a folder, in order; records without an atom are left out.

    Raises:
        DataError: The folder holds no finished annotation.
    """
    return (filtered for record in read_shards(folder) if (filtered := usable(record)).atoms)
