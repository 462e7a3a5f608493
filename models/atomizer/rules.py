"""The offline backend: a document to atoms by transparent rules, without a language model.

Holds the order of the rules; each rule lives in its own module: `segment` (where an atom begins and
ends), `context` (what it says), `semantics` (what kind it is), `relations` (how it connects). The same
text always gives the same atoms. Paper: section "Data Atomization and Processing", where a language
model does this; `models.atomizer.llm` is that variant.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from models.atomizer import Atomization, JobEstimate
from models.atomizer.context import Context, body_of, names_in, retrieval_text
from models.atomizer.entities import begins_with_pronoun, common_words
from models.atomizer.relations import Draft, conflict_groups, relate
from models.atomizer.segment import segment
from models.atomizer.semantics import abstraction_level, confidence, is_answer_bearing, semantic_type
from models.atoms import AnnotationMeta, Atom
from models.config import AtomizerConfig
from models.documents import Document

RULES_VERSION = 2
"""Raise it with every change after which some document gives other atoms."""

_PROGRESS_EVERY = 200


class RulesAtomizer:
    """Decomposes a document sentence by sentence, in time linear in its length."""

    def __init__(self, config: AtomizerConfig) -> None:
        self._language = config.language
        self.fingerprint = f"rules-{RULES_VERSION}-{config.language}-sentencex-{version('sentencex')}"

    def estimate(self, document: Document) -> JobEstimate | None:
        """Return None: rules cost nothing."""
        return None

    def atomize(
        self, document: Document, *, on_progress: Callable[[int, int | None], None] | None = None
    ) -> Atomization:
        """Decompose a document; one without text gives no atoms and the status `empty`.

        Args:
            on_progress: Called with the characters done so far and their total.
        """
        text = document.text
        common = common_words(text)
        context = Context(document.title, common)
        drafts: list[Draft] = []
        prefixes: list[str] = []
        for number, piece in enumerate(segment(document, self._language)):
            body = body_of(text, piece)
            names = names_in(body, common)
            kind = semantic_type(piece, body, names)
            drafts.append(Draft(piece=piece, body=body, names=names, semantic_type=kind))
            prefixes.append(context.prefix(piece, body))
            if on_progress and number % _PROGRESS_EVERY == 0:
                on_progress(piece.end, len(text))
        atoms = _finish(document, drafts, prefixes)
        if on_progress:
            on_progress(len(text), len(text))
        status = "ok" if atoms else "empty"
        meta = AnnotationMeta(annotator="rules", decomposition_status=status, num_atoms=len(atoms), num_windows=1)
        return Atomization(atoms=atoms, meta=meta)


def _finish(document: Document, drafts: list[Draft], prefixes: list[str]) -> tuple[Atom, ...]:
    """Turn drafts into atoms, now that all of them are known and can be related."""
    groups = {index: group for group, members in conflict_groups(drafts).items() for index in members}
    atoms = []
    for index, (draft, prefix, relations) in enumerate(zip(drafts, prefixes, relate(drafts), strict=True)):
        piece, body = draft.piece, draft.body
        unresolved = bool(begins_with_pronoun(body)) and not prefix
        atoms.append(
            Atom(
                atom_id=f"atom_{index}",
                semantic_type=draft.semantic_type,
                content=f"{prefix}: {body}" if prefix else body,
                source_span=document.text[piece.start : piece.end],
                retrieval_text=retrieval_text(document.title, piece, body, draft.names),
                is_answer_bearing=is_answer_bearing(piece, body, draft.names),
                abstraction_level=abstraction_level(piece, body),
                conflict_group=groups.get(index),
                confidence=confidence(piece, body, unresolved=unresolved),
                relations=relations,
                char_start=piece.start,
                char_end=piece.end,
            )
        )
    return tuple(atoms)
