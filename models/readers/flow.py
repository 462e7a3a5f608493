"""From the lines of a page layout to running text.

Holds the joining of hard-wrapped lines into paragraphs, de-hyphenation, and the removal of running headers
and page numbers. It works on text alone, without positions or fonts, so it serves PDFs and wrapped text
files alike. Every rule prefers a superfluous line break to a wrong join.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# A reference in superscript may follow the full stop: `is well known. 12,13`.
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]]*(\s\d{1,3}([,–-]\d{1,3})*)?$")
_BLOCK_END = re.compile(r"[.!?…:;。！？：；][\"'”’»)\]]*$")
_NEW_BLOCK = re.compile(
    r"[•●○▪■‣◦·∙*–—-]\s"  # bullets
    r"|\(?(\d{1,3}|[a-z]|[ivx]{1,4})\)\s"  # 1) (a) iv)
    r"|\[\d{1,4}\]\s"  # references
    r"|(Figure|Fig\.|Table|Listing|Algorithm|Scheme|Box|Chapter|Section|Appendix)\s[\dA-Z][\d.]*\s?[:.]"
)
_NUMBERED = re.compile(r"\d{1,3}(\.\d{1,3})*\.?\s+[^\W\d_a-z]")  # 2.1 Data, or 3. Mix the dough
_HEADING_MARK = re.compile(r"#{1,6} \S")
_CELLS = " | "
_FOOTNOTE = re.compile(r"\d{1,2}[^\W\d_]{2}|[*†‡§¶]\s?[^\W\d_]")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u2e80-\u30ff\u31f0-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
_ALNUM = re.compile(r"[^\W_]")
_LETTERS = r"[^\W\d_]"
_HYPHEN_END = re.compile(r"\w-$")
_BROKEN_WORD = re.compile(rf"(?P<lead>(?:{_LETTERS}+-)*)(?P<head>{_LETTERS}+)-$")
_WORD_REST = re.compile(rf"{_LETTERS}+")
_ACROSS_LINES = re.compile(r"\S+-[ \t]*\n\s*\S+")  # halves of broken words are no evidence
_WORDS = re.compile(rf"{_LETTERS}+(?:-{_LETTERS}+)*")
# Prefixes whose hyphen belongs to the word, where the document itself does not tell.
_HYPHENATED = re.compile("cross|full|half|high|long|low|mid|non|quasi|self|semi|short|single|well|zero")
_SUFFIXES = re.compile("age|ed|en|ened|ening|er|ered|ering|est|ing|ish|less|light|lights|ly|ness")
# `import- and export`: the hyphen stands for a word that is left out.
_CONJUNCTIONS = re.compile("and|or|to|und|oder|bzw|en|of|et|ou|e|o|y|og|och")
_OPEN_END = re.compile(r"(,|\b(a|an|and|as|at|by|for|from|in|is|of|on|or|that|the|to|with))$")
_FULL_LINE = 0.75  # a shorter line, against its neighbours, ends a paragraph
_BROAD_PAGE = 60  # characters a line
_HEADING = 0.65
_DROP_CAP = re.compile(r"(?m)^[ \t]*([B-HJ-NP-Z])[ \t]*\n[ \t]*([^\W\d_A-Z])")
_PAGE_WORD = re.compile(r"\b(page|pagina|seite|p|of|von|de|sur)\b", re.IGNORECASE)
_NUM_EDGE_LINES = 2
_MIN_REPEATS = 4
_REPEAT_SHARE = 0.4  # left and right pages may carry different headers


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A line of a page, with what its surroundings tell.

    Args:
        spaced: Blanks at its end show that a word ended there.
        width: Length of a full line hereabouts, in characters.
        is_full: It reaches the margin, so that its end need not be the end of a paragraph.
    """

    page: int
    text: str
    after_blank: bool
    spaced: bool
    width: int = 0
    is_full: bool = False


