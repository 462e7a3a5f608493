"""Markdown: headings, lists, tables and code keep their marks, prose loses its links and emphasis.

What is left is what a reader of the rendered page sees, so that it can be quoted.
"""

from __future__ import annotations

import re

from models.readers.clean import damage, normalise, tidy
from models.readers.encoding import decode
from models.readers.extract import Extract, Progress

_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_OWN_LINE = re.compile(r"\s*(#{1,6}\s|[-*+]\s|\d{1,9}[.)]\s|>|\||[-=_*]{3,}\s*$|\[[^\]]+\]:|<)|\s{4,}\S|\t")
_LINK = re.compile(
    r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?:<[^>]*>|[^()\s]*(?:\([^()]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)"
)
_STRONG = re.compile(r"(?<!\\)(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_EMPHASIS = re.compile(r"(?<![\\*\w])([*_])(?=[^\s*_])([^*_]+?)(?<=\S)\1(?![*\w])")
_FRONT_MATTER = re.compile(r"---[ \t]*\n(.*?\n)(?:---|\.\.\.)[ \t]*\n", re.DOTALL)


def extract(data: bytes, *, name: str, password: str | None, on_page: Progress) -> Extract:
    """Read a Markdown file; `name` and `password` are not needed."""
    raw, warnings = decode(data)
    text = normalise(raw)
    titles = []
    if front := _FRONT_MATTER.match(text):
        titles += re.findall(r"^title:\s*[\"']?(.+?)[\"']?\s*$", front[1], re.MULTILINE)
        text = front[1] + "\n" + text[front.end() :]
    titles += re.findall(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)[:1]
    on_page(1, 1)
    return Extract(
        pages=[tidy(_render(text))], titles=[_plain(title) for title in titles], warnings=[*warnings, *damage([raw])]
    )


def _render(text: str) -> str:
    """Join the lines of each paragraph and drop inline marks, outside code."""
    out: list[str] = []
    fence = ""
    joinable = False
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence or mark:
            out.append(line)
            if mark:
                fence = "" if mark[1] == fence else fence or mark[1]
            joinable = False
            continue
        is_prose = bool(line.strip()) and not _OWN_LINE.match(line)
        if joinable and is_prose:
            out[-1] += " " + line.strip()
        else:
            out.append(line)
        starts_item = bool(re.match(r"\s*([-*+]|\d{1,9}[.)])\s", line))
        joinable = (is_prose or starts_item) and not line.endswith(("  ", "\\"))
    return "\n".join(_plain_outside_code(out))


def _plain_outside_code(lines: list[str]) -> list[str]:
    out, fence = [], ""
    for line in lines:
        mark = _FENCE.match(line)
        if mark:
            fence = "" if mark[1] == fence else fence or mark[1]
        out.append(line if fence or mark or line.startswith(("    ", "\t")) else _plain(line))
    return out


def _plain(line: str) -> str:
    line = _LINK.sub(r"\1", line)
    for _ in range(2):  # emphasis inside strong emphasis
        line = _EMPHASIS.sub(r"\2", _STRONG.sub(r"\2", line))
    return line
