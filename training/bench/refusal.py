"""How well a system knows what its bank does not hold, from the rows of a run alone.

Three refusers are told apart: the gate before generation, the model in its own words, and both together. A refusal
costs nothing on its own, so what is refused stands beside what is still answered, and a base without an adapter under
the same prompt stands beside all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from training.bench.samples import Row
from training.metrics import auroc, bootstrap_interval, token_f1

REFUSAL = "unanswerable"
ANSWERABLE = "answerable"
KINDS = ("human", "sibling", "off_topic", "probe")
REFUSERS = ("gate", "generation", "both")
Points = list[tuple[float, float]]


def unanswerable_kinds(rows: Sequence[Row]) -> list[str]:
    """Return the kinds of question without an answer among the rows."""
    present = {row.kind for row in rows}
    return [kind for kind in KINDS if kind in present]


def certain(rows: Sequence[Row], bank: str | None) -> list[Row]:
    """Return the answerable rows, and those whose questions the bank is certain not to answer.

    Questions of all kinds but `human` were asked of other documents, which a bank of all documents holds.
    """
    kinds = (ANSWERABLE, "human") if bank == "all" else (ANSWERABLE, *KINDS)
    return [row for row in rows if row.kind in kinds]


def has_gate(rows: Sequence[Row]) -> bool:
    """Return whether a gate spoke on any row."""
    return any(row.answerability is not None for row in rows)


def says_no(text: str) -> bool:
    """Return whether a generated text is a refusal; an empty one is, for the product shows it as one."""
    return text.strip(" .\n").casefold() in (REFUSAL, "")


def generated(row: Row) -> tuple[str, float]:
    """Return what the model says without the gate, and its F1."""
    if row.refused_by == "gate":
        said = row.extra.get("ungated", {"prediction": REFUSAL, "scores": {"f1": 0.0}})
        return said["prediction"], said["scores"]["f1"]
    return row.prediction, row.scores["f1"]


def reply(row: Row, refuser: str) -> tuple[bool, str, float]:
    """Return whether `refuser` refuses, the text that the user would read, and its F1 against the references.

    Under `gate` a model that refuses in words has given a wrong answer: only the gate may refuse. Under `generation` a
    model whose refusal was overruled has refused; `both` is what a user gets, its answer. A row that failed is no
    refusal.
    """
    if row.error:
        return False, "", 0.0
    text, f1 = generated(row)
    if refuser != "generation" and row.refused_by == "gate":
        return True, REFUSAL, 0.0
    if refuser == "gate":
        return False, "" if says_no(text) else text, 0.0 if says_no(text) else f1
    refuses = says_no(text) or (refuser == "generation" and "overruled" in row.extra)
    return refuses, REFUSAL if refuses else text, 0.0 if refuses else f1


def refusal_f1(row: Row, refuser: str) -> float:
    """Return word F1 against the refusal, as the paper scores a question without an answer."""
    return token_f1(reply(row, refuser)[1], [REFUSAL])


def answerable_f1(row: Row, refuser: str) -> float:
    """Return F1 of a question with an answer; 0 where it is refused."""
    return reply(row, refuser)[2]


def summarize(rows: Sequence[Row], *, bank: str | None = None) -> dict[str, Any]:
    """Return all refusal figures of a system on a suite.

    Args:
        bank: With `all`, figures over several kinds leave out the questions that such a bank may answer.

    Returns:
        `refusers`: by refuser `refusal_f1` with `refusal_interval` over all questions without an answer, `by_kind`,
        `answerable_f1` with its interval, and `false_refusals`, the share of answerable questions refused. `n` by kind.
        `auroc`: by signal (`gate`, `generation`) and kind. `aurc`: area under the risk-coverage curve.
    """
    kinds = unanswerable_kinds(rows)
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in (ANSWERABLE, *kinds)}
    refusers = REFUSERS if has_gate(rows) else ("generation",)
    counted = certain(rows, bank)
    curve = risk_coverage(counted) if unanswerable_kinds(counted) else []
    return {
        "n": {kind: len(found) for kind, found in by_kind.items()},
        "refusers": {name: _of_refuser(name, by_kind, unanswerable_kinds(counted)) for name in refusers},
        "auroc": {signal: found for signal, read in SIGNALS.items() if (found := _areas(by_kind, read))},
        **({"aurc": area(curve)} if curve else {}),
    }


def _of_refuser(name: str, by_kind: Mapping[str, Sequence[Row]], counted: Sequence[str]) -> dict[str, Any]:
    refused = {
        kind: [refusal_f1(row, name) for row in rows] for kind, rows in by_kind.items() if kind != ANSWERABLE and rows
    }
    every = [value for kind in counted for value in refused[kind]]
    answered = [answerable_f1(row, name) for row in by_kind[ANSWERABLE]]
    false = [reply(row, name)[0] for row in by_kind[ANSWERABLE]]
    found: dict[str, Any] = {"by_kind": {kind: fmean(values) for kind, values in refused.items()}}
    if every:
        found |= {"refusal_f1": fmean(every), "refusal_interval": bootstrap_interval(every)}
    if answered:
        found |= {"answerable_f1": fmean(answered), "answerable_interval": bootstrap_interval(answered)}
        found["false_refusals"] = fmean(false)
    return found


def _areas(by_kind: Mapping[str, Sequence[Row]], read: Callable[[Row], float | None]) -> dict[str, float]:
    """Return the AUROC of a signal by kind, where both sides have it."""
    signal = {kind: _read(rows, read) for kind, rows in by_kind.items()}
    sure = signal.pop(ANSWERABLE)
    return {kind: auroc(sure, values) for kind, values in signal.items() if sure and values}


# How sure a system is that it can answer, by where it says so; higher is surer.
SIGNALS: Mapping[str, Callable[[Row], float | None]] = {
    "gate": lambda row: row.answerability,
    "generation": lambda row: None if row.refusal_logprob is None else -row.refusal_logprob,
}


def confidence(rows: Sequence[Row]) -> list[float]:
    """Return how sure a system is of each row, by its gate or else by how unlikely its refusal is; or nothing."""
    for read in SIGNALS.values():
        values = _read(rows, read)
        if values and len(values) == len(rows):
            return values
    return []


def _read(rows: Sequence[Row], read: Callable[[Row], float | None]) -> list[float]:
    return [value for value in map(read, rows) if value is not None]


def risk_coverage(rows: Sequence[Row]) -> Points:
    """Return (share answered, risk) as the system answers more and more, the surest first; nothing without a signal.

    Risk is 1 - F1 of what the model generates; on a question without an answer, 0 where the model refuses in words.
    Rows that failed have no confidence and are left out. Rows of equal confidence are answered together.
    """
    rows = [row for row in rows if not row.error]
    order = sorted(zip(confidence(rows), map(_correct, rows), strict=False), reverse=True)
    if not order:
        return []
    values = np.array([value for value, _ in order])
    risk = 1 - np.cumsum([correct for _, correct in order]) / np.arange(1, len(order) + 1)
    ends = np.flatnonzero(np.append(values[1:] != values[:-1], True))
    return [((i + 1) / len(order), float(risk[i])) for i in ends]


def _correct(row: Row) -> float:
    text, f1 = generated(row)
    return f1 if row.kind == ANSWERABLE else float(says_no(text))


def area(curve: Points) -> float:
    """Return the area under a risk-coverage curve: the mean risk over all shares answered, lower is better."""
    return sum((x1 - x0) * risk for (x0, _), (x1, risk) in pairwise([(0.0, 0.0), *curve]))


def operating_curve(rows: Sequence[Row]) -> Points:
    """Return (share of questions without an answer refused, answerable F1 left) at every threshold of the gate."""
    rows = [row for row in rows if row.answerability is not None and not row.error]
    answered = [(row.answerability, generated(row)[1]) for row in rows if row.kind == ANSWERABLE]
    unanswered = [row.answerability for row in rows if row.kind != ANSWERABLE]
    if not answered or not unanswered:
        return []
    sure, f1 = map(np.array, zip(*answered, strict=True))
    thresholds = np.unique(np.array([*sure, *unanswered, np.inf]))
    return [(float(np.mean(np.array(unanswered) < t)), float(np.where(sure < t, 0.0, f1).mean())) for t in thresholds]


def operating_point(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return (share of questions without an answer refused, answerable F1) of a system as it is used."""
    unanswered = [row.refused_by is not None for row in rows if row.kind != ANSWERABLE]
    answered = [0.0 if row.refused_by else row.scores["f1"] for row in rows if row.kind == ANSWERABLE]
    return (fmean(unanswered), fmean(answered)) if unanswered and answered else None
