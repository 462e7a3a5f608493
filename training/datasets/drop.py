"""DROP: passages full of numbers, and answers that are numbers, dates, or one or several spans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.datasets.context import Answer, Context, QAItem, distinct, join_spans, locate
from training.datasets.files import Reading, read_data, stem

Reference = tuple[Answer, tuple[tuple[int, int], ...], str]


def parse_drop(path: Path, reading: Reading) -> Iterator[Context]:
    """Read the official form, rows of the hub, or prompts `Passage: … Question: …` with their reference text."""
    data = read_data(path)
    if isinstance(data, dict):
        passages = [(key, value["passage"].strip(), value["qa_pairs"]) for key, value in data.items()]
    elif data and "ref_text" in data[0]:
        passages = _by_passage(map(_from_prompt, data), stem(path), reading)
    else:
        passages = _by_passage(data, stem(path), reading)
    for key, text, qas in passages:
        yield Context(
            dataset=reading.name,
            context_id=key,
            title="",
            text=text,
            questions=tuple(_question(text, qa, f"{key}-{number}") for number, qa in enumerate(qas)),
            mode=reading.mode,
        )


def _by_passage(rows: Any, file: str, reading: Reading) -> list[tuple[str, str, list[Mapping[str, Any]]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row is None or not row["passage"].strip():
            reading.dropped["malformed"] += 1
            continue
        grouped.setdefault(row["passage"].strip(), []).append(row)
    return [
        (str(group[0].get("section_id") or f"{file}-{number}"), text, group)
        for number, (text, group) in enumerate(grouped.items())
    ]


def _from_prompt(row: Mapping[str, str]) -> dict[str, Any] | None:
    found = re.fullmatch(r"\s*Passage:(.*)\n\s*Question:(.*?)\s*Answer:\s*", row["context"], re.DOTALL)
    if found is None:
        return None
    passage, question = (part.strip() for part in found.groups())
    return {"passage": passage, "question": question, "references": row["ref_text"].split("|")}


def _question(text: str, qa: Mapping[str, Any], question_id: str) -> QAItem:
    references = _references(text, qa)
    # The first reference is the authors' own; validators may have chosen another type.
    return QAItem(
        question_id=str(qa.get("query_id") or question_id),
        question=qa["question"].strip(),
        answers=distinct(answer for answer, _, _ in references),
        question_type=references[0][2] if references else None,
        evidence=references[0][1] if references else (),
    )


def _references(text: str, qa: Mapping[str, Any]) -> list[Reference]:
    if "references" in qa:
        return [_joined(text, reference.strip()) for reference in qa["references"] if reference.strip()]
    if "answers_spans" in qa:
        spans, types = qa["answers_spans"]["spans"], qa["answers_spans"]["types"]
        return [_hub_reference(text, spans, types)] if spans else []
    given = (qa["answer"], *qa.get("validated_answers", ()))
    return [reference for answer in given if (reference := _typed(text, answer)) is not None]


def _typed(text: str, answer: Mapping[str, Any]) -> Reference | None:
    """Read an official answer: a number, else spans, else a date; the order is that of the official evaluation."""
    if answer.get("number"):
        return _number(text, str(answer["number"]))
    if answer.get("spans"):
        return _spans(text, answer["spans"])
    date = answer.get("date") or {}
    words = " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))
    return (*_alone(text, words), "temporal") if words else None


def _hub_reference(text: str, spans: Sequence[str], types: Sequence[str]) -> Reference:
    """Read a row of the hub, where all answers are one list: exact for training, validators' mixed in for dev."""
    if types[0] == "span":
        return _spans(text, [s for s, t in zip(spans, types, strict=True) if t == "span"])
    return _number(text, spans[0]) if types[0] == "number" else (*_alone(text, spans[0]), "temporal")


def _spans(text: str, spans: Sequence[str]) -> Reference:
    answer, evidence = join_spans(text, (span.strip() for span in spans))
    return answer, evidence, "single_hop" if len(set(spans)) == 1 else "aggregation"


def _joined(text: str, reference: str) -> Reference:
    """Tell what a reference was that lost its type: a number, or spans joined by " and "."""
    if re.fullmatch(r"[\d.,]+", reference):
        return _number(text, reference)
    parts = reference.split(" and ")
    if len(parts) > 1 and locate(text, reference).char_start is None:
        return _spans(text, [part for part in parts if part.strip()])
    return (*_alone(text, reference), "single_hop")


def _alone(text: str, words: str) -> tuple[Answer, tuple[tuple[int, int], ...]]:
    return join_spans(text, [words])


def _number(text: str, number: str) -> Reference:
    """Locate a number only where it can hardly be a coincidence: counted or computed ones occur by chance."""
    found = [m.span() for m in re.finditer(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)", text)]
    if len(found) == 1 and len(number) > 1:
        return Answer(text=number, char_start=found[0][0]), (found[0],), "aggregation"
    return Answer(text=number), (), "aggregation"
