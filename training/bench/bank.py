"""The banks of a suite: whose atoms each question may use, what it is routed to, and whose memory is a stranger's.

A bank is a document's own atoms (`document`), or those of the whole suite (`all`). What is computed here depends on
the suite and on the rows that are asked together, never on what was asked before: a run that goes on after a kill
computes the same numbers. Rows are the places of samples in the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.atoms import Question
from models.base import FrozenBase
from models.lexical import LexicalIndex, best_rows
from models.network import MemoryNetwork
from training.bench.records import bench_records
from training.bench.samples import Sample, Suite
from training.bench.suites.assemble import shuffled
from training.datasets.context import Context
from training.library import Ask, Candidates, Library, RoutedAsks

BANKS = ("document", "all")
DEFAULT_K = 3
# Questions that are routed at a time: of a bank of everything, the scores of all of them would not fit.
CPU_ROUTE_ROWS, GPU_ROUTE_ROWS = 64, 1024


def default_k(bank: str, network: MemoryNetwork | None) -> int:
    """Return how many atoms a question is given: 3 of its own document, or the recipe's K of a whole suite."""
    return DEFAULT_K if bank == "document" or network is None else network.spec.router.top_k


class Shelf:
    """The library that was made last, for a suite that reads the same documents; let go before another is made."""

    def __init__(self) -> None:
        self._contexts: list[Context] = []
        self._library: Library | None = None

    def library(self, contexts: list[Context], make: Callable[[], Library]) -> Library:
        """Return the library of some documents."""
        if self._library is None or contexts != self._contexts:
            self._library = None  # two need not fit side by side
            self._library, self._contexts = make(), contexts
        return self._library


