"""Bytes to text, in any common encoding.

In this order: byte order mark, the encoding that the file declares, UTF-8, detection, Windows-1252.
"""

from __future__ import annotations

import codecs
import contextlib

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DETECT_BYTES = 100_000
_FALLBACK = "cp1252"
_MOSTLY = 10
# Detection confuses short Western texts with encodings that hardly any file uses.
_RARE = ("mac", "ibm", "cp4", "cp5", "cp8", "cp10", "cp11", "hp-", "kz", "iso-8859-3", "iso-8859-10", "iso-8859-14")


def decode(data: bytes, *, declared: str | None = None) -> tuple[str, list[str]]:
    """Return the text and a warning where bytes had to be replaced.

    Args:
        declared: What the file itself says, as in an HTML `meta` tag; passed over where it does not fit.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _replace(data, encoding)
    for encoding in (unmarked_utf16(data), declared, "utf-8"):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            if encoding:
                return data.decode(encoding), []
    utf8 = _replace(data, "utf-8")
    num_lost = utf8[0].count("\ufffd")
    if sum(ord(c) > 0x7F for c in utf8[0]) > _MOSTLY * num_lost:
        return utf8
    for encoding in (_detected(data), _FALLBACK):
        with contextlib.suppress(UnicodeDecodeError, LookupError):
            if encoding:
                return data.decode(encoding), []
    return _replace(data, _FALLBACK)


def unmarked_utf16(data: bytes) -> str | None:
    """Return the name of the encoding where every other byte is zero: UTF-16 without a byte order mark."""
    sample = data[:_DETECT_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)
    if even + odd < 0.2 * len(sample) or max(even, odd) < _MOSTLY * min(even, odd):
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def _detected(data: bytes) -> str | None:
    import chardet

    encoding = chardet.detect(data[:_DETECT_BYTES])["encoding"]
    return None if encoding and encoding.lower().startswith(_RARE) else encoding


def _replace(data: bytes, encoding: str) -> tuple[str, list[str]]:
    text = data.decode(encoding, "replace")
    lost = text.count("\ufffd") - data.count("\ufffd".encode())
    if lost <= 0:
        return text, []
    return text, [f"{lost} bytes do not fit {encoding.removesuffix('-sig')} and were replaced; save the file as UTF-8"]
