"""What training takes from annotated records, and how it reads a folder of them.

Holds the filter on spans and warnings. Records stay as they are on disk, so that a stricter or looser filter needs
no new annotation.
Paper: appendix "Source-span validation", "Failure Handling and Quality Logging".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from models.atoms import AnnotationRecord
from training.annotation.shards import read_shards


def usable(record: AnnotationRecord) -> AnnotationRecord:
    """Return a record without atoms whose span is not in the text and without questions that carry a warning.

    Relations to atoms that are gone go with them. A record of atoms alone stays one.
    """
    kept = {atom.atom_id for atom in record.atoms if atom.span_valid}
    atoms = tuple(
        replace(atom, relations=tuple(r for r in atom.relations if r.target in kept))
        for atom in record.atoms
        if atom.span_valid
    )
    questions = tuple(q for q in record.qa_pairs if not q.annotation_warnings and kept.issuperset(q.gold_atom_ids))
    return replace(record, atoms=atoms, qa_pairs=questions).validated()


def usable_records(folder: Path) -> Iterator[AnnotationRecord]:
    """Yield what is usable of the records in a folder, in order; records without an atom are left out.

    Raises:
        DataError: The folder holds no finished annotation.
    """
    return (filtered for record in read_shards(folder) if (filtered := usable(record)).atoms)
