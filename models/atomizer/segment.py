"""From the blocks of a document to pieces: one sentence, list item or table row each, with its place.

Holds where an atom begins and ends and what stands around it: its heading, its paragraph, the sentence
that introduces its list. It does not decide what an atom says or means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile

from models.atomizer.blocks import Block, BlockKind, split_blocks
from models.atomizer.lexicon import REFERENCE_SECTIONS
from models.atomizer.outline import Outline
from models.atomizer.spans import UNSPACED, num_tokens, split_sentences, strip_range
from models.documents import Document

MAX_BODY_TOKENS = 86
_MIN_WORDS = 3

_CUTS = tuple(
    re.compile(p)
    for p in (
        r"[;；]\s*|\s[–—]\s|—",
        r",\s+(?=(?:and|but|or|nor|so|yet|which|who|whose|where|while|when|although|because|whereas)\b)|[，。]",
        r"[,:]\s+|[、：]|\)\s+",
        r"\s+",
    )
)
_FIGURE = re.compile(r"[\W_]*\d")
_LINE_CUT = re.compile(r"\n+")
_CITATION = re.compile(r"\[?\d{1,3}(?:\s?[,–-]\s?\d{1,3})*\]?\s+(?=[A-Z][a-z]|[A-Z]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of the text that becomes one atom.

    Args:
        block: Number of its block; pieces of one paragraph share it.
        heading: Nearest heading above that names a subject, cleaned; empty where there is none.
        section: Nearest heading above, whatever it says.
        lead: Number of the block that introduces this list item or table row, or None.
        columns: Names of the columns of a table row, where a header row gives them.
        is_part: True for every part but the first of a sentence too long for one atom.
    """

    kind: BlockKind
    start: int
    end: int
    block: int
    heading: str = ""
    section: str = ""
    lead: int | None = None
    columns: tuple[str, ...] = ()
    is_part: bool = False


def segment(document: Document, language: str) -> list[Piece]:
    """Return the pieces of a document in order; they do not overlap.

    They hold every character of the text that is not white space, except headings that have a body,
    rules, and page numbers at the edge of a page.
    """
    text = document.text
    blocks = _without_furniture(document, split_blocks(text))
    pieces: list[Piece] = []
    outline = Outline()
    columns: tuple[str, ...] = ()
    lead: int | None = None
    for number, block in enumerate(blocks):
        following = blocks[number + 1] if number + 1 < len(blocks) else None
        if block.kind == "heading" and _has_body(block, following):
            outline.enter(block.level, text[block.start : block.end])
            lead = None
            continue
        previous = blocks[number - 1].kind if number else None
        if block.kind == "row" and previous != "row":
            columns = _columns(text, blocks, number)
        if block.kind in ("list", "row") and previous != block.kind:
            lead = number - 1 if previous == "prose" else None
        base = Piece(
            kind=block.kind,
            start=block.start,
            end=block.end,
            block=number,
            heading=outline.heading,
            section=outline.section,
            lead=lead if block.kind in ("list", "row") else None,
            columns=columns if block.kind == "row" else (),
        )
        pieces.extend(_pieces_of(text, base, language))
    return _return_citations(text, _merge_fragments(text, pieces))


def _has_body(block: Block, following: Block | None) -> bool:
    if following is None:
        return False
    return following.kind != "heading" or 0 < block.level < following.level


def _without_furniture(document: Document, blocks: list[Block]) -> list[Block]:
    """Drop rules and page numbers; a bare number inside a page is text like any other."""
    kept = []
    for number, block in enumerate(blocks):
        if block.kind != "furniture":
            kept.append(block)
            continue
        body = document.text[block.start : block.end]
        if not any(c.isalnum() for c in body):
            continue
        page = document.page_at(block.start) if len(document.pages) > 1 else None
        first = number == 0 or (page is not None and blocks[number - 1].start < page.char_start)
        last = number + 1 == len(blocks) or (page is not None and blocks[number + 1].start >= page.char_end)
        if page is None or not (first or last):
            kept.append(replace(block, kind="prose"))
    return kept


def cells(row: str) -> list[str]:
    """Return the cells of a table row: separated by bars, tabs, wide gaps, or commas without a blank."""
    row = row.strip()
    if "|" in row:
        parts = row.strip("|").split("|")
    elif "\t" in row or re.search(r" {3,}", row):
        parts = re.split(r"\t+| {3,}", row)
    else:
        parts = row.split(",") if row.count(",") > row.count(", ") else [row]
    return [" ".join(p.split()) for p in parts]


