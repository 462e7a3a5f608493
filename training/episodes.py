"""Episodes: a question asked of a passage, with BM25 scores of the passage's atoms and of a whole library.

Everything about words is computed here once, on any machine with numpy; the loop only looks it up. Three
kinds: `ANSWERABLE` asks a passage its own question; `SIBLING` asks another passage of the same article, a
near miss; `OFF_TOPIC` asks a passage of another article.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.atoms import AnnotationRecord
from models.lexical import LexicalIndex

ANSWERABLE, SIBLING, OFF_TOPIC, UNANSWERABLE = range(4)
KINDS = ("answerable", "sibling", "off-topic", "unanswerable")
LIBRARY_CANDIDATES = 32
FORMAT_VERSION = 4


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """Flat arrays over all questions, episodes and atoms of some records.

    Args:
        atom_start: `[P + 1]`, where each passage's atoms begin in the flat list of all atoms.
        text: `[P]`, a number that passages of equal text share: a mixture may hold a passage several times.
        passage_of_question: `[Q]`.
        has_answer: `[Q]`, False where no reference answer is known: unanswerable questions, and probes that an
            annotator found answerable after all.
        gold, supporting, distractor: `[Q, G]` flat atom rows of a question's atoms of that kind, padded with -1.
        group: `[N]` conflict group of each atom, another number in each passage; -1 where it has none.
        question, passage, kind: `[Ep]` of each episode.
        local_start, local_lexical: Ragged BM25 scores of an episode over its passage's atoms, as a bank of one.
        library_rows, library_lexical: `[Q, 32]` best atoms by BM25 among all, padded with -1.
        own_library_start, own_library_lexical: Ragged scores of a question's own passage's atoms in the library.
        term_start, term, term_weight: Ragged BM25 terms of each atom in the library.
        query_term: `[Q, T]` terms of each question, padded with -1; with `query_bound`, `[Q]`, the largest score
            of any text, they give the score of any question with any atom.
    """

    atom_start: np.ndarray
    text: np.ndarray
    passage_of_question: np.ndarray
    has_answer: np.ndarray
    gold: np.ndarray
    supporting: np.ndarray
    distractor: np.ndarray
    group: np.ndarray
    question: np.ndarray
    passage: np.ndarray
    kind: np.ndarray
    local_start: np.ndarray
    local_lexical: np.ndarray
    library_rows: np.ndarray
    library_lexical: np.ndarray
    own_library_start: np.ndarray
    own_library_lexical: np.ndarray
    term_start: np.ndarray
    term: np.ndarray
    term_weight: np.ndarray
    query_term: np.ndarray
    query_bound: np.ndarray

    def save(self, path: Path) -> None:
        """Write all arrays to one compressed file, whole or not at all; scores shrink to float16."""
        arrays = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in vars(self).items()}
        scratch = path.with_name(f"{path.name}.tmp.npz")
        np.savez_compressed(scratch, **arrays)
        scratch.replace(path)

    @classmethod
    def load(cls, path: Path) -> Episodes:
        """Read what `save` wrote."""
        with np.load(path) as arrays:
            return cls(**{k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in arrays.items()})


def build_episodes(records: Sequence[AnnotationRecord], *, seed: int = 0, probes: bool = True) -> Episodes:
    """Compute the episodes of `records`.

    Args:
        probes: Add one sibling and one off-topic episode a question, where another passage exists.
    """
    atom_start = np.cumsum([0, *(len(r.atoms) for r in records)])
    texts: dict[str, int] = {}
    questions = [(p, q) for p, r in enumerate(records) for q in r.qa_pairs]
    library = LexicalIndex.build([a.content for r in records for a in r.atoms])
    local = _LocalIndexes(records)
    rows: list[tuple[int, int, int]] = []
    for index, (passage, question) in enumerate(questions):
        rows.append((index, passage, UNANSWERABLE if question.is_irrelevant else ANSWERABLE))
    if probes:
        rows += _probe_rows(records, questions, seed)
    local_scores = [local.scores(questions[q][1].question, p) for q, p, _ in rows]
    tops = [library.top(q.question, LIBRARY_CANDIDATES) for _, q in questions]
    own = [library.scores(q.question, np.arange(atom_start[p], atom_start[p + 1])) for p, q in questions]
    queries = [library.query_terms(q.question) for _, q in questions]
    term_start, term, term_weight = library.terms_by_row()
    return Episodes(
        atom_start=atom_start,
        text=np.array([texts.setdefault(r.context, len(texts)) for r in records]),
        passage_of_question=np.array([p for p, _ in questions]),
        has_answer=np.array([bool(q.answers) for _, q in questions]),
        gold=_pad([_atom_rows(records[p], q.gold_atom_ids, atom_start[p]) for p, q in questions], -1),
        supporting=_pad([_atom_rows(records[p], q.supporting_atom_ids, atom_start[p]) for p, q in questions], -1),
        distractor=_pad([_atom_rows(records[p], q.distractor_atom_ids, atom_start[p]) for p, q in questions], -1),
        group=_conflict_groups(records),
        question=np.array([r[0] for r in rows]),
        passage=np.array([r[1] for r in rows]),
        kind=np.array([r[2] for r in rows]),
        local_start=np.cumsum([0, *map(len, local_scores)]),
        local_lexical=np.concatenate(local_scores).astype(np.float32),
        library_rows=_pad([t[0] for t in tops], -1, LIBRARY_CANDIDATES),
        library_lexical=_pad([t[1] for t in tops], 0.0, LIBRARY_CANDIDATES).astype(np.float32),
        own_library_start=np.cumsum([0, *map(len, own)]),
        own_library_lexical=np.concatenate(own).astype(np.float32),
        term_start=term_start,
        term=term.astype(np.int32),
        term_weight=term_weight.astype(np.float32),
        query_term=_pad([known for known, _ in queries], -1),
        query_bound=np.array([bound for _, bound in queries]),
    )


class _LocalIndexes:
    """One BM25 index a passage, built when first asked for."""

    def __init__(self, records: Sequence[AnnotationRecord]) -> None:
        self.records = records
        self.indexes: dict[int, LexicalIndex] = {}

    def scores(self, question: str, passage: int) -> np.ndarray:
        if passage not in self.indexes:
            self.indexes[passage] = LexicalIndex.build([a.content for a in self.records[passage].atoms])
        return self.indexes[passage].scores(question, np.arange(len(self.records[passage].atoms)))


def _probe_rows(records: Sequence[AnnotationRecord], questions: Sequence, seed: int) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    article = defaultdict(list)
    for passage, record in enumerate(records):
        article[record.title or f"untitled {passage}"].append(passage)
    rows = []
    for index, (passage, question) in enumerate(questions):
        if question.is_irrelevant:
            continue
        title = records[passage].title or f"untitled {passage}"
        siblings = [p for p in article[title] if p != passage]
        if siblings:
            rows.append((index, rng.choice(siblings), SIBLING))
        other = rng.randrange(len(records))
        if other not in article[title]:
            rows.append((index, other, OFF_TOPIC))
    return rows


def _atom_rows(record: AnnotationRecord, atom_ids: Sequence[str], start: int) -> list[int]:
    wanted = set(atom_ids)
    return [start + i for i, atom in enumerate(record.atoms) if atom.atom_id in wanted]


def _conflict_groups(records: Sequence[AnnotationRecord]) -> np.ndarray:
    number: dict[tuple[int, str], int] = {}
    return np.array(
        [
            -1 if a.conflict_group is None else number.setdefault((p, a.conflict_group), len(number))
            for p, record in enumerate(records)
            for a in record.atoms
        ]
    )


def _pad(rows: Sequence[Sequence], value: float, width: int | None = None) -> np.ndarray:
    width = width or max(1, *map(len, rows))
    out = np.full((len(rows), width), value, dtype=np.int64 if value == -1 else np.float32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
