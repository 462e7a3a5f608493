"""What kind of knowledge a piece of text carries, judged from its words alone.

Holds the rules for semantic type, answer-bearing flag, abstraction level and confidence. Nothing here
sees a question or an answer: training and ingest get the same judgement.
"""

from __future__ import annotations

import re

from models.atomizer.lexicon import (
    ABSTRACT_CUES,
    ABSTRACT_SECTIONS,
    CHANGE_VERBS,
    EXPLETIVES,
    QUANTITY_UNITS,
    REFERENCE_SECTIONS,
    STEP_OBJECTS,
    STEP_OPENERS,
    STEP_VERBS,
    STOP_WORDS,
)
from models.atomizer.segment import Piece

YEAR = re.compile(r"(?<![\d.,])(?:1[0-9]|20)\d\d(?:s|\b)(?![.,]\d)")
QUANTITY = re.compile(r"([$€£¥]\s?)?((?<![\w.])\d[\d,]*(?:\.\d+)?)\s?(%|[a-z]+\b)?", re.IGNORECASE)

_DATE = re.compile(
    r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\s+\d{1,2}\b"
    r"|\b\d{1,2}\s+(?:January|February|March|April|May|June|July|August|September|October|November|December)\b"
    r"|\b\d{4}-\d\d-\d\d\b|\b\d{1,2}th century\b"
)
_COPULA = re.compile(
    r"^(?:[^\s,]+,?\s+){1,10}?(?:is|was|are|were|remains|became)\s+(?:(?:also|currently|now|still|originally)\s+)?"
    r"(?:an?|the|one of|known|called|named|located|situated|part of|made (?:up )?of|composed of|home to)\b",
    re.IGNORECASE,
)
_CAPTION = re.compile(
    r"^(?:fig(?:ure|\.)?|table|plate|exhibit|listing|algorithm)\s*[\dIVX.]+\s*[.:|–—-]", re.IGNORECASE
)
_REFERENCE = re.compile(
    r"^\[?\d{1,3}[\].]\s.*\b(?:19|20)\d\d\b|^[A-Z][\w'’-]+,\s(?:[A-Z]\.\s?)+.*\b(?:19|20)\d\d\b"
    r"|\bdoi:|\barxiv:\d|\bpp?\.\s\d+|\bIn (?:Proceedings|Advances|Findings)\b"
)
_QUOTED = re.compile(r"[\"“][^\"“”]*[\"”]")
_TRANSITION = re.compile(
    r"^(?:see|cf\.|as (?:shown|seen|described|discussed|noted) (?:in|above|below)"
    r"|(?:the|this|these) (?:following|next|section|chapter|paragraph|figure|table)s?\b"
    r"|we (?:now|next|then) (?:turn|describe|discuss|present)|in (?:this|the (?:next|following)) (?:section|chapter))",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_ENDS = re.compile(r"[.!?。！？…][\"'”’»)\]]*$")


def semantic_type(piece: Piece, body: str, names: list[str]) -> str:
    """Return one of the five semantic types.

    A name or a date makes a change an event; a copula or a measure makes an attribute; imperatives and
    enumerations make steps; rows, captions, quotes, references and headings are evidence; all else is a claim.
    """
    words = [w.lower() for w in _WORD.findall(body)]
    if piece.kind == "row":
        return "entity_attribute" if _names_values(piece, body) else "evidence_fragment"
    if _is_step(piece, body, words):
        return "process_step"
    if piece.kind == "heading" or _is_evidence(piece, body):
        return "evidence_fragment"
    if _COPULA.match(body) and words[0] not in EXPLETIVES:
        return "entity_attribute"
    dated = bool(YEAR.search(body) or _DATE.search(body))
    if (names and dated) or ((names or dated) and CHANGE_VERBS.intersection(words)):
        return "event_relation"
    if has_quantity(body):
        return "entity_attribute"
    return "fact_claim"


def has_quantity(body: str) -> bool:
    """Tell whether a text holds a number with a unit, a currency sign, or a percent sign."""
    return any(m[1] or (m[3] and m[3].lower() in QUANTITY_UNITS) for m in QUANTITY.finditer(body))


def is_reference(piece: Piece, body: str) -> bool:
    """Tell whether a piece is an entry of a list of references."""
    section = piece.section.lower()
    return section in REFERENCE_SECTIONS or len(_REFERENCE.findall(body)) >= 2


def is_answer_bearing(piece: Piece, body: str, names: list[str]) -> bool:
    """Tell whether a piece can carry an answer: not questions, bare headings, header rows, or signposts."""
    if body.endswith(("?", "？")) or (piece.kind == "heading" and not any(c.isdigit() for c in body)):
        return False
    if piece.columns and body == " | ".join(piece.columns):
        return False
    return not (_TRANSITION.match(body) and not names and not YEAR.search(body) and len(body) < 160)


def abstraction_level(piece: Piece, body: str) -> str:
    """Return `abstract` for summaries and generalities, `hybrid` where these hold figures, else `evidence`."""
    words = {w.lower() for w in _WORD.findall(body)}
    section = {w.lower() for w in _WORD.findall(piece.section)}
    if not (ABSTRACT_CUES & words or (section and section <= ABSTRACT_SECTIONS | STOP_WORDS)):
        return "evidence"
    return "hybrid" if any(c.isdigit() for c in body) else "abstract"


def confidence(piece: Piece, body: str, *, unresolved: bool) -> float:
    """Return how far an atom can be trusted to be a clean statement, in [0, 1].

    Args:
        unresolved: True where it begins with a pronoun whose antecedent was not found.
    """
    value = 0.95
    if is_reference(piece, body):
        value *= 0.35
    if piece.kind == "heading" or (piece.kind == "row" and not _names_values(piece, body)):
        value *= 0.7
    elif piece.kind == "prose" and not _ENDS.search(body):
        value *= 0.85
    if piece.is_part:
        value *= 0.9
    if unresolved:
        value *= 0.9
    return round(value * (1.0 - _noise(body)), 3)


def _names_values(piece: Piece, body: str) -> bool:
    """Tell whether a table row says what its values are: by its columns, or as a label and a value."""
    return bool(piece.columns) or (" | " not in body and ": " in body)


def _is_step(piece: Piece, body: str, words: list[str]) -> bool:
    if not words:
        return False
    numbered = piece.kind == "list" and re.match(r"\(?\d{1,3}[.)]\s", body)
    imperative = len(words) > 1 and words[0] in STEP_VERBS and words[1] in STEP_OBJECTS
    if numbered:
        return words[0] in STEP_VERBS or words[0] in STEP_OPENERS or (len(words) > 3 and not is_reference(piece, body))
    return imperative or (words[0] in STEP_OPENERS and len(words) > 1 and words[1] in STEP_VERBS)


def _is_evidence(piece: Piece, body: str) -> bool:
    quoted = sum(len(q) for q in _QUOTED.findall(body))
    return bool(_CAPTION.match(body)) or 2 * quoted > len(body) or is_reference(piece, body)


def _noise(body: str) -> float:
    """Return the share of a text, from 0.05 up, that is neither letters, digits nor spaces; at most 0.8."""
    odd = sum(1 for c in body if not (c.isalnum() or c.isspace())) / len(body)
    broken = len(re.findall(r"\b[^\W\d_]\b(?:\s[^\W\d_]\b){2,}|\ufffd|\w[|\\~^]\w", body)) / max(1, len(body.split()))
    return min(0.8, max(0.0, odd - 0.1) + broken)
