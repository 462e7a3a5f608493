"""The structure of a corpus brought out by rules, where no language model reads an adapter.

Holds two things: paragraphs decomposed apart and connected by the entities they share (multi-hop), and sentences
taken apart until each atom has one quantity (numeric). Spans stay verbatim.
Paper: appendix "Context Decomposition".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from models.atomizer import Atomizer
from models.atomizer.entities import common_words, entities, key, opener_end, subject
from models.atomizer.semantics import YEAR
from models.atoms import Atom, Relation
from models.documents import Document, Page
from training.datasets.context import Context, Paragraph

STRUCTURE_VERSION = 1
"""Raise it with every change after which some context gives other atoms."""

MAX_BRIDGES = 4
# A name in more paragraphs than that is the common topic, and leads from none to another.
MAX_BRIDGED_PARAGRAPHS = 4
MIN_NAME_CHARS = 3
MIN_PIECE_WORDS = 2

_MONTH = r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_DATE = rf"{_MONTH}\s+\d{{1,2}}(?:,?\s+\d{{4}})?|(?:\d{{1,2}}\s+)?{_MONTH}(?:,?\s+\d{{4}})?(?=\W)"
_QUANTITY = re.compile(rf"{_DATE}|(?<![\w.,])[$€£¥]?\d[\d.,]*(?<=\d)%?")
_CLAUSE_BREAK = re.compile(r"[,;]\s+(?:(?:and|but|while|whereas|with)\s+)?|\s+(?:and|but|while|whereas)\s+")
_RANGE_BEGINS = re.compile(r"\b(?:between|from|both)\b[^,;]*\Z", re.IGNORECASE)


def atomize_paragraphs(context: Context, atomizer: Atomizer) -> tuple[Atom, ...]:
    """Decompose every paragraph under its own title and link those that share an entity."""
    atoms: list[Atom] = []
    home: list[int] = []
    for number, paragraph in enumerate(context.paragraphs):
        found = atomizer.atomize(_document(context, paragraph)).atoms
        atoms += _moved(found, len(atoms), paragraph.char_start, f"paragraph_{number}")
        home += [number] * len(found)
    return _bridged(atoms, home, context)


def _document(context: Context, paragraph: Paragraph) -> Document:
    text = context.text[paragraph.char_start : paragraph.char_end]
    page = Page(index=0, label="1", char_start=0, char_end=len(text))
    return Document(source=context.context_id, title=paragraph.title, media_type="text/plain", text=text, pages=(page,))


def _moved(atoms: Sequence[Atom], first: int, offset: int, name: str) -> list[Atom]:
    """Give the atoms of a paragraph ids, offsets and conflict groups that hold in the whole context."""
    ids = {atom.atom_id: f"atom_{first + number}" for number, atom in enumerate(atoms)}
    return [
        replace(
            atom,
            atom_id=ids[atom.atom_id],
            relations=tuple(replace(r, target=ids[r.target]) for r in atom.relations),
            conflict_group=atom.conflict_group and f"{name}_{atom.conflict_group}",
            char_start=atom.char_start + offset,
            char_end=atom.char_end + offset,
        )
        for atom in atoms
    ]


def _bridged(atoms: Sequence[Atom], home: Sequence[int], context: Context) -> tuple[Atom, ...]:
    """Connect the first mentions of an entity in different paragraphs by same_entity, in both directions."""
    common = common_words(context.text)
    titles = {key(re.sub(r"\s*\(.*\)$", "", p.title)): n for n, p in enumerate(context.paragraphs)}
    titles = {title: number for title, number in titles.items() if len(title) >= MIN_NAME_CHARS}
    mentions: dict[str, dict[int, int]] = {title: {} for title in titles}
    for index, atom in enumerate(atoms):
        # One capitalised word is too often a nationality or a country, which half of the paragraphs share.
        names = {key(name) for name in entities(atom.content, common) if " " in name}
        content = atom.content.casefold()
        names |= {t for t, number in titles.items() if number == home[index] or _mentions(content, t)}
        for name in sorted(names):
            mentions.setdefault(name, {}).setdefault(home[index], index)
    links: list[dict[int, None]] = [{} for _ in atoms]
    for places in mentions.values():
        if 2 <= len(places) <= MAX_BRIDGED_PARAGRAPHS:
            for first, second in pairwise(places.values()):
                links[first][second] = links[second][first] = None
    return tuple(_linked(a, "same_entity", list(t)[:MAX_BRIDGES]) for a, t in zip(atoms, links, strict=True))


def _mentions(content: str, title: str) -> bool:
    return title in content and re.search(rf"(?<!\w){re.escape(title)}(?!\w)", content) is not None


def _linked(atom: Atom, kind: str, targets: Iterable[int]) -> Atom:
    added = (Relation(type=kind, target=f"atom_{target}") for target in targets)
    return replace(atom, relations=tuple(dict.fromkeys((*atom.relations, *added))))


def split_quantities(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Take atoms with several quantities apart at the breaks between clauses, so that each piece has one.

    Quantities that no break parts (`3 to 5`), ranges and bare lists stay together, and so do rows of tables. The
    first piece takes the place of its atom in the relations of others; the other pieces elaborate it.
    """
    pieces = [_pieces(atom) for atom in atoms]
    places = accumulate((len(parts) for parts in pieces), initial=0)
    ids = {atom.atom_id: f"atom_{place}" for atom, place in zip(atoms, places, strict=False)}
    result: list[Atom] = []
    for atom, parts in zip(atoms, pieces, strict=True):
        first = ids[atom.atom_id]
        kept = tuple(replace(r, target=ids[r.target]) for r in atom.relations)
        for number, part in enumerate(parts):
            relations = (Relation(type="elaborates", target=first),) if number else kept
            result.append(replace(part, atom_id=f"atom_{len(result)}", relations=relations))
    return tuple(result)


