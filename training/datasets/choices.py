"""Sets whose answers are judged rather than found: BoolQ (yes or no) and MultiRC (true and false candidates)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.datasets.context import Answer, Context, QAItem, distinct, locate
from training.datasets.files import Reading, read_data, stem


def parse_boolq(path: Path, reading: Reading) -> Iterator[Context]:
    """Read JSON lines or rows of the hub; questions about the same passage share a context."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in read_data(path):
        grouped.setdefault(row["passage"], []).append(row)
    for number, (text, rows) in enumerate(grouped.items()):
        yield Context(
            dataset=reading.name,
            context_id=f"{stem(path)}-{number}",
            title=rows[0].get("title", ""),
            text=text,
            questions=tuple(
                QAItem(
                    question_id=f"{stem(path)}-{number}-{place}",
                    question=row["question"].strip(),
                    answers=(Answer(text="yes" if row["answer"] else "no"),),
                )
                for place, row in enumerate(rows)
            ),
            mode=reading.mode,
        )


def parse_multirc(path: Path, reading: Reading) -> Iterator[Context]:
    """Read passages as JSON lines, or rows of the hub, one a candidate; the true candidates are the answers."""
    rows = read_data(path)
    nested = bool(rows) and "passage" in rows[0]
    for number, (text, questions) in enumerate(map(_unnested, rows) if nested else _passages(rows)):
        items = [_judged(text, f"{stem(path)}-{number}-{place}", *question) for place, question in enumerate(questions)]
        kept = tuple(item for item in items if item.answers)
        reading.dropped["no_true_candidate"] += len(items) - len(kept)
        yield Context(
            dataset=reading.name,
            context_id=f"{stem(path)}-{number}",
            title="",
            text=text,
            questions=kept,
            mode=reading.mode,
        )


def _unnested(row: dict[str, Any]) -> tuple[str, list[tuple[str, list[str]]]]:
    passage = row["passage"]
    return passage["text"], [
        (q["question"], [a["text"] for a in q["answers"] if a["label"]]) for q in passage["questions"]
    ]


def _passages(rows: Iterable[dict[str, Any]]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    grouped: dict[str, dict[tuple[int, str], list[str]]] = {}
    for row in rows:
        questions = grouped.setdefault(row["paragraph"], {})
        true = questions.setdefault((row["idx"]["question"], row["question"]), [])
        true += [row["answer"]] if row["label"] else []
    return [(text, [(q, true) for (_, q), true in questions.items()]) for text, questions in grouped.items()]


def _judged(text: str, question_id: str, question: str, true: Iterable[str]) -> QAItem:
    return QAItem(
        question_id=question_id,
        question=question.strip(),
        answers=distinct(locate(text, answer.strip()) for answer in true if answer.strip()),
    )
