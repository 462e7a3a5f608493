"""QASPER: research papers with questions, whose evidence is whole paragraphs.

Holds the official form, rows of the hub, a csv of papers, and a list of questions over their evidence alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.datasets.context import Answer, Context, Paragraph, QAItem, distinct, join_paragraphs, locate
from training.datasets.files import Reading, read_data

Row = Mapping[str, Any]


def parse_qasper(path: Path, reading: Reading) -> Iterator[Context]:
    """Read papers by id (official), rows of papers, a csv of papers, or questions with their evidence."""
    data = read_data(path)
    if isinstance(data, dict) and "full_text" not in data:
        yield from (_paper({**paper, "id": key}, reading) for key, paper in data.items())
        return
    rows = [data] if isinstance(data, dict) else data
    if rows and "full_text" in rows[0]:
        yield from (_paper(row, reading) for row in rows)
    elif rows and "evidence" in rows[0]:
        yield from _evidence_only(rows, reading)
    else:
        yield from _from_csv(rows, reading)


def _paper(paper: Row, reading: Reading) -> Context:
    qas = [_columns_to_question(q) for q in _rows(paper["qas"])]
    quoted = {line.strip() for qa in qas for answer in qa["answers"] for line in answer["evidence"]}
    sections = [(s["section_name"] or "", s["paragraphs"]) for s in _rows(paper["full_text"])]
    bodies = [("Abstract", paper["abstract"] or "")] + [
        (heading if number == 0 else "", body)
        for heading, paragraphs in sections
        for number, body in enumerate(paragraphs)
    ]
    parts = [(heading, body.strip(), body.strip() in quoted) for heading, body in bodies if body.strip()]
    text, paragraphs = join_paragraphs(parts)
    return Context(
        dataset=reading.name,
        context_id=str(paper["id"]),
        title=paper["title"] or "",
        text=text,
        questions=tuple(item for qa in qas if (item := _question(text, paragraphs, qa, reading))),
        mode=reading.mode,
        paragraphs=paragraphs,
    )


def _rows(value: Any) -> Iterable[Row]:
    """Turn columns, as the hub has them, into rows."""
    if not isinstance(value, Mapping):
        return value
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def _columns_to_question(qa: Row) -> dict[str, Any]:
    answers = qa["answers"]["answer"] if isinstance(qa["answers"], Mapping) else [a["answer"] for a in qa["answers"]]
    return {"id": qa["question_id"], "question": qa["question"], "answers": answers}


def _question(text: str, paragraphs: Sequence[Paragraph], qa: Row, reading: Reading) -> QAItem | None:
    """Read a question; it is impossible where most annotators found no answer."""
    given = list(qa["answers"])
    answerable = [a for a in given if not a["unanswerable"]]
    is_impossible = 2 * len(answerable) < len(given)
    answers = () if is_impossible else distinct(a for a in map(_reference(text), answerable) if a.text)
    if not answers and not is_impossible:
        reading.dropped["no_answer"] += 1
        return None
    lines = {line.strip() for a in answerable for line in a["evidence"] if not line.startswith("FLOAT SELECTED")}
    return QAItem(
        question_id=str(qa["id"]),
        question=qa["question"].strip(),
        answers=answers,
        is_impossible=is_impossible,
        question_type=None if is_impossible else "evidence_grounded",
        evidence=() if is_impossible else tuple(_ranges(text, paragraphs, lines)),
    )


def _reference(text: str) -> Any:
    """Return the reading of an annotator's answer, with the precedence of the official evaluation."""

    def read(answer: Row) -> Answer:
        spans = [span.strip() for span in answer["extractive_spans"] or () if span.strip()]
        if spans:
            return locate(text, spans[0]) if len(spans) == 1 else Answer(text=", ".join(spans))
        if answer["free_form_answer"]:
            return locate(text, answer["free_form_answer"].strip())
        return Answer(text={True: "Yes", False: "No", None: ""}[answer["yes_no"]])

    return read


def _ranges(text: str, paragraphs: Sequence[Paragraph], lines: set[str]) -> Iterator[tuple[int, int]]:
    for paragraph in paragraphs:
        if text[paragraph.char_start : paragraph.char_end] in lines:
            yield paragraph.char_start, paragraph.char_end


def _evidence_only(rows: Iterable[Row], reading: Reading) -> Iterator[Context]:
    """Read questions over their evidence; a rule of dashes parts the headings (`A ::: B`) from the paragraph."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["evidence"].strip(), []).append(row)
    for number, (evidence, group) in enumerate(grouped.items()):
        heading, rule, body = evidence.partition("\n-----\n")
        text, paragraphs = join_paragraphs([(heading, body, True) if rule else ("", evidence, True)])
        items = [(f"{row['paper_idx']}-{row['example_idx']}", row["question"], row["answer"]) for row in group]
        yield Context(
            dataset=reading.name,
            context_id=f"evidence-{number}",
            title=group[0]["title"],
            text=text,
            questions=tuple(_plain(text, *item, evidence=paragraphs) for item in items),
            mode=reading.mode,
            paragraphs=paragraphs,
        )


def _from_csv(rows: Iterable[Row], reading: Reading) -> Iterator[Context]:
    """Read papers as tab-separated paragraphs; questions whose answer is "Unacceptable" were never answered."""
    for number, row in enumerate(rows):
        title, *parts = row["paper"].split("\t")
        text, paragraphs = join_paragraphs(("", part.strip(), True) for part in parts if part.strip())
        pairs = list(zip(ast.literal_eval(row["questions"]), ast.literal_eval(row["answers"]), strict=True))
        usable = [(f"{number}-{i}", q, a) for i, (q, a) in enumerate(pairs) if a != "Unacceptable"]
        reading.dropped["unacceptable"] += len(pairs) - len(usable)
        yield Context(
            dataset=reading.name,
            context_id=f"paper-{number}",
            title=title.strip(),
            text=text,
            questions=tuple(_plain(text, *item) for item in usable),
            mode=reading.mode,
            paragraphs=paragraphs,
        )


def _plain(text: str, question_id: str, question: str, answer: str, *, evidence: Sequence[Paragraph] = ()) -> QAItem:
    return QAItem(
        question_id=question_id,
        question=question.strip(),
        answers=(locate(text, answer.strip()),),
        question_type="evidence_grounded",
        evidence=tuple((p.char_start, p.char_end) for p in evidence),
    )