def _columns(text: str, blocks: list[Block], number: int) -> tuple[str, ...]:
    """Return the column names: a first row without digits, of a marked table or above a row with digits.

    Two columns need figures all the way down, for most tables of two columns are lists of labels and values.
    """
    rest = (blocks[i] for i in range(number, len(blocks)))
    table = [text[b.start : b.end] for b in takewhile(lambda b: b.kind == "row", rest)]
    names, *rows = map(cells, table)
    alike = bool(rows) and len(names) == len(rows[0]) >= 2 and all(names)
    if not alike or any(c.isdigit() for name in names for c in name):
        return ()
    if "---" in text[blocks[number].end : blocks[number + 1].start]:
        return tuple(names)
    is_headed = any(c.isdigit() for value in rows[0] for c in value)
    if len(names) == 2:
        is_headed = all(_FIGURE.match(row[-1]) for row in rows)
    return tuple(names) if is_headed else ()


def _pieces_of(text: str, base: Piece, language: str) -> list[Piece]:
    """Return the sentences of one block, long ones cut into parts; rows and references stay whole."""
    if base.kind == "row" or base.section.lower() in REFERENCE_SECTIONS:
        ranges = [(base.start, base.end)]
    else:
        ranges = _join_short(text, split_sentences(text, base.start, base.end, language))
    return [
        replace(base, start=start, end=end, is_part=number > 0)
        for sentence in ranges
        for number, (start, end) in enumerate(_cut_long(text, *sentence))
    ]


def _join_short(text: str, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join sentences of one block that are too short, or begin in lower case, to the one before them."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and _fits(text, joined[-1][0], end):
            before = text[slice(*joined[-1])]
            if _is_short(text[start:end]) or _is_short(before) or not _begins_sentence(text[start]):
                joined[-1] = (joined[-1][0], end)
                continue
        joined.append((start, end))
    return joined


def _begins_sentence(character: str) -> bool:
    return not character.islower() and character not in ")]},;:.!?”’»"


def _is_short(text: str) -> bool:
    return len(text) < 80 and len(text.split()) < _MIN_WORDS and len(UNSPACED.findall(text)) < 5


def _fits(text: str, start: int, end: int) -> bool:
    """Tell whether a range is small enough for one atom; a very long one is not even counted."""
    return end - start <= 12 * MAX_BODY_TOKENS and num_tokens(text[start:end]) <= MAX_BODY_TOKENS


def _cut_long(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range near its middle, at the strongest boundary there, until every part fits an atom."""
    if _fits(text, start, end):
        return [(start, end)]
    patterns = (_LINE_CUT, *_CUTS) if _is_lined(text[start:end]) else _CUTS
    middle = (start + end) // 2
    low, high = start + (end - start) // 4, end - (end - start) // 4
    cut = middle
    for pattern in patterns:
        found = [m.end() for m in pattern.finditer(text, low, high)]
        if found:
            cut = min(found, key=lambda position: abs(position - middle))
            break
    parts = [strip_range(text, start, cut), strip_range(text, cut, end)]
    return [r for part in parts if part for r in _cut_long(text, *part)]


def _is_lined(text: str) -> bool:
    """Tell whether line breaks carry meaning, as in receipts, addresses, verse and code."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return len(lines) > 2 and sum(1 for line in lines if not line[0].islower()) >= 0.7 * len(lines)


def _return_citations(text: str, pieces: list[Piece]) -> list[Piece]:
    """Give numbers that open a sentence back to the one before, in a document full of raised citations."""
    opens = [bool(_CITATION.match(text, p.start, p.end)) for p in pieces]
    if sum(opens) < max(5, len(pieces) // 20):
        return pieces
    result: list[Piece] = []
    for piece, opening in zip(pieces, opens, strict=True):
        match = _CITATION.match(text, piece.start, piece.end) if opening and piece.kind == "prose" else None
        if match and result and result[-1].block == piece.block:
            result[-1] = replace(result[-1], end=piece.start + len(match[0].rstrip()))
            piece = replace(piece, start=match.end())
        result.append(piece)
    return result


def _merge_fragments(text: str, pieces: list[Piece]) -> list[Piece]:
    """Join a block of fewer than three words to its neighbour: to the next after a colon, else to the last."""
    merged: list[Piece] = []
    pending: Piece | None = None
    for piece in pieces:
        if pending is not None:
            if _can_join(text, pending, piece):
                piece = replace(piece, start=pending.start)
            else:
                merged.append(pending)
            pending = None
        body = text[piece.start : piece.end]
        if piece.kind == "row" or not _is_short(body):
            merged.append(piece)
        elif not body.endswith((":", "：")) and merged and _can_join(text, merged[-1], piece):
            merged[-1] = replace(merged[-1], end=piece.end)
        else:
            pending = piece
    return [*merged, pending] if pending is not None else merged


def _can_join(text: str, first: Piece, second: Piece) -> bool:
    """Tell whether two neighbours may share an atom: same section, no structure lost, short enough."""
    return (
        first.section == second.section
        and "row" not in (first.kind, second.kind)
        and (second.kind != "list" or (first.kind == "list" and _is_short(text[second.start : second.end])))
        and _fits(text, first.start, second.end)
    )
