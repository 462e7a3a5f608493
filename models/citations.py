"""Which routed atoms an answer rests on, as verbatim quotes with their pages. Holds no tensors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from models.atomizer.spans import UNSPACED, locate_span
from models.atoms import Atom
from models.results import Citation, DocumentInfo, RoutedAtom, StoredAtom

MAX_CITATIONS = 3
# An atom with this much weight, above an even share of eight, took part even where it does not contain the answer.
CITED_WEIGHT = 0.15


def cite(
    answer: str,
    routed: Sequence[RoutedAtom],
    stored: Sequence[StoredAtom],
    *,
    text_of: Callable[[str], str],
    document_of: Callable[[str], DocumentInfo],
) -> tuple[tuple[Citation, ...], bool]:
    """Quote the routed atoms that hold the answer, heaviest first, then those that weighed much.

    Where none holds it, the heaviest is quoted alone and the answer counts as unsupported. Every quote is checked
    against the stored text; one that is not there is left out.

    Args:
        routed, stored: The selected atoms, in the same order, best first.
        text_of, document_of: Look a document up by its id.

    Returns:
        Citations, and whether routed atoms support the whole answer.
    """
    parts = _parts(answer)
    holds = [[_contains(a.atom, part) for part in parts] for a in stored]
    supported = bool(parts) and all(any(row[i] for row in holds) for i in range(len(parts)))
    order = sorted(range(len(routed)), key=lambda i: (-sum(holds[i]), -routed[i].weight))
    chosen = [i for i in order if any(holds[i])]
    chosen = chosen[:1] if len(parts) == 1 else _cover(chosen, holds)
    chosen += [i for i in order if i not in chosen and routed[i].weight >= CITED_WEIGHT]
    citations = []
    for i in (chosen or order[:1])[:MAX_CITATIONS]:
        quote = _verified(stored[i], text_of(stored[i].document_id))
        if quote is not None:
            citations.append(
                _citation(stored[i], quote, routed[i].weight, document_of(stored[i].document_id), any(holds[i]))
            )
    return tuple(citations), supported


def _cover(candidates: Sequence[int], holds: Sequence[Sequence[bool]]) -> list[int]:
    """The first atoms that together hold every part that any holds."""
    chosen: list[int] = []
    missing = set(range(len(holds[0]))) if holds else set()
    for i in candidates:
        gain = {part for part in missing if holds[i][part]}
        if gain:
            chosen.append(i)
            missing -= gain
    return chosen


def _citation(
    atom: StoredAtom, quote: tuple[str, int, int], weight: float, document: DocumentInfo, holds: bool
) -> Citation:
    text, start, end = quote
    return Citation(
        document_id=atom.document_id,
        document_title=document.title,
        source=document.sources[0],
        page_index=atom.page_index,
        page_label=atom.page_label,
        quote=text,
        char_start=start,
        char_end=end,
        atom_uid=atom.uid,
        weight=weight,
        holds_answer=holds,
    )


def _verified(stored: StoredAtom, text: str) -> tuple[str, int, int] | None:
    """The atom's span as it stands in the document, with offsets; None where it does not stand there."""
    atom = stored.atom
    if text[atom.char_start : atom.char_end] == atom.source_span:
        return atom.source_span, atom.char_start, atom.char_end
    found = locate_span(text, atom.source_span)
    return None if found is None else (text[found[0] : found[1]], *found)


def _contains(atom: Atom, part: str) -> bool:
    return any(f" {part} " in f" {_normal(text)} " for text in (atom.source_span, atom.content))


def _parts(answer: str) -> list[str]:
    """The pieces of an enumeration, each of which must be found; an answer without one is a single piece."""
    whole = _piece(answer)
    pieces = [_piece(p) for p in re.split(r",\s|;|\band\b|、|，", answer)]
    pieces = [p for p in pieces if p]
    return pieces if len(pieces) > 1 else [whole] if whole else []


def _piece(text: str) -> str:
    """A piece of an answer, without the article in front: the model says "a tower" of "the tower"."""
    return re.sub(r"^(a|an|the) (?=.)", "", _normal(text))


def _normal(text: str) -> str:
    """Words in lower case with single spaces; every letter of a script without spaces is a word."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", UNSPACED.sub(r" \g<0> ", folded)))
