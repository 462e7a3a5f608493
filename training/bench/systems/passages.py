"""Passages of a bank's documents, and the search among them by words and by learned keys.

What a user would build instead of a memory: windows of about a hundred words that begin where an atom does, BM25, and
a dense search by the memory's own keys, a window being as near as the nearest of its atoms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from models.atoms import AnnotationRecord
from models.lexical import LexicalIndex
from training.bench.bank import SuiteBank

WINDOW_CHARS = 600
# Of reciprocal rank fusion, as published (Cormack et al., 2009).
FUSION_RANK = 60


def windows(record: AnnotationRecord, size: int = WINDOW_CHARS) -> list[tuple[int, int]]:
    """Cut a text into ranges of at most `size` characters, each of which begins where an atom does.

    A range is longer where an atom is. All ranges together cover the text.
    """
    length = len(record.context)
    ends = [*sorted({atom.char_start for atom in record.atoms if 0 < atom.char_start < length}), length]
    ranges, start = [], 0
    for end, following in zip(ends, [*ends[1:], None], strict=True):
        if following is None or following - start > size:
            ranges.append((start, end))
            start = end
    return ranges


class Passages:
    """The windows of all documents of a bank."""

    def __init__(self, bank: SuiteBank) -> None:
        self._bank = bank
        records = bank.library.records
        ranges = [windows(record) for record in records]
        self.texts = [r.context[a:b].strip() for r, cut in zip(records, ranges, strict=True) for a, b in cut]
        self._start = np.cumsum([0, *map(len, ranges)])
        places = [
            np.searchsorted([a for a, _ in cut], [max(0, atom.char_start) for atom in r.atoms], side="right") - 1
            for r, cut in zip(records, ranges, strict=True)
        ]
        self._of_atom = np.concatenate([start + p for start, p in zip(self._start, places, strict=False)]).astype(int)
        self._lexical: dict[int | None, LexicalIndex] = {}

    def best(self, rows: Sequence[int], *, by: tuple[str, ...]) -> list[list[str]]:
        """Return the best K passages of each sample's bank, best first, K being the bank's.

        Args:
            by: Rankings to fuse by reciprocal ranks, of `words` (BM25) and `keys`.
        """
        size = self._bank.route_rows
        parts = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
        return [texts for part in parts for texts in self._best(part, by)]

    def _best(self, rows: Sequence[int], by: tuple[str, ...]) -> list[list[str]]:
        bank = self._bank
        asks = [bank.asks[row] for row in rows]
        keys = bank.keys(asks) if "keys" in by else [None] * len(asks)
        found = []
        for ask, key_E in zip(asks, keys, strict=True):
            passage = None if bank.kind == "all" else ask.passage
            rankings = []
            if "words" in by:
                rankings.append(self._index(passage).all_scores(ask.question.question))
            if key_E is not None:
                rankings.append(self._nearness(passage, key_E))
            start = 0 if passage is None else self._start[passage]
            found.append([self.texts[start + place] for place in fused(rankings)[: bank.top_k]])
        return found

    def _index(self, passage: int | None) -> LexicalIndex:
        if passage not in self._lexical:
            self._lexical[passage] = LexicalIndex.build(self.texts[self._windows(passage)])
        return self._lexical[passage]

    def _windows(self, passage: int | None) -> slice:
        return slice(None) if passage is None else slice(self._start[passage], self._start[passage + 1])

    def _nearness(self, passage: int | None, key_E: Tensor) -> np.ndarray:
        """Return the cosine of each window's nearest atom, -1 for one without."""
        library = self._bank.library
        atoms = slice(None) if passage is None else slice(library.start[passage], library.start[passage + 1])
        where = self._windows(passage)
        nearest = np.full(len(self.texts[where]), -1.0, dtype=np.float32)
        cosine = (library.key_NE[atoms] @ key_E).float().cpu().numpy()
        np.maximum.at(nearest, self._of_atom[atoms] - (where.start or 0), cosine)
        return nearest


def fused(rankings: Sequence[np.ndarray]) -> np.ndarray:
    """Return places, best first, by the sum of reciprocal ranks; equal scores rank by place."""
    total = np.zeros(len(rankings[0]))
    for scores in rankings:
        order = np.argsort(-scores, kind="stable")
        total[order] += 1 / (FUSION_RANK + 1 + np.arange(len(order)))
    return np.argsort(-total, kind="stable")
