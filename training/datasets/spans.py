"""Sets in SQuAD's form, and their relatives: a passage, and answers that are spans of it.

Holds SQuAD 1.1 and 2.0, SQuADShifts, Quoref, CMRC 2018, DRCD and PolicyQA (articles, flat lists, or rows of the
hub), Quoref as Super-NaturalInstructions has it, FriendsQA (dialogues) and TimeQA (pages).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from training.datasets.context import Answer, Context, QAItem, clean_title, distinct, locate
from training.datasets.files import Reading, read_data, stem

Row = dict[str, Any]


def parse_squad(path: Path, reading: Reading) -> Iterator[Context]:
    """Read articles `{"data": [...]}` or a list of articles, of rows of the hub, or of flat questions."""
    yield from _passages(read_data(path), path, reading, joint=False)


def _passages(data: Any, path: Path, reading: Reading, *, joint: bool) -> Iterator[Context]:
    rows = data["data"] if isinstance(data, dict) else data
    if rows and "paragraphs" in rows[0]:
        yield from _articles(rows, stem(path), reading, joint=joint)
    else:
        yield from _flat(rows, stem(path), reading, joint=joint)


def _articles(articles: Iterable[Row], file: str, reading: Reading, *, joint: bool) -> Iterator[Context]:
    for number, article in enumerate(articles):
        for place, paragraph in enumerate(article["paragraphs"]):
            text = paragraph["context"]
            yield Context(
                dataset=reading.name,
                context_id=str(paragraph.get("context_id") or paragraph.get("id") or f"{file}-{number}-{place}"),
                title=clean_title(article.get("title")),
                text=text,
                questions=tuple(_questions(text, paragraph["qas"], reading, joint=joint)),
                mode=reading.mode,
            )


def _questions(text: str, qas: Iterable[Row], reading: Reading, *, joint: bool) -> Iterator[QAItem]:
    for qa in qas:
        given = [(a["text"], a.get("answer_start")) for a in qa.get("answers", ())]
        answers, evidence = _references(text, given, joint=joint)
        if given and not answers:
            reading.dropped["answer_not_in_context"] += 1
            continue
        yield QAItem(
            question_id=str(qa["id"]),
            question=qa["question"].strip(),
            answers=answers,
            is_impossible=bool(qa.get("is_impossible", not answers)),
            evidence=evidence,
        )


def _references(
    text: str, given: Sequence[tuple[str, int | None]], *, joint: bool
) -> tuple[tuple[Answer, ...], tuple[tuple[int, int], ...]]:
    """Return the references that are in the text, and their evidence.

    Args:
        joint: The answers are asked for together; else each is right by itself.
    """
    located = distinct(locate(text, words, offset) for words, offset in given)
    if joint:
        return _joint(located)
    return tuple(answer for answer in located if answer.char_start is not None), ()


def _joint(located: tuple[Answer, ...]) -> tuple[tuple[Answer, ...], tuple[tuple[int, int], ...]]:
    spans = tuple(answer.span for answer in located if answer.span)
    if len(located) > 1:
        located = (Answer(text=" and ".join(answer.text for answer in located)),)
    return located, spans


def _flat(rows: Iterable[Row], file: str, reading: Reading, *, joint: bool) -> Iterator[Context]:
    by_text: dict[str, list[Row]] = {}
    for row in rows:
        by_text.setdefault(row["context"], []).append(row)
    for number, (text, group) in enumerate(by_text.items()):
        qas = (_unfold(row, f"{file}-{number}-{place}") for place, row in enumerate(group))
        yield Context(
            dataset=reading.name,
            context_id=f"{file}-{number}",
            title=clean_title(group[0].get("title")),
            text=text,
            questions=tuple(_questions(text, qas, reading, joint=joint)),
            mode=reading.mode,
        )


def _unfold(row: Row, question_id: str) -> Row:
    """Bring a row of the hub (columns of answers) or a flat one (`answer`) into the form of an article's question."""
    if "answer" in row:
        return {"id": question_id, "question": row["question"], "answers": [{"text": row["answer"]}]}
    columns = row["answers"]
    pairs = zip(columns["text"], columns["answer_start"], strict=True)
    return {
        "id": row["id"],
        "question": row["question"],
        "answers": [{"text": text, "answer_start": start} for text, start in pairs],
    }


