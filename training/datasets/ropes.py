"""ROPES: a background, a situation, and questions that apply the one to the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from training.datasets.context import Context, QAItem, distinct, join_paragraphs, locate
from training.datasets.files import Reading, read_data, stem

BACKGROUND, SITUATION = "Background", "Situation"


def parse_ropes(path: Path, reading: Reading) -> Iterator[Context]:
    """Read the official form or rows of the hub; equal situations over the same background are one context."""
    data = read_data(path)
    if isinstance(data, dict):
        rows = ({**p, "qas": p["qas"]} for article in data["data"] for p in article["paragraphs"])
    else:
        rows = ({**row, "qas": [row]} for row in data)
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["background"].strip(), row["situation"].strip()), []).extend(row["qas"])
    for number, ((background, situation), qas) in enumerate(grouped.items()):
        parts = [(BACKGROUND, background, True), (SITUATION, situation, True)]
        text, paragraphs = join_paragraphs(part for part in parts if part[1])
        yield Context(
            dataset=reading.name,
            context_id=f"{stem(path)}-{number}",
            title="",
            text=text,
            questions=tuple(_questions(text, qas)),
            mode=reading.mode,
            paragraphs=paragraphs,
        )


def _questions(text: str, qas: Iterable[dict[str, Any]]) -> Iterator[QAItem]:
    for qa in qas:
        given = qa["answers"]
        texts = given["text"] if isinstance(given, dict) else [answer["text"] for answer in given]
        yield QAItem(
            question_id=str(qa["id"]),
            question=qa["question"].strip(),
            answers=distinct(locate(text, words.strip()) for words in texts),
            question_type="causal",
        )
