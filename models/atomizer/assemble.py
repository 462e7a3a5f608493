"""From the atoms of single replies to the atoms of one document.

Holds the search for each quoted span, the removal of duplicates, and the numbering of atoms, relation
targets and conflict groups across windows. Every step is deterministic: the same replies give the same
atoms. It asks no model.
Paper: appendix "Source-span validation" and "Failure Handling and Quality Logging".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from models.atomizer.spans import locate_span
from models.atomizer.xml import Draft, ParsedReply
from models.atoms import Atom, Relation

SPAN_NOT_FOUND = "source_span not in the text"

# Models type plain quotation marks and dashes; one character for one keeps the offsets.
_PLAIN = str.maketrans("\u2018\u2019\u201c\u201d\u2010\u2011\u2012\u2013\u2014\u2212\u00a0", "''\"\"------ ")


@dataclass(frozen=True, kw_only=True)
class Located:
    """A draft whose span stands at `[char_start, char_end)` of the document."""

    draft: Draft
    char_start: int
    char_end: int


@dataclass(frozen=True, kw_only=True)
class LocatedReply:
    """The usable atoms of one reply, and what was lost on the way."""

    atoms: tuple[Located, ...]
    dropped: Counter[str]
    repaired: Counter[str]


def locate(parsed: ParsedReply, text: str, *, char_start: int, char_end: int) -> LocatedReply:
    """Look for the span of every draft in the window that the model saw.

    A draft whose span is not there is dropped and counted under `SPAN_NOT_FOUND`: an answer cites the
    span, so it must be the document's own words.

    Args:
        text: The whole document.
        char_start, char_end: The window, as offsets into `text`.
    """
    window = text[char_start:char_end]
    dropped = Counter(parsed.dropped)
    atoms: list[Located] = []
    cursor = 0
    for draft in parsed.drafts:
        found = _find(window, draft.source_spans, cursor)
        if found is None:
            dropped[SPAN_NOT_FOUND] += 1
            continue
        # Atoms come in the order of the text, so a phrase that recurs is most likely the next one.
        cursor = found[1]
        atoms.append(Located(draft=draft, char_start=char_start + found[0], char_end=char_start + found[1]))
    return LocatedReply(atoms=tuple(atoms), dropped=dropped, repaired=parsed.repaired)


def merge(replies: Sequence[LocatedReply], text: str) -> tuple[tuple[Atom, ...], Counter[str], Counter[str]]:
    """Join the replies about one document, in its order.

    Returns:
        The atoms, named `atom_0`, `atom_1`, ...; the dropped atoms and the mended fields, by reason.
    """
    dropped = sum((r.dropped for r in replies), Counter())
    repaired = sum((r.repaired for r in replies), Counter())
    kept: list[tuple[int, Located]] = []
    ids: dict[tuple[int, str], str] = {}
    twins = _Twins()
    for number, reply in enumerate(replies):
        for atom in reply.atoms:
            place = twins.find(atom)
            if place is None:
                place = len(kept)
                kept.append((number, atom))
                twins.add(atom, place)
            else:
                dropped["duplicates"] += 1
            if atom.draft.local_id:
                ids.setdefault((number, atom.draft.local_id), f"atom_{place}")
    groups = _conflict_groups(kept)
    atoms = tuple(
        _atom(f"atom_{i}", located, text, _targets(number, located.draft, f"atom_{i}", ids, repaired), groups.get(i))
        for i, (number, located) in enumerate(kept)
    )
    return atoms, dropped, repaired


def _find(window: str, spans: tuple[str, ...], cursor: int) -> tuple[int, int] | None:
    for span in spans:
        if any(c.isalnum() for c in span):
            found = locate_span(window, span, start=cursor) or locate_span(
                window.translate(_PLAIN), span.translate(_PLAIN), start=cursor
            )
            if found:
                return found
    return None


class _Twins:
    """Atoms kept so far, by what they say and by what they quote."""

    def __init__(self) -> None:
        self._by_content: dict[tuple[str, ...], int] = {}
        self._by_span: dict[tuple[int, int], list[tuple[frozenset[str], int]]] = {}

    def add(self, atom: Located, place: int) -> None:
        words = _words(atom.draft.content)
        self._by_content[words] = place
        self._by_span.setdefault((atom.char_start, atom.char_end), []).append((frozenset(words), place))

    def find(self, atom: Located) -> int | None:
        """Return the place of an earlier atom that already says this one, or None.

        Equal contents are twins. So are equal spans, unless the later content has words of its own:
        two facts of one sentence may well quote the same sentence.
        """
        words = _words(atom.draft.content)
        if words in self._by_content:
            return self._by_content[words]
        same_span = self._by_span.get((atom.char_start, atom.char_end), ())
        return next((place for earlier, place in same_span if earlier.issuperset(words)), None)


def _words(text: str) -> tuple[str, ...]:
    return tuple(w.strip(".,;:!?\"'()[]") for w in text.casefold().split())


def _targets(
    number: int, draft: Draft, atom_id: str, ids: dict[tuple[int, str], str], repaired: Counter[str]
) -> tuple[Relation, ...]:
    relations = []
    for relation in draft.relations:
        target = ids.get((number, relation.target))
        if target is None or target == atom_id:
            repaired["unknown relation target"] += 1
        else:
            relations.append(Relation(type=relation.type, target=target))
    return tuple(dict.fromkeys(relations))


def _conflict_groups(kept: list[tuple[int, Located]]) -> dict[int, str]:
    """Name the groups anew, since each reply chose its own names; an atom alone has no conflict."""
    members: dict[tuple[int, str], list[int]] = {}
    for place, (number, atom) in enumerate(kept):
        if atom.draft.conflict_group is not None:
            members.setdefault((number, atom.draft.conflict_group), []).append(place)
    conflicts = [places for places in members.values() if len(places) > 1]
    return {place: f"conflict_{i}" for i, places in enumerate(conflicts) for place in places}


def _atom(
    atom_id: str, located: Located, text: str, relations: tuple[Relation, ...], conflict_group: str | None
) -> Atom:
    draft = located.draft
    return Atom(
        atom_id=atom_id,
        semantic_type=draft.semantic_type,
        content=draft.content,
        source_span=text[located.char_start : located.char_end],
        retrieval_text=draft.retrieval_text,
        is_answer_bearing=draft.is_answer_bearing,
        abstraction_level=draft.abstraction_level,
        conflict_group=conflict_group,
        confidence=draft.confidence,
        relations=relations,
        char_start=located.char_start,
        char_end=located.char_end,
    )