def flow(pages: Sequence[str]) -> list[str]:
    """Return the pages as running text; joined without a separator, they are the document.

    Hard-wrapped lines become paragraphs, separated by a blank line; list items, short lines and table rows
    keep a line each. A paragraph may run over a page break.

    Args:
        pages: Normalised text of each page, a line of the layout a line.
    """
    lines = _lines(pages)
    words = Counter(word.lower() for word in _WORDS.findall(_ACROSS_LINES.sub(" ", "\n".join(pages))))
    out: list[list[str]] = [[] for _ in pages]
    for previous, line in zip([None, *lines], lines, strict=False):
        if previous is not None:
            tail = out[previous.page]
            separator = _separator(previous, line)
            if separator in ("", " ") and previous.text.endswith("-"):
                keep, separator = _hyphen(previous.text, line.text, words)
                tail[-1] = tail[-1] if keep else tail[-1][:-1]
            tail.append(separator)
        out[line.page].append(line.text)
    return ["".join(parts) for parts in out]


def drop_running_lines(pages: Sequence[str]) -> list[str]:
    """Return the pages without the headers, footers and page numbers that recur.

    A line at the edge of a page counts as running when it recurs, word for word or but for a number that
    counts the pages, at the edge of at least four pages and of 40 % of all. Where it holds words, its first
    occurrence stays, so that nothing is lost altogether.

    Args:
        pages: Normalised text of each page.
    """
    split = [page.split("\n") for page in pages]
    seen: dict[str, set[int]] = defaultdict(set)
    for number, lines in enumerate(split):
        for at in _edges(lines):
            for key in _running_keys(lines[at], number):
                seen[key].add(number)
    num_pages = sum(any(map(str.strip, lines)) for lines in split)
    running = {key for key, numbers in seen.items() if len(numbers) >= max(_repeats(key), _REPEAT_SHARE * num_pages)}
    kept: set[str] = set()
    for number, lines in enumerate(split):
        for at in _edges(lines):
            keys = running.intersection(_running_keys(lines[at], number))
            if not keys:
                continue
            if keys & kept or not re.search(rf"{_LETTERS}{{3}}", _PAGE_WORD.sub("", lines[at])):
                lines[at] = ""
            kept |= keys
    return ["\n".join(lines) for lines in split]


def _repeats(key: str) -> int:
    """How often a key must occur: a number that counts the pages is plain from the second page on."""
    return _MIN_REPEATS if _WORD_REST.search(key) else 2


def _edges(lines: Sequence[str]) -> list[int]:
    filled = [i for i, line in enumerate(lines) if line.strip()]
    return sorted({*filled[:_NUM_EDGE_LINES], *filled[-_NUM_EDGE_LINES:]})


def _running_keys(line: str, page: int) -> list[str]:
    """The line itself, and the line with its number, if it may be the page's, written relative to the page.

    `Question 5` on the fifth page is content: one word and a number make no header.
    """
    text = " ".join(line.split())
    keys = [] if text.isdigit() else [text]
    for match in re.finditer(r"(?<!\d)\d{1,4}(?!\d)", text):
        before, after = text[: match.start()], text[match.end() :]
        others = _WORD_REST.findall(before + after)
        at_edge = not _ALNUM.search(before) or not _ALNUM.search(after)
        if all(map(_PAGE_WORD.fullmatch, others)) or (at_edge and len(others) > 1):
            keys.append(f"{before}\0{int(match.group()) - page}{after}")
    return keys


def _lines(pages: Iterable[str]) -> list[_Line]:
    lines: list[_Line] = []
    for number, page in enumerate(pages):
        on_page: list[_Line] = []
        blank = False
        for raw in _DROP_CAP.sub(r"\1\2", page).split("\n"):
            if text := " ".join(raw.split()):
                on_page.append(_Line(page=number, text=text, after_blank=blank, spaced=raw[-1].isspace()))
            blank = not text
        lines += _measured(on_page)
    return lines


