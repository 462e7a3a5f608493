"""The layout of a plain text: headings, list items, table rows, prose, and page furniture.

Holds one pass over the lines of a text that finds hard boundaries between blocks. It knows nothing
about file formats: what readers leave in the text (Markdown marks, bullets, tabs, bars, blank lines,
numbering) is all it goes by. In doubt a line is prose, because prose is never left out of an atom.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from models.atomizer.lexicon import JOINING_WORDS

BlockKind = Literal["prose", "heading", "list", "row", "furniture"]

_MAX_HEADING_WORDS = 12
_MAX_HEADING_CHARS = 100
_FULL_LINE_CHARS = 40

_MARKDOWN_HEADING = re.compile(r"(#{1,6})\s+\S")
_NUMBERED_HEADING = re.compile(r"(\d{1,2}(?:\.\d{1,2}){0,3}|[A-Z](?:\.\d{1,2}){1,3})\.?\s+(?=[^\W\d_])")
_NAMED_HEADING = re.compile(
    r"(?:chapter|section|part|appendix)\s+[\divxlc]+\b|(?:abstract|introduction|background|related work|methods?"
    r"|results|discussion|conclusions?|references|bibliography|acknowledge?ments|summary|contents|limitations)$",
    re.IGNORECASE,
)
_CAPTION = re.compile(r"(?:Figure|Fig\.|Table|Listing|Algorithm)\s\d[\d.]*\s?[:.]\s")
_LIST_ITEM = re.compile(r"(?:[-*+•‣◦▪●·–—]|\(?\d{1,3}[.)]|\(?[a-z]\))\s+\S")
_BARE_NUMBER = re.compile(r"[-–—\s]*(?:page\s+)?(?:\d{1,4}|[ivxlc]{1,6})(?:\s+of\s+\d{1,4})?[-–—\s]*", re.IGNORECASE)
_RULE = re.compile(r"[\s|:=+_*~–—-]{3,}")
_NUMBER = re.compile(r"[(+\-−±<>≤≥~$€£¥]*\d[\d.,:/%]*[)%*]*")
_SET = re.compile(r"\{[^{}|]*\|[^{}|]*\}")  # {x | x is even}
_WIDE_GAP = re.compile(r"\S(?: {3,}|\t+)(?=\S)")
_LABELLED_CELL = re.compile(r"(?:^|; )[^:;.]{1,40}:(?: [^;]*)?")
_CSV_COMMA = re.compile(r",(?=\S)")
_ENDS_SENTENCE = re.compile(r"[.!?:;。！？：；…][\"'”’»)\]]*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of lines that belong together.

    Args:
        start, end: Half-open range in the text, without the white space around it.
        level: Depth of a heading, 1 at the top; 0 where unknown, and for every other kind.
    """

    kind: BlockKind
    start: int
    end: int
    level: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def split_blocks(text: str) -> list[Block]:
    """Return the blocks of a text in order; together they hold every character that is not white space."""
    lines = _lines(text)
    upcoming = _upcoming(lines)
    marked = sum(1 for line in lines if _MARKDOWN_HEADING.match(line.text)) > 1
    blocks: list[Block] = []
    open_kind: BlockKind | None = None
    in_code = False
    for index, line in enumerate(lines):
        if not line.text:
            open_kind = open_kind if in_code else None
            continue
        is_fence = line.text.startswith(("```", "~~~"))
        if is_fence or in_code:
            in_code = in_code != is_fence
            kind, level = "prose", 0
        else:
            before = lines[index - 1].text if index else ""
            after = lines[index + 1].text if index + 1 < len(lines) else ""
            kind, level = _classify(line.text, before, after, upcoming[index], open_kind)
            if kind == "heading" and marked and not line.text.startswith("#"):
                kind, level = "prose", 0
        goes_on = open_kind in ("prose", "list") or _resumes(line.text, blocks, text)
        if kind == "prose" and goes_on and not _CAPTION.match(line.text):
            blocks[-1] = replace(blocks[-1], end=line.end)
            open_kind = blocks[-1].kind
        else:
            blocks.append(Block(kind, line.start, line.end, level))
            open_kind = kind
    return blocks


def _lines(text: str) -> list[_Line]:
    lines = []
    offset = 0
    for raw in text.splitlines(keepends=True):
        body = raw.strip()
        lines.append(_Line(body, offset + (len(raw) - len(raw.lstrip()) if body else 0)))
        offset += len(raw)
    return lines


