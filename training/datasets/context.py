"""What every loader yields: a context with its questions, as the source has them.

Holds the plain data and the search for an answer in its context. It knows no format, and no atoms: the
annotation of a context is `training.annotation`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace

MODES = ("extractive", "multi_hop", "numeric", "field_lookup", "scientific")

# Chinese and Japanese are written without spaces, so that a word ends between any two of their characters.
CJK = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD_CHARACTER = re.compile(rf"[^\W{CJK}]")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A reference answer.

    Args:
        char_start: Offset in the context's text where the answer occurs; None where it does not, as with
            yes and no, counts and free-form answers.
    """

    text: str
    char_start: int | None = None

    @property
    def span(self) -> tuple[int, int] | None:
        """The character range that the answer takes in the context, or None."""
        return None if self.char_start is None else (self.char_start, self.char_start + len(self.text))


@dataclass(frozen=True, kw_only=True)
class QAItem:
    """A question about a context.

    Args:
        answers: References, any of which is right. An answer of several spans is one reference, its spans joined
            by " and ", and the ranges of the spans are in `evidence`.
        is_impossible: A human wrote the question so that the context does not answer it.
        question_type: One of `models.atoms.QUESTION_TYPES` where the set tells, else None.
        evidence: Character ranges of the context that support the answer, as the set's authors marked them.
    """

    question_id: str
    question: str
    answers: tuple[Answer, ...]
    is_impossible: bool = False
    question_type: str | None = None
    evidence: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph of a context of several.

    Args:
        char_start, char_end: Range of the paragraph's text in the context's, its title left out.
        is_supporting: The authors marked it as needed for the answer.
    """

    title: str
    char_start: int
    char_end: int
    is_supporting: bool


@dataclass(frozen=True, kw_only=True)
class Context:
    """A text with the questions asked about it: what becomes one annotation record.

    Args:
        dataset: Name in `training.datasets.DATASETS`.
        mode: One of `MODES`: which adapter decomposes it.
        paragraphs: Of contexts that come in paragraphs, else empty; each is in `text` below its title.
    """

    dataset: str
    context_id: str
    title: str
    text: str
    questions: tuple[QAItem, ...]
    mode: str
    paragraphs: tuple[Paragraph, ...] = ()

    def __post_init__(self) -> None:
        assert self.mode in MODES, self.mode


def locate(text: str, answer: str, offset: int | None = None) -> Answer:
    """Find an answer in its context.

    Args:
        offset: Where the set says that it begins. Believed if the text agrees, else the nearest occurrence counts.

    Returns:
        The answer with the offset of a whole-word occurrence, its case ignored only where no other is left,
        or with None.
    """
    if offset is not None and offset >= 0 and answer and text.startswith(answer, offset):
        return Answer(text=answer, char_start=offset)
    starts = list(occurrences(text, answer)) or list(occurrences(text, answer, ignore_case=True))
    if not starts:
        return Answer(text=answer)
    return Answer(text=answer, char_start=min(starts, key=lambda start: abs(start - (offset or 0))))


def occurrences(text: str, answer: str, *, ignore_case: bool = False) -> Iterator[int]:
    """Yield the offsets of the whole-word occurrences of an answer."""
    if ignore_case:
        text, answer = _lower(text), _lower(answer)
    start = text.find(answer) if answer else -1
    while start >= 0:
        end = start + len(answer)
        if not _joined(text[start - 1 : start], answer[0]) and not _joined(answer[-1], text[end : end + 1]):
            yield start
        start = text.find(answer, start + 1)


def _lower(text: str) -> str:
    """Lower the case of characters that stay one character, so that offsets hold."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(c if len(c.lower()) > 1 else c.lower() for c in text)


def _joined(left: str, right: str) -> bool:
    """Tell whether two neighbouring characters belong to one word."""
    return all(_WORD_CHARACTER.match(character) for character in (left, right))


def join_spans(text: str, spans: Iterable[str]) -> tuple[Answer, tuple[tuple[int, int], ...]]:
    """Make one reference of the spans that a question asks for together.

    Returns:
        The reference, and the ranges of its spans that occur in the text.
    """
    parts = list(dict.fromkeys(spans))
    if len(parts) == 1:
        answer = locate(text, parts[0])
        return answer, (answer.span,) if answer.span else ()
    found = [locate(text, part).span for part in parts]
    return Answer(text=" and ".join(parts)), tuple(span for span in found if span)


def distinct(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Drop answers that repeat an earlier one's words; the first place counts."""
    found: dict[str, Answer] = {}
    for answer in answers:
        found.setdefault(answer.text, answer)
    return tuple(found.values())


def join_paragraphs(paragraphs: Iterable[tuple[str, str, bool]]) -> tuple[str, tuple[Paragraph, ...]]:
    """Join `(title, text, is_supporting)` into one text, each paragraph below its title.

    Returns:
        The text, and where each paragraph lies in it.
    """
    text, placed = "", []
    for title, body, is_supporting in paragraphs:
        text += ("\n\n" if text else "") + (f"{title}\n" if title else "")
        placed.append(
            Paragraph(title=title, char_start=len(text), char_end=len(text) + len(body), is_supporting=is_supporting)
        )
        text += body
    return text, tuple(placed)


def without_paragraphs(context: Context, places: Container[int]) -> Context:
    """Take paragraphs out of a context; what pointed into them points nowhere, the rest moves along."""
    kept = [p for place, p in enumerate(context.paragraphs) if place not in places]
    text, paragraphs = join_paragraphs(
        (p.title, context.text[p.char_start : p.char_end], p.is_supporting) for p in kept
    )
    pairs = list(zip(kept, paragraphs, strict=True))

    def moved(span: tuple[int, int] | None) -> tuple[int, int] | None:
        for old, new in pairs:
            if span and old.char_start <= span[0] and span[1] <= old.char_end:
                shift = new.char_start - old.char_start
                return span[0] + shift, span[1] + shift
        return None

    questions = []
    for item in context.questions:
        spans = ((answer, moved(answer.span)) for answer in item.answers)
        answers = tuple(replace(answer, char_start=span[0] if span else None) for answer, span in spans)
        evidence = tuple(span for span in map(moved, item.evidence) if span)
        questions.append(replace(item, answers=answers, evidence=evidence))
    return replace(context, text=text, paragraphs=paragraphs, questions=tuple(questions))


def clean_title(title: str | None) -> str:
    """Return an article's title in plain words; machine-made names (`ec0`, `dev_12`) become empty."""
    words = (title or "").replace("_", " ").strip()
    return "" if re.fullmatch(r"[a-z]{0,6} ?\d+", words) or re.search(r"s\d+ e\d+", words) else words
