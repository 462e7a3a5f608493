"""The references of a set's questions as its official evaluation has them.

A context keeps the answers that training can use; here are those that a prediction is compared with: all of them,
several spans each by itself, with the kind of answer where the evaluation reports scores by kind. A reader is given a
file, and returns what tells the references of a question of that file.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.bench.suites.forms import drop_passages, rows_of
from training.datasets.context import Context, QAItem, occurrences
from training.datasets.files import read_data

NOT_ANSWERED = "Unanswerable"
_NUMBER = re.compile(r"[\d.,]+")
_DATE = re.compile(
    r"(\d{1,2} )?(January|February|March|April|May|June|July|August|September|October|November|December)( \d{1,4})?"
)
_HUB_NOTE = "validators' answers are mixed into one list, so that references of several spans are approximate"
_JOINED_NOTE = 'types of answers are lost: references of several spans are parted at " and ", dates told by their form'


@dataclass(frozen=True, kw_only=True)
class References:
    """What a prediction is compared with.

    Args:
        texts: Alternatives; none of a question without an answer.
        spans: The alternatives as their parts, where the metric aligns parts.
        answer_type: Of the first alternative.
        types: Of each alternative, where they differ.
    """

    texts: tuple[str, ...]
    spans: tuple[tuple[str, ...], ...] = ()
    answer_type: str | None = None
    types: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReferenceFile:
    """The references of a file.

    Args:
        of: Tells those of a question of a context of the file.
        note: What the file leaves open.
    """

    of: Callable[[Context, QAItem], References]
    note: str = ""


ReferenceReader = Callable[[Path], ReferenceFile]


def plain_answers(path: Path) -> ReferenceFile:
    """Take all answers of a question as alternatives."""
    return ReferenceFile(of=lambda context, item: References(texts=tuple(answer.text for answer in item.answers)))


def first_answer(path: Path) -> ReferenceFile:
    """Take the first answer alone, as the evaluation of ROPES does."""
    return ReferenceFile(of=lambda context, item: References(texts=tuple(a.text for a in item.answers[:1])))


def read_summaries(path: Path) -> ReferenceFile:
    """Take all answers of NarrativeQA, of which copies as JSON hold tokenised text."""
    is_published = path.suffix in (".csv", ".parquet")
    return ReferenceFile(of=plain_answers(path).of, note="" if is_published else "tokenised text")


def read_aliases(path: Path) -> ReferenceFile:
    """Add to the answer of 2WikiMultihopQA the names that `id_aliases.json` beside the file has for its entity."""
    beside = path.with_name("id_aliases.json")
    if not beside.exists():
        return ReferenceFile(of=plain_answers(path).of, note="without the aliases of id_aliases.json")
    names = {row["Q_id"]: (*row["aliases"], *row["demonyms"]) for row in read_data(beside)}
    entities = {str(row["_id"]): row.get("answer_id") for row in read_data(path)}

    def of(context: Context, item: QAItem) -> References:
        aliases = names.get(entities[item.question_id], ())
        return References(texts=tuple(dict.fromkeys((*(a.text for a in item.answers), *aliases))))

    return ReferenceFile(of=of)


def read_quoref(path: Path) -> ReferenceFile:
    """Take the answers of a question together, as spans of one reference."""
    data = read_data(path)
    if not isinstance(data, Mapping):  # rows of the hub
        spans = {str(row["id"]): row["answers"]["text"] for row in data}
    else:
        qas = (qa for article in data["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"])
        spans = {str(qa["id"]): [answer["text"] for answer in qa["answers"]] for qa in qas}

    def of(context: Context, item: QAItem) -> References:
        parts = tuple(spans[item.question_id])
        return _in_parts([("span" if len(parts) == 1 else "spans", parts)])

    return ReferenceFile(of=of)


def read_drop(path: Path) -> ReferenceFile:
    """Read DROP's answer and its validators', each a number, spans or a date, as far as the file tells them."""
    passages = drop_passages(path)
    if passages is None:
        return ReferenceFile(of=_from_joined, note=_JOINED_NOTE)
    asked: dict[tuple[str, str], deque[Mapping[str, Any]]] = defaultdict(deque)
    for passage, qas in passages:
        for qa in qas:
            asked[passage.strip(), qa["question"].strip()].append(qa)
    is_mixed = any("answers_spans" in qa for _, qas in passages for qa in qas)

    def of(context: Context, item: QAItem) -> References:
        # Equal questions about a passage come in the order of the file.
        qa = asked[context.text, item.question].popleft()
        given = (
            _from_hub(qa["answers_spans"])
            if is_mixed
            else map(_typed, (qa["answer"], *(qa.get("validated_answers") or ())))
        )
        return _in_parts(reference for reference in given if reference)

    return ReferenceFile(of=of, note=_HUB_NOTE if is_mixed else "")


def _typed(answer: Mapping[str, Any]) -> tuple[str, tuple[str, ...]] | None:
    """Read an official answer in the order of the official evaluation: a number, else spans, else a date."""
    if answer.get("number"):
        return "number", (str(answer["number"]),)
    if spans := tuple(answer.get("spans") or ()):
        return ("span" if len(spans) == 1 else "spans"), spans
    date = answer.get("date") or {}
    words = " ".join(str(date[part]) for part in ("day", "month", "year") if date.get(part))
    return ("date", (words,)) if words else None


def _from_hub(answers: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    spans = [text for text, kind in zip(answers["spans"], answers["types"], strict=True) if kind == "span"]
    for text, kind in zip(answers["spans"], answers["types"], strict=True):
        yield ("spans" if kind == "span" and len(set(spans)) > 1 else kind), (text,)


def _from_joined(context: Context, item: QAItem) -> References:
    return _in_parts(_told(context.text, answer.text, answer.char_start is None) for answer in item.answers)


def _told(passage: str, text: str, is_absent: bool) -> tuple[str, tuple[str, ...]]:
    """Tell what a reference was from its words: one that is not in the passage may be several spans or a date."""
    if _NUMBER.fullmatch(text):
        return "number", (text,)
    if is_absent and _DATE.fullmatch(text):
        return "date", (text,)
    parts = tuple(part.strip() for part in text.split(" and ") if part.strip())
    return ("spans", parts) if is_absent and len(parts) > 1 else ("span", (text,))


def _in_parts(given: Iterable[tuple[str, tuple[str, ...]]]) -> References:
    kinds: dict[tuple[str, ...], str] = {}
    for kind, parts in given:
        kinds.setdefault(parts, kind)
    return References(
        texts=tuple(" and ".join(parts) for parts in kinds),
        spans=tuple(kinds),
        answer_type=next(iter(kinds.values()), None),
        types=tuple(kinds.values()),
    )


def read_qasper(path: Path) -> ReferenceFile:
    """Read every annotator's answer with its type; "Unanswerable" is one where another annotator had an answer."""
    data = read_data(path)
    papers = list(data.values()) if isinstance(data, Mapping) and "full_text" not in data else data
    papers = [papers] if isinstance(papers, Mapping) else papers
    if papers and "qas" not in papers[0]:
        return ReferenceFile(of=_plain_paper, note="types of answers are told by their form")
    judged = {str(qa["question_id"]): qa["answers"] for paper in papers for qa in rows_of(paper["qas"])}

    def of(context: Context, item: QAItem) -> References:
        answers = judged[item.question_id]
        answers = answers["answer"] if isinstance(answers, Mapping) else [row["answer"] for row in answers]
        kinds: dict[str, str] = {}
        for text, kind in map(_annotated, answers):
            kinds.setdefault(text, kind)
        return References(texts=(), answer_type="none") if set(kinds) == {NOT_ANSWERED} else _of_kinds(kinds)

    return ReferenceFile(of=of)


def _annotated(answer: Mapping[str, Any]) -> tuple[str, str]:
    if answer["unanswerable"]:
        return NOT_ANSWERED, "none"
    if answer["extractive_spans"]:
        return ", ".join(answer["extractive_spans"]), "extractive"
    if answer["free_form_answer"]:
        return answer["free_form_answer"], "abstractive"
    return ("Yes" if answer["yes_no"] else "No"), "boolean"


def _plain_paper(context: Context, item: QAItem) -> References:
    return _of_kinds({answer.text: _kind(context.text, answer.text) for answer in item.answers})


def _kind(paper: str, text: str) -> str:
    if text in ("Yes", "No"):
        return "boolean"
    return "extractive" if any(True for _ in occurrences(paper, text)) else "abstractive"


def _of_kinds(kinds: Mapping[str, str]) -> References:
    return References(texts=tuple(kinds), answer_type=next(iter(kinds.values()), None), types=tuple(kinds.values()))