def parse_quoref(path: Path, reading: Reading) -> Iterator[Context]:
    """Read Quoref's own form or that of Super-NaturalInstructions, whose answers end in a full stop."""
    data = read_data(path)
    if not (isinstance(data, dict) and "Instances" in data):
        yield from _passages(data, path, reading, joint=True)
        return
    by_text: dict[str, list[QAItem]] = {}
    for row in data["Instances"]:
        found = re.fullmatch(r"\s*Passage:(.*?)\s*Question:(.*)", row["input"], re.DOTALL)
        if found is None:
            reading.dropped["malformed"] += 1
            continue
        text, question = (part.strip() for part in found.groups())
        answers, evidence = _joint(distinct(_without_stop(text, output.strip()) for output in row["output"]))
        item = QAItem(question_id=row["id"], question=question, answers=answers, evidence=evidence)
        by_text.setdefault(text, []).append(item)
    for number, (text, items) in enumerate(by_text.items()):
        yield Context(
            dataset=reading.name,
            context_id=f"{stem(path)}-{number}",
            title="",
            text=text,
            questions=tuple(items),
            mode=reading.mode,
        )


def _without_stop(text: str, output: str) -> Answer:
    # "U.S." keeps its full stop where the passage has it followed by more of the sentence.
    kept = locate(text, output)
    stripped = locate(text, output.removesuffix("."))
    return kept if kept.char_start is not None and re.search(r"\.\w+\.$", output) else stripped


def parse_friendsqa(path: Path, reading: Reading) -> Iterator[Context]:
    """Read dialogues, each utterance a line that begins with its speakers.

    An answer is words of an utterance, given by their places, or the speaker.
    """
    for article in read_data(path)["data"]:
        for place, paragraph in enumerate(article["paragraphs"]):
            # The published key ends in a colon.
            text, starts, lines = _dialogue(paragraph["utterances:"])
            yield Context(
                dataset=reading.name,
                context_id=f"{article['title']}-{place}",
                title="",
                text=text,
                questions=tuple(_dialogue_question(text, starts, lines, qa) for qa in paragraph["qas"]),
                mode=reading.mode,
            )


def _dialogue(utterances: Sequence[Row]) -> tuple[str, list[tuple[int, int]], list[str]]:
    text, starts, lines = "", [], []
    for utterance in utterances:
        speakers = ", ".join(s for s in utterance["speakers"] if s != "#NOTE#")
        speakers += ": " if speakers else ""
        starts.append((len(text), len(text) + len(speakers)))
        lines.append(utterance["utterance"])
        text += f"{speakers}{utterance['utterance']}\n"
    return text.rstrip("\n"), starts, lines


def _dialogue_question(text: str, starts: list[tuple[int, int]], lines: list[str], qa: Row) -> QAItem:
    answers = []
    for answer in qa["answers"]:
        line_start, words_start = starts[answer["utterance_id"]]
        words = lines[answer["utterance_id"]].split(" ")
        inner = sum(len(word) + 1 for word in words[: max(answer["inner_start"], 0)])
        offset = line_start if answer["is_speaker"] else words_start + inner
        answers.append(locate(text, answer["answer_text"], offset))
    return QAItem(question_id=qa["id"], question=qa["question"], answers=distinct(answers))


def parse_timeqa(path: Path, reading: Reading) -> Iterator[Context]:
    """Read pages with questions about times; those without targets are unanswerable."""
    by_text: dict[str, list[Row]] = {}
    for row in read_data(path):
        by_text.setdefault(row["context"], []).append(row)
    for text, group in by_text.items():
        yield Context(
            dataset=reading.name,
            context_id=group[0]["idx"].rsplit("#", 2)[0],
            title=group[0]["paragraphs"][0]["title"] if group[0].get("paragraphs") else "",
            text=text,
            questions=tuple(_timed_question(text, row) for row in group),
            mode=reading.mode,
        )


def _timed_question(text: str, row: Row) -> QAItem:
    targets = [target for target in row["targets"] if target]
    offsets = row.get("from") or [None] * len(targets)
    return QAItem(
        question_id=row["idx"],
        question=row["question"],
        answers=distinct(locate(text, target, offset) for target, offset in zip(targets, offsets, strict=False)),
        is_impossible=not targets,
        question_type="temporal",
    )
