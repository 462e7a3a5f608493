"""The banks that a question is tried on after training: small and large ones, with its answer and without.

Holds which atoms each bank has and which of them stage 1 finds; the score is fitted on them in
`training.calibration`, the gate in `training.gate`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import Tensor

from training.library import Ask, Candidates, Library

SHELF_SHARE = 0.1
PASSAGE_K, LARGE_K = 3, 8


@dataclass(frozen=True, kw_only=True)
class Bank:
    """One kind of bank for a batch of questions.

    Args:
        candidates: What stage 1 finds for each question.
        num_atoms: Size of each question's bank.
        knows: Whether the bank holds the question's answer.
    """

    candidates: list[Candidates]
    num_atoms: list[int]
    top_k: int
    knows: bool


def held_out_asks(library: Library, *, seed: int, limit: int) -> list[Ask]:
    """Draw answerable questions of the library's records."""
    asks = [a for p in range(len(library.records)) for a in library.asks(p) if a.gold and a.question.answers]
    random.Random(seed).shuffle(asks)
    return asks[:limit]


def near_misses(library: Library, *, by_people: bool, seed: int, limit: int) -> list[Ask]:
    """Draw questions that look as if their passage answered them, written by people or made by rules."""
    asks = [a for p in range(len(library.records)) for a in library.asks(p) if a.question.is_irrelevant]
    asks = [a for a in asks if a.question.is_generated_irrelevant != by_people]
    random.Random(seed).shuffle(asks)
    return asks[:limit]


def banks_of(library: Library, asks: Sequence[Ask], key_BE: Tensor, rng: random.Random) -> dict[str, Bank]:
    """Return `passage`, a `shelf` of a tenth of all passages, and the `library`; each with `off_` without the article.

    A seventh, `off_atoms`, is the right passage without the atoms that hold the answer: what a person asks who has
    read the document and half remembers it. Where no atom is left, it is the passage of `off_passage`.

    Args:
        key_BE: Query keys of the questions.
        rng: Draws shelves and strangers.
    """
    strangers = [replace(a, passage=other_article(library, a.passage, rng), gold=()) for a in asks]
    found = {"passage": [*map(library.passage_candidates, asks)]}
    found["off_passage"] = [*map(library.passage_candidates, strangers)]
    rests = map(partial(_without_answer, library), asks, found["passage"])
    found["off_atoms"] = [rest or stranger for rest, stranger in zip(rests, found["off_passage"], strict=True)]
    sizes = {name: [len(c.rows) for c in candidates] for name, candidates in found.items()}
    chosen = rng.sample(range(len(library.records)), max(1, round(SHELF_SHARE * len(library.records))))
    on_shelf = np.isin(library.passage_of, chosen)
    for name, kept in (("shelf", on_shelf), ("library", np.ones_like(on_shelf))):
        visible = {
            name: [kept | (library.passage_of == a.passage) for a in asks],
            f"off_{name}": [kept & ~same_article(library, a) for a in asks],
        }
        for kind, masks in visible.items():
            found[kind] = library.library_candidates(asks, key_BE, visible=masks)
            sizes[kind] = [int(m.sum()) for m in masks]
    return {
        name: Bank(
            candidates=candidates,
            num_atoms=sizes[name],
            top_k=LARGE_K if name.endswith(("shelf", "library")) else PASSAGE_K,
            knows=not name.startswith("off_"),
        )
        for name, candidates in found.items()
    }


def _without_answer(library: Library, ask: Ask, found: Candidates) -> Candidates | None:
    """Return the asked passage's atoms but those that hold the answer; None where no other is left."""
    names = {*ask.question.gold_atom_ids, *ask.question.supporting_atom_ids}
    kept = np.array([library.atoms[row].atom_id not in names for row in found.rows])
    evidence = library.lexical(ask.passage).evidence(ask.question.question, kept)
    return Candidates(*(x[kept] for x in found[:3]), evidence) if kept.any() else None


def same_article(library: Library, ask: Ask) -> np.ndarray:
    """Return a mask over all atoms: True in passages of the asked passage's article."""
    title = library.records[ask.passage].title
    passages = [i == ask.passage or (title != "" and r.title == title) for i, r in enumerate(library.records)]
    return np.array(passages)[library.passage_of]


def other_article(library: Library, passage: int, rng: random.Random) -> int:
    """Return a random passage of another article; of the same one where there is no other."""
    title = library.records[passage].title
    others = [i for i in range(len(library.records)) if i != passage]
    return rng.choice([i for i in others if not title or library.records[i].title != title] or others)
