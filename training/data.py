"""What `training.prepare` makes the records of the first checkpoint with: SQuAD's form, by distant supervision.

Holds reading, gold atoms from answer spans, and de-duplication against an evaluation set. A context is decomposed
by an atomizer like any document; no label reaches an atom. All other training reads sets with `training.datasets`
and annotates them with `training.annotation`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.atomizer import Atomizer
from models.atoms import AnnotationRecord, Atom, Question
from models.documents import Document, Page
from training.records import DataError

NGRAM = 13


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A context with its questions, as the source has them.

    Args:
        questions: `(id, question, answers as (text, char_start), is_impossible)`.
    """

    title: str
    context: str
    questions: tuple[tuple[str, str, tuple[tuple[str, int], ...], bool], ...]


def read_squad(path: Path) -> Iterator[Passage]:
    """Read passages from SQuAD JSON (1.1, 2.0, SQuADShifts) or a flat list of questions with contexts.

    Raises:
        DataError: Missing file, or neither form.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist", hint="Pass the folder of the data with --data") from error
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if isinstance(data, list):
        yield from _flat_passages(data)
        return
    if "data" not in data:
        raise DataError(f"{path} is not in SQuAD's format: it has no key 'data'")
    for article in data["data"]:
        for paragraph in article["paragraphs"]:
            yield Passage(
                title=clean_title(article.get("title", "")),
                context=paragraph["context"],
                questions=tuple(_question(q) for q in paragraph["qas"]),
            )


def _question(qa: dict[str, Any]) -> tuple[str, str, tuple[tuple[str, int], ...], bool]:
    answers = tuple(dict.fromkeys((a["text"], int(a["answer_start"])) for a in qa.get("answers", ())))
    return str(qa["id"]), qa["question"].strip(), answers, bool(qa.get("is_impossible", not answers))


def _flat_passages(rows: list[dict[str, Any]]) -> Iterator[Passage]:
    by_context: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_context.setdefault(row["context"], []).append(row)
    for number, (context, group) in enumerate(by_context.items()):
        questions = tuple(
            (f"{number}-{i}", row["question"].strip(), ((row["answer"], context.find(row["answer"])),), False)
            for i, row in enumerate(group)
            if row["answer"] in context
        )
        yield Passage(title="", context=context, questions=questions)


def clean_title(title: str) -> str:
    """Return an article's title in plain words; machine-made names (`ec0`, `dev_12`) become empty."""
    words = title.replace("_", " ").strip()
    return "" if re.fullmatch(r"[a-z]{0,6} ?\d+", words) or re.search(r"s\d+ e\d+", words) else words


def annotate(passage: Passage, atomizer: Atomizer) -> AnnotationRecord:
    """Decompose a passage and find the gold atoms: those whose span holds a reference answer's beginning.

    An answer that crosses atoms has both as gold. Human unanswerable questions become irrelevant ones.
    """
    page = Page(index=0, label="1", char_start=0, char_end=len(passage.context))
    document = Document(source="-", title=passage.title, media_type="text/plain", text=passage.context, pages=(page,))
    result = atomizer.atomize(document)
    questions = [
        Question(
            question_id=question_id,
            question=question,
            answers=tuple(dict.fromkeys(text for text, _ in answers)),
            gold_atom_ids=_gold(result.atoms, answers),
            is_irrelevant=impossible,
            question_type="irrelevant" if impossible else "single_hop",
        )
        for question_id, question, answers, impossible in passage.questions
    ]
    return AnnotationRecord(
        context=passage.context,
        title=passage.title,
        atoms=result.atoms,
        qa_pairs=tuple(questions),
        annotation_meta=result.meta,
    ).validated()


def _gold(atoms: Sequence[Atom], answers: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    spans = [(start, start + len(text)) for text, start in answers]
    return tuple(a.atom_id for a in atoms if any(a.char_start < stop and start < a.char_end for start, stop in spans))


def without_overlap(passages: Iterable[Passage], held_out: Iterable[str]) -> tuple[list[Passage], int]:
    """Drop passages that share a 13-gram of words with any held-out context, and exact duplicates.

    Returns:
        What is left, merging the questions of equal contexts, and how many passages were dropped.
    """
    forbidden = set().union(*(_ngrams(text) for text in held_out))
    kept: dict[str, Passage] = {}
    dropped = 0
    for passage in passages:
        if forbidden & _ngrams(passage.context):
            dropped += 1
        elif (known := kept.get(passage.context)) is not None:
            merged = dict.fromkeys((*known.questions, *passage.questions))
            seen = {q[1]: q for q in reversed(merged)}
            kept[passage.context] = replace(
                known, title=known.title or passage.title, questions=tuple(reversed(seen.values()))
            )
        else:
            kept[passage.context] = passage
    return list(kept.values()), dropped


def _ngrams(text: str) -> set[int]:
    words = re.findall(r"\w+", text.casefold())
    return {hash(tuple(words[i : i + NGRAM])) for i in range(max(1, len(words) - NGRAM + 1))}