def _measured(lines: list[_Line]) -> list[_Line]:
    """Tell full lines from short ones, by their neighbours within three lines and by the page.

    Where hardly any neighbour begins in lower case, as in a title or a receipt, only a line as long as most
    of a broad page is full.
    """
    lengths = [len(line.text) for line in lines]
    page_width = sorted(lengths)[int(0.8 * len(lengths))] if lengths else 0
    out = []
    for i, line in enumerate(lines):
        # The second longest: one overlong caption must not make a column look short.
        width = sorted(lengths[max(0, i - 3) : i + 4])[-2:][0]
        num_inner = sum(near.text[0].isalpha() and not near.text[0].isupper() for near in lines[max(0, i - 3) : i + 4])
        at_margin = page_width >= _BROAD_PAGE and lengths[i] >= 0.9 * page_width
        is_full = lengths[i] >= _FULL_LINE * width and (num_inner >= 2 or at_margin)
        out.append(replace(line, width=width, is_full=is_full))
    return out


def _separator(previous: _Line, line: _Line) -> str:
    """What stands between two lines: nothing or a space within a paragraph, else one or two newlines."""
    if _HEADING_MARK.match(previous.text) or _HEADING_MARK.match(line.text):
        return "\n\n"
    if _CELLS in previous.text or _CELLS in line.text:
        return "\n" if _CELLS in previous.text and _CELLS in line.text else "\n\n"
    ended = bool(_SENTENCE_END.search(previous.text))
    glue = _glue(previous, line)
    if _continues(previous, line, ended=ended):
        return glue
    if not (_ALNUM.search(previous.text) and _ALNUM.search(line.text)):
        return "\n"  # a rule drawn with dashes
    is_item = bool(_NEW_BLOCK.match(line.text)) or bool(
        _NUMBERED.match(line.text) and (not previous.is_full or _BLOCK_END.search(previous.text))
    )
    if is_item and not line.after_blank:
        return "\n"
    if line.after_blank or (ended and _FOOTNOTE.match(line.text)):
        return "\n\n"
    if line.page != previous.page:
        return glue if _OPEN_END.search(previous.text) or (glue == "" and previous.is_full and not ended) else "\n\n"
    if not previous.is_full:
        return "\n" if not ended and len(line.text) < _HEADING * max(line.width, 60) else "\n\n"
    is_heading = ended and len(line.text) < _HEADING * line.width and not _BLOCK_END.search(line.text)
    return "\n\n" if is_heading and not line.text[0].islower() else glue


def _continues(previous: _Line, line: _Line, *, ended: bool) -> bool:
    """True where a hyphen or the first letter alone shows that the sentence goes on."""
    if _HYPHEN_END.search(previous.text) and line.text[0].isalnum() and not line.after_blank:
        return True
    if not line.text[0].islower() or _NEW_BLOCK.match(line.text):
        return False
    return not ended or (previous.is_full and not line.after_blank and line.page == previous.page)


def _glue(previous: _Line, line: _Line) -> str:
    if _UNSPACED.match(previous.text[-1]) and _UNSPACED.match(line.text[0]) and not previous.spaced:
        return ""
    last_word = previous.text.split()[-1]
    if re.match(r"(https?://|www\.)", last_word) and last_word[-1] in "/_-=&?":
        return ""
    return " "


def _hyphen(previous: str, following: str, words: Counter[str]) -> tuple[bool, str]:
    """Decide on the hyphen at the end of a line: (whether it stays, what follows it).

    It goes only between lower-case letters, where the document does not write the word with a hyphen, and
    where neither side looks like a word of a compound.
    """
    broken, rest = _BROKEN_WORD.search(previous), _WORD_REST.match(following)
    if not broken or not rest:
        return True, "" if _HYPHEN_END.search(previous) and following[0].isalnum() else " "
    head, tail = broken["head"], rest.group()
    if _CONJUNCTIONS.fullmatch(tail):
        return True, " "
    joined, hyphenated = (head + tail).lower(), f"{head}-{tail}".lower()
    if words[joined] != words[hyphenated]:
        return words[hyphenated] > words[joined], ""
    if broken["lead"] or min(len(head), len(tail)) < 2 or not (head[1:] + tail).islower():
        return True, ""
    is_compound = min(len(head), len(tail)) >= 3 and len(joined) >= 8 and words[head.lower()] > 0 and words[tail] > 0
    has_prefix = _HYPHENATED.fullmatch(head.lower()) and not _SUFFIXES.fullmatch(tail)
    return is_compound or bool(has_prefix), ""
