"""Official forms of evaluation sets that the loaders of `training.datasets` do not read, brought into those they do.

Holds NarrativeQA as its authors' tables, and DROP as the columns of the hub's faithful copy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.datasets.context import Context
from training.datasets.drop import parse_drop
from training.datasets.files import Reading, read_data
from training.datasets.stories import parse_narrativeqa

Row = Mapping[str, Any]


def rows_of(value: Any) -> Iterable[Row]:
    """Turn columns, as the hub has lists of rows, into the rows."""
    if not isinstance(value, Mapping):
        return value
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]


def drop_passages(path: Path) -> list[tuple[str, list[Row]]] | None:
    """Return DROP's passages with their questions; None of prompts, which have lost the form of their answers."""
    data = read_data(path)
    if isinstance(data, Mapping):
        return [(value["passage"], value["qa_pairs"]) for value in data.values()]
    if data and "ref_text" in data[0]:
        return None
    return [(row["passage"], [_with_rows(row)]) for row in data]


def _with_rows(row: Row) -> Row:
    return {**row, "validated_answers": rows_of(row["validated_answers"])} if "validated_answers" in row else row


def parse_drop_copies(path: Path, reading: Reading) -> Iterator[Context]:
    """Read DROP in any form, columns of validated answers among them."""
    rows = read_data(path) if path.suffix == ".parquet" else None
    if not rows or "validated_answers" not in rows[0]:
        yield from parse_drop(path, reading)
        return
    official: dict[str, dict[str, Any]] = {}
    for row in map(_with_rows, rows):
        passage = official.setdefault(row["section_id"], {"passage": row["passage"], "qa_pairs": []})
        passage["qa_pairs"].append({key: row[key] for key in ("query_id", "question", "answer", "validated_answers")})
    with _written("drop_dataset_dev.json", official) as rewritten:
        yield from parse_drop(rewritten, reading)


def parse_narrativeqa_copies(path: Path, reading: Reading) -> Iterator[Context]:
    """Read NarrativeQA in any form, the test questions of `qaps.csv` with the summaries beside it among them."""
    if path.name != "qaps.csv":
        yield from parse_narrativeqa(path, reading)
        return
    beside = path.parent / "third_party" / "wikipedia" / "summaries.csv"
    reading.files.append(beside)
    summaries = {row["document_id"]: row["summary"].strip() for row in read_data(beside)}
    rows = [
        {
            "document": {"summary": {"text": summaries[row["document_id"]]}},
            "question": {"text": row["question"]},
            "answers": [{"text": row["answer1"]}, {"text": row["answer2"]}],
        }
        for row in read_data(path)
        if row["set"] == "test"
    ]
    with _written("test.json", rows) as rewritten:
        yield from parse_narrativeqa(rewritten, reading)


@contextmanager
def _written(name: str, data: Any) -> Iterator[Path]:
    """Write data to a file that lasts as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(json.dumps(data), "utf-8")
        yield path
