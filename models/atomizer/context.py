"""What an atom says on its own: the words of its sentence behind as little context as it needs.

Holds the making of `content` and `retrieval_text`. A sentence stays as it was written, on one line; a short
prefix names the subject where the sentence does not.
"""

from __future__ import annotations

import re

from models.atomizer.entities import begins_with_pronoun, entities, key, subject
from models.atomizer.lexicon import STOP_WORDS
from models.atomizer.outline import clean_heading
from models.atomizer.segment import Piece, cells
from models.atomizer.spans import num_tokens

MAX_CONTENT_TOKENS = 100
_MAX_TITLE_CHARS = 60
_MAX_TERMS = 24
_MAX_ANTECEDENT_WORDS = 5

_WORD = re.compile(r"[^\W_]+")
_DIGITS = re.compile(r"\d")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u00ad\u200b\u2028\u2029\ud800-\udfff\ufeff]")
_FILE_SUFFIX = re.compile(r"\.(?:pdf|docx?|html?|epub|md|markdown|txt|csv|tsv|json)$", re.IGNORECASE)
_LABEL = re.compile(r"(?=[^\W\d_])[^|.;!?]{2,40}")
_BULLET = re.compile(r"^(?:[-*+•‣◦▪●·]|\(?[a-z]\))\s+")
_ITEM_BREAK = re.compile(r"\n\s*[-*+•‣◦▪●·]\s+")
_QUOTE_MARK = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)


def clean_title(title: str) -> str:
    """Return a title fit to stand before a sentence, or nothing: no file names, codes, or long lines."""
    words = title.replace("_", " ").split()
    plain = [w for w in words if len(_DIGITS.findall(w)) < 5]
    text = _FILE_SUFFIX.sub("", clean_heading(" ".join(plain)))
    if not 0 < len(text) <= _MAX_TITLE_CHARS or text.lower().startswith(("untitled", "microsoft word")):
        return ""
    is_rest_of_code = len(plain) < 2 and len(plain) < len(words)
    is_wordy = 2 * sum(c.isalpha() for c in text) >= len(text)
    names_something = any(len(w) > 2 or not w.isascii() for w in _WORD.findall(text))
    return text if is_wordy and names_something and not is_rest_of_code else ""


def clean_body(raw: str) -> str:
    """Return a span as one line of plain words, without control characters and quote marks.

    Never empty: a span of nothing but control characters becomes a replacement character.
    """
    text = _QUOTE_MARK.sub("", raw) if ">" in raw else raw
    return _one_line(text) or _one_line(raw) or "\ufffd"


def _one_line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())


def body_of(text: str, piece: Piece) -> str:
    """Return what a piece says: a sentence, or a table row with its column names."""
    raw = text[piece.start : piece.end]
    if piece.kind == "row":
        return _row_body(raw, piece.columns)
    if piece.kind == "heading":
        return clean_body(raw.lstrip("#"))
    if piece.kind == "list":
        body = clean_body(_ITEM_BREAK.sub("; ", raw))
        return _BULLET.sub("", body) or body
    return clean_body(raw)


def _row_body(raw: str, columns: tuple[str, ...]) -> str:
    values = [clean_body(v) for v in cells(raw) if v]
    if columns and len(cells(raw)) == len(columns) and tuple(cells(raw)) != columns:
        pairs = zip(columns, cells(raw), strict=True)
        named = "; ".join(f"{name}: {clean_body(value)}" for name, value in pairs if value)
        if num_tokens(named) <= MAX_CONTENT_TOKENS:
            return named
    if len(values) == 2 and not columns and _LABEL.fullmatch(values[0]):
        return f"{values[0].rstrip(': ')}: {values[1]}"
    return " | ".join(values) if len(values) > 1 else clean_body(raw)


class Context:
    """Walks through the pieces of a document in order and names what each one leaves unsaid."""

    def __init__(self, title: str, common: frozenset[str]) -> None:
        self._title = clean_title(title)
        self._common = common
        self._block = -1
        self._antecedent = ""

    def prefix(self, piece: Piece, body: str) -> str:
        """Return what must stand before `body`, without the colon; empty where it speaks for itself."""
        if piece.block != self._block:
            self._block, self._antecedent = piece.block, ""
        pronoun = begins_with_pronoun(body)
        parts = self._labels(piece.heading)
        if pronoun or piece.is_part:
            parts.append(self._antecedent)
        else:
            name = subject(body, self._common)
            self._antecedent = name if len(name.split()) <= _MAX_ANTECEDENT_WORDS else ""
        said = _stems(body)
        needed: list[str] = []
        for part in parts:
            stems = _stems(part)
            if stems and not stems <= said:
                needed.append(part)
                said |= stems
        while needed and num_tokens(", ".join(needed)) + 1 + num_tokens(body) > MAX_CONTENT_TOKENS:
            needed.pop(0)
        return ", ".join(needed)

    def _labels(self, heading: str) -> list[str]:
        """Return title and heading where both are short; else the heading, unless it is one word."""
        if not heading or not self._title:
            return [heading or self._title]
        if len(self._title) + len(heading) <= _MAX_TITLE_CHARS:
            return [self._title, heading]
        return [heading if " " in heading else self._title]


def retrieval_text(title: str, piece: Piece, body: str, names: list[str]) -> str:
    """Return title, heading, names, and the key terms of a piece that are not said by these."""
    labels = list(dict.fromkeys(filter(None, (clean_title(title), piece.heading, *names))))
    said = set(_words(" ".join(labels)))
    terms = [w for w in dict.fromkeys(_words(body)) if w not in STOP_WORDS | said and (len(w) > 1 or w.isdigit())]
    return clean_body("; ".join([*labels, " ".join(terms[:_MAX_TERMS])]).strip("; ") or body)


def names_in(body: str, common: frozenset[str]) -> list[str]:
    """Return the names in a piece that are worth an index entry."""
    return [n for n in entities(body, common) if key(n) not in STOP_WORDS]


def _words(text: str) -> list[str]:
    return [w.lower() for w in _WORD.findall(text)]


def _stems(text: str) -> set[str]:
    return {w.removesuffix("s") for w in _words(text) if w not in STOP_WORDS}
