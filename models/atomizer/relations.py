"""Edges between the atoms of a document, and groups of atoms that contradict one another.

Holds six of the nine relations, those that surface cues can show; `supports`, `causes` and `same_event`
need understanding and are left to a language model. Every index is linear in the number of atoms.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from models.atomizer.entities import begins_with_pronoun, key
from models.atomizer.lexicon import ATTRIBUTES, QUANTITY_UNITS
from models.atomizer.segment import Piece
from models.atomizer.semantics import QUANTITY, YEAR
from models.atoms import Relation

MAX_RELATIONS = 6
_MAX_SAME_ENTITY = 2

_YEAR_ATTRIBUTES = frozenset({"founding", "birth", "death"})

_WORD = re.compile(r"[^\W\d_]+")
_COMPARES = re.compile(
    r"\b(?:than|from|between|versus|increase[ds]?|decrease[ds]?|rose|fell|grew|up to|estimate[ds]?)\b"
)
_OF_SUBJECT = re.compile(r"(?:The|Its)\s+(?:[a-z]+\s+){1,3}of\s+(?:the\s+)?[A-Z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An atom in the making: its piece with what the rules found out about it."""

    piece: Piece
    body: str
    names: list[str]
    semantic_type: str


def relate(drafts: list[Draft]) -> list[tuple[Relation, ...]]:
    """Return the relations of every atom, at most `MAX_RELATIONS` each, targets by `atom_<index>`."""
    edges: list[dict[tuple[str, int], None]] = [{} for _ in drafts]

    def add(source: int, kind: str, target: int) -> None:
        if source != target and len(edges[source]) < MAX_RELATIONS:
            edges[source].setdefault((kind, target))

    for members in conflict_groups(drafts).values():
        for first, second in pairwise(members):
            add(first, "contradicts", second)
            add(second, "contradicts", first)
    _link_structure(drafts, add)
    _link_events(drafts, add)
    _link_entities(drafts, add)
    return [tuple(Relation(type=kind, target=f"atom_{target}") for kind, target in e) for e in edges]


def conflict_groups(drafts: list[Draft]) -> dict[str, list[int]]:
    """Return groups of atoms that give one attribute of one subject different values, by group id.

    Conservative: the subject opens the sentence, there is one value only, the years named are the same,
    nothing is compared, and at least half of the other words agree.
    """
    stated: dict[tuple[str, str, str], list[tuple[int, str, frozenset[str]]]] = defaultdict(list)
    for index, draft in enumerate(drafts):
        if (statement := _statement(draft)) is not None:
            entity, attribute, unit, value, words = statement
            stated[entity, attribute, unit].append((index, value, words))
    groups: dict[str, list[int]] = {}
    for statements in stated.values():
        _, first_value, first_words = statements[0]
        alike = [s for s in statements if len(s[2] & first_words) >= 0.5 * max(1, len(s[2] | first_words))]
        if any(value != first_value for _, value, _ in alike):
            groups[f"conflict_{len(groups)}"] = [index for index, _, _ in alike]
    return groups


def _statement(draft: Draft) -> tuple[str, str, str, str, frozenset[str]] | None:
    """Return subject, attribute, unit, value and other words of an atom that states one measured attribute."""
    if not draft.names or draft.piece.kind == "row" or _COMPARES.search(draft.body):
        return None
    if not draft.body.removeprefix("The ").startswith(draft.names[0]) and not _OF_SUBJECT.match(draft.body):
        return None
    words = frozenset(w.lower() for w in _WORD.findall(draft.body))
    named = [attribute for attribute, cues in ATTRIBUTES.items() if cues & words]
    if len(named) != 1:
        return None
    years = YEAR.findall(draft.body)
    if named[0] in _YEAR_ATTRIBUTES:
        unit, values = "year", years
        years = []
    else:
        unit, values = _one_measure(draft.body, named[0])
    if len(values) != 1:
        return None
    qualifier = "/".join([unit, *years])
    return key(draft.names[0]), named[0], qualifier, values[0].replace(",", ""), words - ATTRIBUTES[named[0]]


def _one_measure(body: str, attribute: str) -> tuple[str, list[str]]:
    measures = [
        ((m[1] or m[3] or "").strip().lower(), m[2])
        for m in QUANTITY.finditer(body)
        if m[1] or (m[3] and m[3].lower() in QUANTITY_UNITS) or (attribute == "population" and not YEAR.fullmatch(m[2]))
    ]
    if len(measures) != 1:
        return "", []
    unit, value = measures[0]
    return (unit if unit in QUANTITY_UNITS or not unit.isalpha() else ""), [value]


def _link_structure(drafts: list[Draft], add: Callable[[int, str, int], None]) -> None:
    """Link rows and items to their lead-in, pronouns to the sentence before, steps to their neighbours."""
    last_of_block = {d.piece.block: i for i, d in enumerate(drafts)}
    for index, draft in enumerate(drafts):
        if draft.piece.lead in last_of_block:
            add(index, "part_of", last_of_block[draft.piece.lead])
        if index == 0:
            continue
        before = drafts[index - 1]
        same_block = before.piece.block == draft.piece.block
        if same_block and (draft.piece.is_part or begins_with_pronoun(draft.body)):
            add(index, "elaborates", index - 1)
        steps = before.semantic_type == draft.semantic_type == "process_step"
        if steps and before.piece.section == draft.piece.section:
            add(index - 1, "precedes", index)
            add(index, "follows", index - 1)


def _link_events(drafts: list[Draft], add: Callable[[int, str, int], None]) -> None:
    """Order each dated event and the nearest earlier one in the text that shares a name with it."""
    latest: dict[str, tuple[int, str]] = {}
    for index, draft in enumerate(drafts):
        year = YEAR.search(draft.body) if draft.semantic_type == "event_relation" else None
        if year is None:
            continue
        shared = [latest[key(n)] for n in draft.names if key(n) in latest]
        if shared:
            other, other_year = max(shared)
            if other_year != year[0]:
                first, second = (other, index) if other_year < year[0] else (index, other)
                add(first, "precedes", second)
                add(second, "follows", first)
        latest.update({key(n): (index, year[0]) for n in draft.names})


def _link_entities(drafts: list[Draft], add: Callable[[int, str, int], None]) -> None:
    """Link each atom to the nearest earlier ones that share its rarest names."""
    counts = Counter(k for d in drafts for k in {key(n) for n in d.names})
    limit = max(4, len(drafts) // 10)
    latest: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        rare = sorted({key(n) for n in draft.names if 1 < counts[key(n)] <= limit}, key=lambda k: (counts[k], k))
        for target in list(dict.fromkeys(latest[k] for k in rare if k in latest))[:_MAX_SAME_ENTITY]:
            add(index, "same_entity", target)
        latest.update(dict.fromkeys(rare, index))
