"""Where things are in a text: quoted spans, token counts, sentences, and windows.

Holds character arithmetic that all atomizer backends share; every offset is into the original text.
It holds no judgement about what a sentence means.
"""

from __future__ import annotations

import re

from models.atomizer.blocks import split_blocks

CHARS_PER_TOKEN = 4

_UNSPACED_SCRIPTS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
UNSPACED = re.compile(rf"[{_UNSPACED_SCRIPTS}]")
"""A letter of a script that is written without spaces, or nearly so."""
_TOKEN = re.compile(rf"[{_UNSPACED_SCRIPTS}]|[^\W\d_]{{1,6}}|[\d_]|[^\w\s]")
_SPACE = re.compile(r"\s")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def locate_span(text: str, span: str, *, start: int = 0) -> tuple[int, int] | None:
    """Return the half-open range of `span` in `text`, or None.

    The exact span is searched first, then one in which any run of white space matches any other.
    Either search prefers an occurrence at or after `start`.

    Args:
        start: Character offset from which occurrences are preferred.

    Source: paper, appendix "Source-span validation".
    """
    words = span.split()
    if not words:
        return None
    for origin in dict.fromkeys((start, 0)):
        found = text.find(span, origin)
        if found >= 0:
            return found, found + len(span)
    pattern = re.compile(r"\s+".join(map(re.escape, words)))
    match = pattern.search(text, start) or pattern.search(text)
    return match.span() if match else None


def num_tokens(text: str) -> int:
    """Estimate the tokens of a text under a small byte-pair vocabulary, rather above than below.

    English words cost one token for every six letters begun, digits and signs one each, letters of
    scripts written without spaces two each.
    """
    unspaced = 0 if text.isascii() else len(UNSPACED.findall(text))
    return len(_TOKEN.findall(text)) + unspaced


def sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return the ranges of the sentences of a text, in order and without surrounding white space.

    Paragraphs, headings, list items and table rows end a sentence; a mere line break does not. Every
    character that is not white space lies in exactly one range.

    Args:
        language: ISO 639 code, chooses abbreviations; an unknown one falls back to general rules.
    """
    return [piece for b in split_blocks(text) for piece in split_sentences(text, b.start, b.end, language)]


def split_sentences(text: str, start: int, end: int, language: str) -> list[tuple[int, int]]:
    """Return the ranges of the sentences within one block of a text."""
    from sentencex import segment

    # A line break inside a block is only layout, and half a surrogate pair cannot be encoded; stand-ins
    # of the same width keep the offsets.
    block = _SURROGATE.sub("\ufffd", _SPACE.sub(" ", text[start:end]))
    ranges = []
    offset = 0
    for sentence in segment(language, block):
        found = block.find(sentence, offset)
        if found < 0:
            break
        # What the segmenter skipped belongs to the sentence that follows.
        ranges.append((start + offset, start + found + len(sentence)))
        offset = found + len(sentence)
    if offset < len(block):
        ranges.append((start + offset, end))
    return [stripped for r in ranges if (stripped := strip_range(text, *r))]


def strip_range(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the range without the white space at its ends, or None where nothing is left."""
    piece = text[start:end]
    body = piece.strip()
    if not body:
        return None
    first = start + len(piece) - len(piece.lstrip())
    return first, first + len(body)


def windows(text: str, *, max_chars: int, language: str = "en") -> list[tuple[int, int]]:
    """Return ranges of whole sentences, each at most `max_chars` long, that together hold the text.

    A sentence longer than a window is cut at white space, or anywhere where it has none.

    Args:
        max_chars: Characters, about `CHARS_PER_TOKEN` times the token budget.
    """
    result: list[tuple[int, int]] = []
    for sentence in sentences(text, language):
        for start, end in _cut(text, *sentence, max_chars):
            if result and end - result[-1][0] <= max_chars:
                result[-1] = (result[-1][0], end)
            else:
                result.append((start, end))
    return result


def _cut(text: str, start: int, end: int, max_chars: int) -> list[tuple[int, int]]:
    pieces = []
    while end - start > max_chars:
        blank = max(
            text.rfind(" ", start + 1, start + max_chars + 1), text.rfind("\n", start + 1, start + max_chars + 1)
        )
        cut = blank if blank > start else start + max_chars
        pieces.append(strip_range(text, start, cut))
        start = cut
    pieces.append(strip_range(text, start, end))
    return [p for p in pieces if p]