def _pieces(atom: Atom) -> list[Atom]:
    body = " ".join(atom.source_span.split())
    if not atom.content.endswith(body):
        return [atom]
    ranges = _clauses(atom.source_span)
    if len(ranges) == 1:
        return [atom]
    prefix = atom.content.removesuffix(body)
    # What a sentence opens with (`In 1981,`) holds for all its clauses, and so does its subject.
    opener, name = body[: opener_end(body)], subject(body, frozenset())
    pieces = []
    for number, (start, end) in enumerate(ranges):
        clause = " ".join(atom.source_span[start:end].split())
        lead = f"{name}: " if name and key(name) not in clause.lower() else ""
        when = "" if YEAR.search(opener) and YEAR.search(clause) else opener
        content = f"{prefix}{when}{lead}{clause}" if number else f"{prefix}{clause}"
        pieces.append(
            replace(
                atom,
                content=content,
                source_span=atom.source_span[start:end],
                retrieval_text=content,
                conflict_group=None if number else atom.conflict_group,
                char_start=atom.char_start + start,
                char_end=atom.char_start + end,
            )
        )
    return pieces


def _clauses(sentence: str) -> list[tuple[int, int]]:
    """Return the ranges into which the breaks between its quantities cut a sentence."""
    ranges = []
    start = 0
    for before, after in pairwise(_QUANTITY.finditer(sentence, opener_end(sentence))):
        breaks = list(_CLAUSE_BREAK.finditer(sentence, before.end(), after.start()))
        is_list = breaks and breaks[-1].span() == (before.end(), after.start())
        if not breaks or is_list or _RANGE_BEGINS.search(sentence[start : breaks[-1].start()]):
            continue
        cut = breaks[-1]
        if _is_piece(sentence[start : cut.start()]) and _is_piece(sentence[cut.end() :]):
            ranges.append((start, cut.start()))
            start = cut.end()
    return [*ranges, (start, len(sentence))]


def _is_piece(text: str) -> bool:
    return len(text.split()) >= MIN_PIECE_WORDS
