"""A tiny preset, two articles as a suite, and requests over them, for the tests of the benchmark's runner."""

from __future__ import annotations

import json
from pathlib import Path

import training.bench.run
from tests.models.worlds import base_folder, write_checkpoint, write_preset
from training.bench.bank import SuiteBank
from training.bench.run import BenchRequest
from training.bench.samples import Sample, Suite
from training.datasets.context import Context, QAItem, locate

TOWN = "Ilse Kant was born in Marn. She built nine bridges there in 1920. The town of Marn burned in 1953."
HARBOUR = "The harbour of Marn was dug in 1802. Ships carried wool to the north."
ZOO = "Otters live in lake Tor. The zoo keeps forty otters. Visitors feed the otters at noon."
ASKED = (
    (0, "Who was born in Marn?", "Ilse Kant"),
    (0, "When did Marn burn?", "1953"),
    (1, "What did ships carry?", "wool"),
    (2, "Where do otters live?", "lake Tor"),
    (2, "How many otters does the zoo keep?", "forty"),
)


def small_suite(name: str = "squad", asked: tuple[tuple[int, str, str], ...] = ASKED) -> Suite:
    """Return a suite over two passages of one article and one of another, one sample a question.

    Args:
        asked: `(document, question, answer)`; a question without an answer is impossible.
    """
    texts, titles = (TOWN, HARBOUR, ZOO), ("Marn", "Marn", "Otter")
    items = [
        QAItem(
            question_id=f"q{number}",
            question=question,
            answers=(locate(texts[document], answer),) if answer else (),
            is_impossible=not answer,
        )
        for number, (document, question, answer) in enumerate(asked)
    ]
    contexts = [
        Context(
            dataset="squad",
            context_id=f"c{number}",
            title=title,
            text=text,
            questions=tuple(item for item, (document, _, _) in zip(items, asked, strict=True) if document == number),
            mode="extractive",
        )
        for number, (text, title) in enumerate(zip(texts, titles, strict=True))
    ]
    samples = [
        Sample(
            sample_id=item.question_id,
            document=document,
            item=item,
            references=(answer,) if answer else (),
            kind="answerable" if answer else "human",
        )
        for item, (document, _, answer) in zip(items, asked, strict=True)
    ]
    return Suite(
        name=name,
        dataset="squad",
        metric="squad",
        contexts=tuple(contexts),
        samples=tuple(samples),
        num_total=len(samples),
        is_complete=True,
    )


def request(folder: Path, **changes: object) -> BenchRequest:
    """Return a request for a tiny memory whose preset and checkpoint lie in `folder`."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        write_checkpoint(checkpoint, "llama")
    settings = {
        "suites": ("squad",),
        "model": str(write_preset(folder, "llama")),
        "checkpoint": checkpoint,
        "base_path": base_folder("llama"),
        "device": "cpu",
        "out": folder / "out",
    }
    return BenchRequest(**{**settings, **changes})


def rows_of(folder: Path) -> list[dict]:
    """Return the rows of a run as they stand in its file."""
    return [json.loads(line) for line in (folder / "predictions.jsonl").read_text("utf-8").splitlines()]


def bank_of(base, network, suite: Suite | None = None, *, kind: str = "document", top_k: int = 2) -> SuiteBank:
    """Return a bank of a small suite."""
    return SuiteBank(base, network, suite or small_suite(), kind=kind, top_k=top_k)


def with_suites(monkeypatch, *suites: Suite) -> None:
    """Let runs load these suites, whatever they ask for."""
    monkeypatch.setattr(training.bench.run, "load_suites", lambda request: list(suites))