def _upcoming(lines: list[_Line]) -> list[str]:
    """Return for every line the next one that is not blank."""
    result = [""] * len(lines)
    for index in range(len(lines) - 2, -1, -1):
        result[index] = lines[index + 1].text or result[index + 1]
    return result


def _classify(line: str, before: str, after: str, upcoming: str, open_kind: BlockKind | None) -> tuple[BlockKind, int]:
    """Return what a line is and its level, from itself and its neighbours; blank neighbours are empty."""
    if _is_rule(line) or _BARE_NUMBER.fullmatch(line):
        return "furniture", 0
    if match := _MARKDOWN_HEADING.match(line):
        return "heading", len(match[1])
    if _is_row(line, before, after):
        return "row", 0
    if open_kind == "prose" and not _ENDS_SENTENCE.search(before):
        return "prose", 0
    if (level := _heading_level(line, before, after, upcoming)) is not None:
        return "heading", level
    return ("list" if _LIST_ITEM.match(line) else "prose"), 0


def _is_rule(line: str) -> bool:
    return bool(_RULE.fullmatch(line)) and not line.strip("|:=+_*~–—- \t")


def _is_row(line: str, before: str, after: str) -> bool:
    bars = _SET.sub("", line) if "{" in line else line
    if " | " in bars or bars.count("|") >= 2 or len(_WIDE_GAP.findall(line)) >= 2 or "\t" in line:
        return True
    for is_like in (_is_csv, _is_labelled):
        if is_like(line) and (is_like(before) or is_like(after)):
            return True
    words = line.split()
    numbers = sum(1 for w in words if _NUMBER.fullmatch(w))
    return numbers >= 2 and 2 * numbers >= len(words) and not JOINING_WORDS.intersection(words)


def _is_csv(line: str) -> bool:
    return len(_CSV_COMMA.findall(line)) >= 2 and line.count(", ") == 0


def _is_labelled(line: str) -> bool:
    return len(_LABELLED_CELL.findall(line)) >= 2 and not _LABELLED_CELL.sub("", line)


def _heading_level(line: str, before: str, after: str, upcoming: str) -> int | None:
    """Return the level of a heading without Markdown marks, None for any other line."""
    words = line.split()
    if len(words) > _MAX_HEADING_WORDS or len(line) > _MAX_HEADING_CHARS or line[-1] in ".,;:!…。，；：！、-":
        return None
    numbered = _NUMBERED_HEADING.match(line)
    title = line[numbered.end() :] if numbered else line
    first = next((c for c in title if c.isalpha()), "")
    if not first or first.islower() or "=" in title or title[0] in "\"'“‘([{•-–—*":
        return None
    isolated = not before and not after
    if numbered:
        alone = isolated or (_is_titled(title) and not _LIST_ITEM.match(after))
        return 1 + numbered[1].count(".") if alone or "." in numbered[1] else None
    if _NAMED_HEADING.match(line):
        return 1
    is_long = len(upcoming) >= max(_FULL_LINE_CHARS, len(line)) and not _CAPTION.match(upcoming)
    introduces = is_long or bool(_LIST_ITEM.match(upcoming))
    has_digits = any(c.isdigit() for c in title)  # rather a row of a table whose gaps are lost
    runs_on = len(words) > 1 and _is_titled(title) and after[:1].isupper() and not has_digits
    brief = _is_titled(title) or (len(words) <= 5 and "," not in title and sum(map(str.isalpha, title)) > 3)
    return 0 if introduces and ((isolated and brief) or runs_on) else None


def _is_titled(title: str) -> bool:
    """Tell whether the long words of a line start with capitals, as those of English titles do."""
    long_words = [w for w in title.split() if len(w) > 3]
    capitals = sum(1 for w in long_words if not w[0].islower())
    return bool(long_words) and capitals >= 0.75 * len(long_words)


def _resumes(line: str, blocks: list[Block], text: str) -> bool:
    """Tell whether a line after a blank one goes on with a sentence that a page break cut."""
    if not blocks or blocks[-1].kind not in ("prose", "list") or not (line[0].islower() or line[0] == "("):
        return False
    last = text[max(blocks[-1].start, blocks[-1].end - 2 * _FULL_LINE_CHARS) : blocks[-1].end].rsplit("\n", 1)[-1]
    return len(last) >= _FULL_LINE_CHARS and not _ENDS_SENTENCE.search(last)
