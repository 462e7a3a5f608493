"""Annotation by distant supervision: what the set's authors marked decides the roles of atoms.

Holds the rules: the atoms under an answer are gold, those under other evidence supporting, the lexically nearest
of the rest distractors. Questions about sibling passages are probes, and so are a passage's own ones altered so that
it no longer answers them; people's unanswerable ones stay irrelevant. It asks no model and gives the same record
every time.
Paper: appendix "Question-to-Atom Annotation", where a language model does this; `training.annotation.llm` is that
variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from models.atomizer import JobEstimate
from models.atomizer.entities import entities
from models.atoms import AnnotationRecord, Atom, Question
from models.config import AtomizerConfig
from models.lexical import LexicalIndex
from training.annotation.adapters import ADAPTERS
from training.annotation.altered import Altered, Alterer
from training.annotation.crosscheck import checked_record, probe_item, question_of
from training.annotation.decomposition import build_decomposer
from training.annotation.probes import ProbePool
from training.datasets.context import Context, QAItem, occurrences

OFFLINE_VERSION = 4
"""Raise it with every change after which some context gives another record."""

MODE = "distant"
MAX_DISTRACTORS = 4
MAX_SUPPORTING = 8
# Evidence may be whole paragraphs, of which an answer without a place in the text needs a few sentences.
MAX_GOLD_OF_EVIDENCE = 4

Range = tuple[int, int]


class OfflineAnnotator:
    """Derives roles from answers and evidence.

    Args:
        contexts: All that will be annotated; their questions are each other's probes.
        num_probes: Questions about other contexts that are probes of one, fewer where the set has no more.
        num_altered: Its own questions that are altered into probes, fewer where rules find no more.
    """

    concurrency = 1

    def __init__(
        self, config: AtomizerConfig, contexts: Sequence[Context], *, num_probes: int, num_altered: int = 0
    ) -> None:
        self._decomposer = build_decomposer(config)
        self._pool = ProbePool(contexts)
        self._alterer = Alterer(contexts if num_altered else ())
        self._num_probes = num_probes
        self._num_altered = num_altered
        self.fingerprint = f"offline-{OFFLINE_VERSION}/{num_probes}/{num_altered}/{self._decomposer.fingerprint}"
        if config.backend == "openai":
            self.concurrency = config.concurrency

    def estimate(self, contexts: Sequence[Context]) -> JobEstimate | None:
        """Return what decomposition would cost; None where rules do it."""
        parts = [part for part in map(self._decomposer.estimate, contexts) if part is not None]
        if not parts:
            return None
        costs = [part.cost_usd for part in parts]
        return JobEstimate(
            num_calls=sum(part.num_calls for part in parts),
            num_input_tokens=sum(part.num_input_tokens for part in parts),
            num_output_tokens=sum(part.num_output_tokens for part in parts),
            cost_usd=None if None in costs else sum(costs),
        )

    def annotate(self, context: Context) -> AnnotationRecord:
        """Annotate a context.

        Raises:
            DiscardedSampleError: A part of it, or all of it, gave no atoms.
        """
        atomization = self._decomposer.decompose(context)
        roles = _Roles(context, [atom for atom in atomization.atoms if atom.span_valid])
        texts = self._pool.probes(context, self._num_probes)
        probes = [probe_item(context, number, text) for number, text in enumerate(texts)]
        questions = [roles.assigned(item, question_of(item, is_probe=False)) for item in context.questions]
        questions += [roles.assigned(item, question_of(item, is_probe=True)) for item in probes]
        altered = self._alterer.altered(context, self._num_altered)
        questions += [roles.misled(number, change) for number, change in enumerate(altered)]
        meta = replace(atomization.meta, annotator="offline", mode=MODE, question_status="ok" if questions else "none")
        return checked_record(context, replace(atomization, meta=meta), questions)

    def close(self) -> None:
        """Do nothing: there is no connection of its own."""


class _Roles:
    """The atoms of one context, searchable by place and by words."""

    def __init__(self, context: Context, atoms: Sequence[Atom]) -> None:
        self._context = context
        self._atoms = atoms
        self._index = LexicalIndex.build([f"{atom.retrieval_text} {atom.content}" for atom in atoms])

    def assigned(self, item: QAItem, question: Question) -> Question:
        """Return a question with the roles of the atoms in its answer."""
        gold: list[int] = []
        supporting: list[int] = []
        if not question.is_irrelevant:
            gold, supporting = self._relevant(item)
            question_type = item.question_type or ADAPTERS[self._context.mode].question_type
            question = replace(question, question_type=question_type)
        return replace(
            question,
            gold_atom_ids=self._ids(gold),
            supporting_atom_ids=self._ids(supporting),
            distractor_atom_ids=self._ids(self._distractors(item, {*gold, *supporting})),
        )

    def misled(self, number: int, altered: Altered) -> Question:
        """Return an altered question, which the atoms with the original's answer distract the most."""
        name = f"{self._context.context_id}/altered_{number}_{altered.kind}"
        item = QAItem(question_id=name, question=altered.question, answers=())
        gold, _ = self._relevant(altered.original)
        rows = (*gold, *self._distractors(item, set(gold)))[:MAX_DISTRACTORS]
        return replace(question_of(item, is_probe=True), distractor_atom_ids=self._ids(rows))

    def _relevant(self, item: QAItem) -> tuple[list[int], list[int]]:
        """Return the gold atoms and the supporting ones.

        Where the answer stands nowhere in the text (yes and no, counts, free form), the evidence itself is gold.
        """
        gold = self._under(answer.span for answer in item.answers if answer.span)
        evidence = self._under(item.evidence or self._supporting_paragraphs())
        wanted = " ".join((item.question, *(answer.text for answer in item.answers)))
        if not gold:
            gold = self._nearest_of(evidence, wanted, MAX_GOLD_OF_EVIDENCE) if item.evidence else []
        others = [row for row in evidence if row not in gold]
        return gold, self._nearest_of(others, wanted, MAX_SUPPORTING)

    def _supporting_paragraphs(self) -> tuple[Range, ...]:
        return tuple((p.char_start, p.char_end) for p in self._context.paragraphs if p.is_supporting)

    def _distractors(self, item: QAItem, relevant: set[int]) -> list[int]:
        """Return the nearest other atoms: to the question, to what it asks, and to whom it asks about.

        The second without the names finds the right attribute of the wrong entity, the third the same entity's
        other fields. An atom that repeats an answer is no distractor, whatever its place.
        """
        names = entities(item.question, frozenset())
        attribute = item.question
        for name in names:
            attribute = attribute.replace(name, " ")
        rankings = [self._ranked(query) for query in (item.question, attribute, " ".join(names))]
        found: dict[int, None] = {}
        for row in _round_robin(rankings):
            if row not in relevant and not self._repeats_answer(row, item):
                found[row] = None
            if len(found) == MAX_DISTRACTORS:
                break
        return list(found)

    def _repeats_answer(self, row: int, item: QAItem) -> bool:
        content = self._atoms[row].content
        return any(next(occurrences(content, a.text, ignore_case=True), None) is not None for a in item.answers)

    def _ranked(self, query: str) -> list[int]:
        return self._index.top(query, len(self._atoms))[0].tolist()

    def _nearest_of(self, rows: Sequence[int], query: str, limit: int) -> list[int]:
        """Return the nearest of some atoms to a query, in the order of the text; all where they are few."""
        if len(rows) <= limit:
            return list(rows)
        rank = {row: place for place, row in enumerate(self._ranked(query))}
        return sorted(sorted(rows, key=lambda row: (rank.get(row, len(self._atoms)), row))[:limit])

    def _under(self, ranges: Iterable[Range]) -> list[int]:
        """Return the atoms whose span overlaps any range."""
        ranges = tuple(ranges)
        return [
            row
            for row, atom in enumerate(self._atoms)
            if any(atom.char_start < end and start < atom.char_end for start, end in ranges)
        ]

    def _ids(self, rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(self._atoms[row].atom_id for row in rows)


def _round_robin(rankings: Sequence[Sequence[int]]) -> Iterator[int]:
    for turn in zip_longest(*rankings):
        yield from (row for row in turn if row is not None)
