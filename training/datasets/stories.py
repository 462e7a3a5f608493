"""Stories: FairytaleQA (sections of tales), NarrativeQA (summaries of books and films)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from training.datasets.context import Context, QAItem, distinct, locate
from training.datasets.files import Reading, read_data, stem

Row = Mapping[str, str]


def parse_fairytaleqa(path: Path, reading: Reading) -> Iterator[Context]:
    """Read a table of the hub, or the questions about a tale next to the tale's sections.

    `questions/SPLIT/TALE-questions.csv` goes with `section-stories/SPLIT/TALE-story.csv`. A question about
    several sections has them all as its context.
    """
    rows: list[Row] = read_data(path)
    if rows and "story_section" in rows[0]:
        placed = [(row["story_name"], row["story_section"], row) for row in rows]
    else:
        tale = path.name.removesuffix("-questions.csv")
        story = path.parents[2] / "section-stories" / path.parent.name / f"{tale}-story.csv"
        reading.files.append(story)
        sections = {row["section"].strip(): row["text"] for row in read_data(story)}
        placed = [(tale, _sections(sections, row), row) for row in rows]
    grouped: dict[tuple[str, str], list[Row]] = {}
    for tale, text, row in placed:
        grouped.setdefault((tale, text.strip()), []).append(row)
    for number, ((tale, text), group) in enumerate(grouped.items()):
        yield Context(
            dataset=reading.name,
            context_id=f"{tale}-{number}",
            title=tale.replace("-", " "),
            text=text,
            questions=tuple(_told(text, f"{tale}-{number}-{place}", row) for place, row in enumerate(group)),
            mode=reading.mode,
        )


def _sections(sections: Mapping[str, str], row: Row) -> str:
    return "\n\n".join(sections[key.strip()].strip() for key in row["cor_section"].split(","))


def _told(text: str, question_id: str, row: Row) -> QAItem:
    given = [row.get(f"answer{n}") or "" for n in range(1, 7)]
    causal = "causal relationship" in (row.get("attribute1") or row.get("attribute") or "")
    return QAItem(
        question_id=question_id,
        question=row["question"].strip(),
        answers=distinct(locate(text, answer.strip()) for answer in given if answer.strip()),
        question_type="causal" if causal else None,
    )


def parse_narrativeqa(path: Path, reading: Reading) -> Iterator[Context]:
    """Read summaries with questions, tokenised (`context.tokens`, `ground_truths`) or as rows of the hub.

    `answers` of the tokenised form are spans that a program chose, not references.
    """
    grouped: dict[str, list[tuple[str, list[str]]]] = {}
    # Rows of the hub repeat the whole book, some 300 kB of it, for each question.
    for row in read_data(path, columns=("document.summary.text", "question.text", "answers")):
        summary, question, answers = _tokenised(row) if "context.tokens" in row else _summarised(row)
        grouped.setdefault(summary, []).append((question, answers))
    for number, (text, questions) in enumerate(grouped.items()):
        yield Context(
            dataset=reading.name,
            context_id=f"{stem(path)}-{number}",
            title="",
            text=text,
            questions=tuple(
                _asked(text, f"{stem(path)}-{number}-{i}", *question) for i, question in enumerate(questions)
            ),
            mode=reading.mode,
        )


def _tokenised(row: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    return row["context.tokens"], row["question.tokens"], row["ground_truths"]


def _summarised(row: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    return row["document"]["summary"]["text"], row["question"]["text"], [answer["text"] for answer in row["answers"]]


def _asked(text: str, question_id: str, question: str, answers: Iterable[str]) -> QAItem:
    return QAItem(
        question_id=question_id,
        question=question.strip(),
        answers=distinct(locate(text, answer.strip()) for answer in answers if answer.strip()),
    )
