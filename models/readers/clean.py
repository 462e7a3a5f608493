"""Normal form of extracted text, shared by every reader.

Holds character-level cleaning and the description of damage that cannot be mended. It holds no line or
paragraph logic: `models.readers.flow` joins lines. The offsets of a `Document` refer to cleaned text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "st", "ﬆ": "st"}
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_LINE_ENDS = {"\v": "\n", "\f": "\n", "\x85": "\n", "\u2028": "\n", "\u2029": "\n\n"}
_DROPPED = [
    *(c for c in range(0xA0) if (c < 0x20 or c >= 0x7F) and chr(c) not in "\t\n\v\f\x85"),  # C0, DEL, C1
    *(0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)),  # bidirectional controls
    *(0x00AD, 0x200B, 0x2060, 0xFEFF, 0xFFFE, 0xFFFF),  # soft hyphen, zero width, no character
]
_TABLE = str.maketrans(
    {
        **_LIGATURES,
        **dict.fromkeys(_SPACES, " "),
        **_LINE_ENDS,
        **{chr(c): None for c in _DROPPED},
        "\uf0b7": "•",  # the bullets of Symbol and Wingdings
        "\uf0a7": "▪",
    }
)
# A soft hyphen, or the mark that pdfium writes for a hyphen at a line end, is never part of the word.
_SOFT_LINE_END = re.compile("[\u00ad\ufffe][ \t]*\n[ \t]*")
_PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
_DAMAGE = re.compile("[\ue000-\uf0a6\uf0a8-\uf0b6\uf0b8-\uf8ff\U000f0000-\U0010fffd\ufffd\x00]|\\(cid:\\d+\\)")
# A symbol inside a word: the ligature slots of a font without a usable character map.
_WRONG_LETTER = re.compile(r"(?<=[a-z])[!\"#$%](?=[a-z])")
_DAMAGE_PER_CHARACTER = 1e-3
_SUPERSCRIPTS = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")


def normalise(text: str) -> str:
    """Return `text` in the form that documents are stored in.

    Control characters other than newline and tab, bidirectional controls and invisible marks are dropped,
    Latin ligatures are spelled out, every kind of space becomes a plain one, and the rest is put in NFC,
    which keeps superscripts and unit signs, unlike NFKC.

    Args:
        text: Any string, lone surrogates included.
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _SOFT_LINE_END.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return unicodedata.normalize("NFC", text.translate(_TABLE))


def tidy(text: str) -> str:
    """Return `text` without trailing blanks in lines, more than one blank line in a row, or blank edges."""
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def squash(text: str) -> str:
    """Return `text` on one line, with single spaces."""
    return " ".join(text.split())


def superscript(text: str) -> str:
    """Return `text` in superscript characters where all of it has them, so that 10 to the 6 is not 106."""
    raised = text.translate(_SUPERSCRIPTS)
    return raised if not re.search(r"[^⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ]", raised) else text


def damage(raw: Iterable[str]) -> list[str]:
    """Return a warning where raw text holds many characters that no reader can interpret.

    Args:
        raw: Pieces of text before `normalise`, one a page.
    """
    pieces = list(raw)
    size = sum(map(len, pieces))
    found = [(piece, match) for piece in pieces for match in _DAMAGE.finditer(piece)]
    warnings = []
    if found and len(found) >= _DAMAGE_PER_CHARACTER * size:
        example = _word_around(*found[0])
        warnings.append(
            f"{len(found)} characters could not be interpreted, as in {example!r}; such words may not be found"
        )
    wrong = [(piece, match) for piece in pieces for match in _WRONG_LETTER.finditer(piece)]
    if len(wrong) >= 3 and len(wrong) >= _DAMAGE_PER_CHARACTER * size:
        example = _word_around(*wrong[0])
        warnings.append(f"{len(wrong)} words hold a wrong sign, as in {example!r}: a font lacks its character map")
    return warnings


def _word_around(text: str, match: re.Match[str]) -> str:
    before = re.split(r"\s", text[max(0, match.start() - 20) : match.start()])[-1]
    after = re.split(r"\s", text[match.end() : match.end() + 20])[0]
    return before + match.group() + after
