"""Rows and folders of runs, written by hand for the tests of what is made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.bench.samples import Row


def row(
    sample_id: str, f1: float, *, prediction: str = "Lisbon", ungated: tuple[str, float] | None = None, **more: Any
) -> Row:
    """A row of a suite `squad` and a system `doc2atom` with one F1 for every score.

    Args:
        ungated: What the model says without the gate, with its F1: the row is one that the gate refused.
    """
    if ungated is not None:
        text, score = ungated
        more |= {"refused_by": "gate", "extra": {"ungated": {"prediction": text, "scores": {"f1": score}}}}
        prediction, f1 = "unanswerable", 0.0
    given = {"suite": "squad", "system": "doc2atom", "kind": "answerable", "references": ("Lisbon",)}
    scores = {"f1": f1, "rouge_l": f1, "em": float(f1 == 1.0), "official": f1}
    return Row(
        sample_id=sample_id, question="Which city?", prediction=prediction, **{**given, "scores": scores, **more}
    )


def write_run(folder: Path, rows: Sequence[Row], **header: Any) -> Path:
    """Write the folder of a run as the runner leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"command": "d2a bench squad", "protocol": "paper", "seed": 0, "bank": "document", "k": None}
    (folder / "run.json").write_text(json.dumps({**given, **header}), "utf-8")
    lines = [json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in rows]
    (folder / "predictions.jsonl").write_text("".join(lines), "utf-8")
    return folder
