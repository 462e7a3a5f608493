"""Bytes to text, in any common encoding.

In this order: byte order mark, the encoding that the file declares, strict UTF-8, detection, Windows-1252.
"""

from __future__ import annotations

import codecs

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DETECT_BYTES = 100_000
_FALLBACK = "cp1252"
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
    for encoding in (declared, "utf-8", _detected(data), _FALLBACK):
        try:
            return data.decode(encoding or "utf-8"), []
        except (UnicodeDecodeError, LookupError):
            continue
    utf8 = _replace(data, "utf-8")
    western = _replace(data, _FALLBACK)
    mostly_utf8 = utf8[0].count("\ufffd") <= 0.01 * len(utf8[0]) and any(
        ord(c) > 0xFF for c in utf8[0].replace("\ufffd", "")
    )
    return utf8 if mostly_utf8 else western


def _detected(data: bytes) -> str | None:
    if zeros := data[:_DETECT_BYTES].count(0):
        odd = data[1:_DETECT_BYTES:2].count(0)
        return "utf-16-le" if odd > zeros / 2 else "utf-16-be"
    import chardet

    encoding = chardet.detect(data[:_DETECT_BYTES])["encoding"]
    return None if encoding and encoding.lower().startswith(_RARE) else encoding


def _replace(data: bytes, encoding: str) -> tuple[str, list[str]]:
    text = data.decode(encoding, "replace")
    lost = text.count("\ufffd") - data.count("\ufffd".encode())
    if lost <= 0:
        return text, []
    return text, [f"{lost} bytes do not fit {encoding.removesuffix('-sig')} and were replaced; save the file as UTF-8"]
