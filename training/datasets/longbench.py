"""LongBench and its relatives (LongBench-E, MiniLongBench): long contexts of other sets, for evaluation only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.datasets.context import Context, QAItem, distinct, locate
from training.datasets.files import Reading, read_data

# Question-answering subsets, and the family of sets that each was drawn from.
FAMILIES = {
    "2wikimqa": "2wikimultihopqa",
    "hotpotqa": "hotpotqa",
    "multifieldqa_en": "multifieldqa",
    "multifieldqa_zh": "multifieldqa",
    "musique": "musique",
    "narrativeqa": "narrativeqa",
    "qasper": "qasper",
    "triviaqa": "triviaqa",
}
MODES = {"2wikimqa": "multi_hop", "hotpotqa": "multi_hop", "musique": "multi_hop", "qasper": "scientific"}


def parse_longbench(path: Path, reading: Reading) -> Iterator[Context]:
    """Read records; `dataset` of each context is `longbench/SUBSET`, and subsets that ask nothing are left out."""
    for row in read_data(path):
        subset = row["dataset"].removesuffix("_e")
        if subset not in FAMILIES:
            reading.dropped["not_question_answering"] += 1
            continue
        text = row["context"]
        yield Context(
            dataset=f"{reading.name}/{subset}",
            context_id=row["_id"],
            title="",
            text=text,
            questions=(
                QAItem(
                    question_id=row["_id"],
                    question=row["input"].strip(),
                    answers=distinct(locate(text, answer) for answer in row["answers"]),
                ),
            ),
            mode=MODES.get(subset, reading.mode),
        )
