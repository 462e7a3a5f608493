"""Multi-hop sets: several titled paragraphs, some of which are needed together.

Holds 2WikiMultihopQA and HotpotQA, which share a form, and MuSiQue. Fields that models wrote in some copies
(`qa_pairs`, `explanation`, retrieval results) are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.datasets.context import Answer, Context, Paragraph, QAItem, distinct, join_paragraphs, locate
from training.datasets.files import Reading, read_data, stem

QUESTION_TYPES = {
    "bridge": "multi_hop",
    "compositional": "multi_hop",
    "inference": "multi_hop",
    "comparison": "comparison",
    "bridge_comparison": "comparison",
}


def parse_hotpot(path: Path, reading: Reading) -> Iterator[Context]:
    """Read HotpotQA or 2WikiMultihopQA: pairs of title and sentences, or the columns of the hub."""
    for number, row in enumerate(read_data(path)):
        pairs = _pairs(row.get("context"), "title", "sentences")
        if not pairs:
            reading.dropped["no_context"] += 1
            continue
        facts: dict[str, set[int]] = {}
        for title, sentence in _pairs(row["supporting_facts"], "title", "sent_id"):
            facts.setdefault(title, set()).add(sentence)
        text, paragraphs = join_paragraphs((t, _joined(s), t in facts) for t, s in pairs)
        yield _context(
            reading,
            str(row.get("_id") or row.get("id") or f"{stem(path)}-{number}"),
            row,
            text,
            paragraphs,
            evidence=tuple(_sentences(paragraphs, pairs, facts)),
        )


def parse_musique(path: Path, reading: Reading) -> Iterator[Context]:
    """Read MuSiQue, whose unanswerable questions (in its full version) lack a paragraph that they need."""
    for row in read_data(path):
        text, paragraphs = join_paragraphs(
            (p["title"], p["paragraph_text"], bool(p["is_supporting"])) for p in row["paragraphs"]
        )
        yield _context(
            reading,
            str(row["id"]),
            row,
            text,
            paragraphs,
            evidence=tuple((p.char_start, p.char_end) for p in paragraphs if p.is_supporting),
        )


def _context(
    reading: Reading,
    context_id: str,
    row: Mapping[str, Any],
    text: str,
    paragraphs: tuple[Paragraph, ...],
    *,
    evidence: tuple[tuple[int, int], ...],
) -> Context:
    impossible = not row.get("answerable", True)
    references = () if impossible else (row["answer"], *row.get("answer_aliases", ()))
    question = QAItem(
        question_id=context_id,
        question=row["question"].strip(),
        answers=distinct(_in_support(text, paragraphs, words.strip()) for words in references),
        is_impossible=impossible,
        question_type=QUESTION_TYPES.get(row.get("type", "bridge")),
        evidence=evidence,
    )
    return Context(
        dataset=reading.name,
        context_id=context_id,
        title="",
        text=text,
        questions=(question,),
        mode=reading.mode,
        paragraphs=paragraphs,
    )


def _in_support(text: str, paragraphs: Sequence[Paragraph], words: str) -> Answer:
    """Locate an answer in the last supporting paragraph that has it: hops end there, and others quote it."""
    if words.casefold() in ("yes", "no"):
        return Answer(text=words)
    for paragraph in reversed([p for p in paragraphs if p.is_supporting]):
        found = locate(text[paragraph.char_start : paragraph.char_end], words)
        if found.char_start is not None:
            return Answer(text=words, char_start=paragraph.char_start + found.char_start)
    return locate(text, words)


def _pairs(value: Any, first: str, second: str) -> list[tuple[str, Any]]:
    """Read pairs from a list, from two columns, or from either as a JSON string."""
    value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return list(zip(value[first], value[second], strict=True))
    return [(pair[0], pair[1]) for pair in value or ()]


def _joined(sentences: Sequence[str]) -> str:
    return "".join(_separated(sentences)).strip()


def _separated(sentences: Sequence[str]) -> Iterator[str]:
    """Yield sentences with the space between them, which HotpotQA leaves in front of each and 2Wiki removed."""
    for number, sentence in enumerate(sentences):
        yield sentence if number == 0 or sentence[:1].isspace() else f" {sentence}"


def _sentences(
    paragraphs: Sequence[Paragraph], pairs: Sequence[tuple[str, Sequence[str]]], facts: Mapping[str, set[int]]
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the sentences that the authors marked as supporting facts."""
    for paragraph, (title, sentences) in zip(paragraphs, pairs, strict=True):
        pieces = list(_separated(sentences))
        place = paragraph.char_start - (len("".join(pieces)) - len("".join(pieces).lstrip()))
        for number, piece in enumerate(pieces):
            if number in facts.get(title, ()) and piece.strip():
                start = place + len(piece) - len(piece.lstrip())
                yield start, place + len(piece.rstrip())
            place += len(piece)