class SuiteBank:
    """The documents of a suite as memory; with the bank `document`, of those alone that some sample asks.

    Args:
        network: None routes nothing and leaves documents and words.
        kind: One of `BANKS`.
        top_k: Atoms a question is given.
        cache: Folder of the atoms; None for the user's.
        shelf: Where the library is found, or left for the next suite.
    """

    def __init__(
        self,
        base: FrozenBase,
        network: MemoryNetwork | None,
        suite: Suite,
        *,
        kind: str,
        top_k: int,
        seed: int = 0,
        cache: Path | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.suite, self.kind, self.top_k = suite, kind, top_k
        self.route_rows = GPU_ROUTE_ROWS if base.device.type == "cuda" else CPU_ROUTE_ROWS
        strange = strangers(suite, seed)
        documents = documents_read(suite, kind, strange)
        self._passage = {document: passage for passage, document in enumerate(documents)}
        contexts = [suite.contexts[document] for document in documents]

        def make() -> Library:
            library = Library(base, network, bench_records(contexts, cache=cache))
            if network is not None:
                library.compile()
            return library

        self.library = (shelf or Shelf()).library(contexts, make)
        self._gold = [{q.question_id: q.gold_atom_ids for q in r.qa_pairs} for r in self.library.records]
        self.asks = [self._ask(sample) for sample in suite.samples]
        self._strange = [None if found is None else self._stranger(*found) for found in strange]
        self._routed: dict[tuple[str, tuple[int, ...]], RoutedAsks] = {}
        self._bm25_rank: dict[int, int] = {}

    @property
    def num_atoms(self) -> int:
        """Atoms of all documents that were read."""
        return len(self.library.atoms)

    def facts(self) -> dict[str, Any]:
        """Return what the header says of the documents: how many were read, their atoms, and those of a bank."""
        sizes = [self._size(ask) for ask in self.asks]
        return {
            "num_atoms": self.num_atoms,
            "num_documents_read": len(self.library.records),
            "mean_bank_atoms": round(float(np.mean(sizes)), 1),
        }

    def document(self, row: int) -> str:
        """Return the text that a sample is asked of."""
        return self.library.records[self.asks[row].passage].context

    def document_of_atom(self, atom: int) -> str:
        """Return the text that holds an atom, by its flat row."""
        return self.library.records[int(self.library.passage_of[atom])].context

    def atom_lines(self, row: int) -> str:
        """Return the atoms of the document that a sample is asked of, a line each."""
        return "\n".join(atom.content for atom in self.library.records[self.asks[row].passage].atoms)

    def keys(self, asks: Sequence[Ask]) -> Tensor:
        """Return query keys `[B, E]`."""
        keys_QE, place = self._keys
        return keys_QE[[place[ask.question.question] for ask in asks]]

    def route(self, rows: Sequence[int]) -> RoutedAsks:
        """Route samples in their banks."""
        return self._known("own", rows, lambda: self._route([self.asks[row] for row in rows]))

    def route_strangers(self, rows: Sequence[int]) -> RoutedAsks:
        """Route for each sample a question of another article, in the bank of that one.

        Raises:
            LookupError: The suite has a single article.
        """
        asks = [self._strange[row] for row in rows]
        if None in asks:
            raise LookupError("the suite has no document of another article")
        own = {self._pair(self.asks[row]): place for place, row in enumerate(rows)}
        places = [own.get(self._pair(ask)) for ask in asks]
        if None not in places:  # all of them are asked here, each in its own bank
            return taken(self.route(rows), places)
        return self._known("strange", rows, lambda: self._route(asks))

    def route_gold(self, rows: Sequence[int]) -> RoutedAsks:
        """Give samples their gold atoms in equal parts."""
        return self.library.gold_route([self.asks[row] for row in rows])

    def bm25_rank(self, row: int) -> int | None:
        """Return the rank of the best gold atom by words alone, the last if no word leads to it; None without one."""
        ask = self.asks[row]
        if not ask.gold:
            return None
        if row not in self._bm25_rank:
            scores = self._lexical(ask).all_scores(ask.question.question)
            gold = np.array(ask.gold, dtype=np.int64) - (0 if self.kind == "all" else self.library.start[ask.passage])
            best = scores[gold].max()
            self._bm25_rank[row] = 1 + int((scores > best).sum()) if best > 0 else len(scores)
        return self._bm25_rank[row]

    def _ask(self, sample: Sample) -> Ask:
        passage = self._passage[sample.document]
        names = self._gold[passage].get(sample.item.question_id, ()) if sample.kind == "answerable" else ()
        place = {atom.atom_id: n for n, atom in enumerate(self.library.records[passage].atoms)}
        start = int(self.library.start[passage])
        question = Question(question_id=sample.sample_id, question=sample.item.question)
        return Ask(question=question, passage=passage, gold=tuple(start + place[name] for name in names))

    @staticmethod
    def _pair(ask: Ask) -> tuple[int, str]:
        return ask.passage, ask.question.question

    def _stranger(self, document: int, question: str) -> Ask:
        return Ask(question=Question(question=question), passage=self._passage[document], gold=())

    @cached_property
    def _keys(self) -> tuple[Tensor, dict[str, int]]:
        """Keys of all questions, and the place of each by its words."""
        asks = {ask.question.question: ask for ask in (*self.asks, *filter(None, self._strange))}
        return self.library.query_keys(list(asks.values())), {words: place for place, words in enumerate(asks)}

    def _known(self, name: str, rows: Sequence[int], route: Callable[[], RoutedAsks]) -> RoutedAsks:
        key = (name, tuple(rows))
        if key not in self._routed:
            self._routed[key] = route()
        return self._routed[key]

    def _route(self, asks: Sequence[Ask]) -> RoutedAsks:
        parts = [asks[begin : begin + self.route_rows] for begin in range(0, len(asks), self.route_rows)]
        return joined([self._route_part(part) for part in parts])

    def _route_part(self, asks: Sequence[Ask]) -> RoutedAsks:
        key_BE = self.keys(asks)
        if self.kind == "all":
            found = self.library.library_candidates(asks, key_BE)
        else:
            found = [self._document_candidates(ask, key_E) for ask, key_E in zip(asks, key_BE, strict=True)]
        num_atoms = [self._size(ask) for ask in asks]
        return self.library.route(key_BE, found, top_k=self.top_k, num_atoms=num_atoms, asks=asks)

    def _document_candidates(self, ask: Ask, key_E: Tensor) -> Candidates:
        """Return stage 1 in the bank of one document, as the product has it: few atoms are candidates all."""
        library, router = self.library, self.library.network.spec.router
        found = library.passage_candidates(ask)
        start, end = library.start[ask.passage : ask.passage + 2]
        if end - start <= router.num_candidates:
            return found
        local = (library.key_NE[start:end] @ key_E).topk(router.num_candidates).indices.cpu().numpy()
        if router.lexical:
            local = np.union1d(local, best_rows(found.lexical + found.stretch, router.num_candidates))
        return Candidates(*(values[local] for values in found[:3]), found.evidence)

    def _lexical(self, ask: Ask) -> LexicalIndex:
        return self.library.lexical(None if self.kind == "all" else ask.passage)

    def _size(self, ask: Ask) -> int:
        return self.num_atoms if self.kind == "all" else len(self.library.records[ask.passage].atoms)


def documents_read(suite: Suite, kind: str, strange: Sequence[tuple[int, str] | None]) -> Sequence[int]:
    """Return the documents whose atoms a bank holds: all, or those that some sample or its stranger is asked of."""
    if kind == "all":
        return range(len(suite.contexts))
    return sorted({sample.document for sample in suite.samples} | {found[0] for found in strange if found})


def strangers(suite: Suite, seed: int) -> list[tuple[int, str] | None]:
    """Return for each sample a document of another article, and a question asked of it; None where there is none.

    They are another sample's where one is of another article: what is computed for that sample then serves this one
    where both are asked together.
    """
    articles = [context.title or str(number) for number, context in enumerate(suite.contexts)]
    samples = suite.samples
    order = sorted(range(len(samples)), key=lambda place: shuffled(seed, samples[place].sample_id))
    unasked = [(number, c.questions[0].question) for number, c in enumerate(suite.contexts) if c.questions]
    found: list[tuple[int, str] | None] = [None] * len(samples)
    for position, place in enumerate(order):
        own = articles[samples[place].document]
        others = (samples[order[other % len(order)]] for other in range(position + 1, position + len(order)))
        pairs = ((sample.document, sample.item.question) for sample in others)
        found[place] = next((pair for pair in pairs if articles[pair[0]] != own), None) or next(
            (pair for pair in unasked if articles[pair[0]] != own), None
        )
    return found


def taken(routed: RoutedAsks, places: Sequence[int]) -> RoutedAsks:
    """Return the routing of some of the questions."""
    return RoutedAsks(**{name: value[list(places)] for name, value in vars(routed).items()})


def joined(parts: Sequence[RoutedAsks]) -> RoutedAsks:
    """Return the routing of several lists of questions as that of one."""
    return RoutedAsks(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})
