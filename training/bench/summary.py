"""The figures of a run: scores by suite and system, their Overall, refusal, and what could not run.

Everything comes from the header and the rows; how it is shown is the business of `report`, `charts` and the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from training.bench import refusal
from training.bench.intervals import stratified_interval
from training.bench.overall import overall
from training.bench.published import INFERRED_COUNTS
from training.bench.results import Results
from training.bench.samples import Row, is_refusal_suite
from training.metrics import bootstrap_interval

OF_ANOTHER_DOCUMENT = (
    "in this bank human questions alone are sure to have no answer: sibling, off_topic and probe questions were asked "
    "of other documents, which it holds. Figures over several kinds leave those out"
)
SCORES = ("f1", "rouge_l", "em", "official")


def summarize(results: Results) -> dict[str, Any]:
    """Return all figures of a run as plain data, shares in [0, 1].

    Returns:
        `header` as the run wrote it; `suites`, see `suite_summary`; `overall` by system and score; `refusal` by suite
        and system, see `refusal.summarize`; `unavailable`, systems with the reason; `num_missing` and
        `num_errors`, rows; `efficiency`.
    """
    scored = [suite for suite in results.suites if not is_refusal_suite(suite)]
    suites = {suite: suite_summary(results, suite) for suite in scored}
    return {
        "header": dict(results.header),
        "suites": suites,
        "overall": overall_by_system(results, suites),
        "refusal": {suite: found for suite in results.suites if (found := refusal_summary(results, suite))},
        "unavailable": results.unavailable(),
        "num_missing": sum(map(results.num_missing, results.header.get("suites", {}))),
        "num_errors": sum(bool(row.error) for rows in results.rows.values() for row in rows),
        "efficiency": dict(results.efficiency),
    }


def suite_summary(results: Results, suite: str) -> dict[str, Any]:
    """Return `n`, `num_total`, `is_complete`, `label`, `note`, `metric`, `bank` and the scores by system.

    `n` counts the rows of the system that has most, and `num_missing` those that an interrupted run still lacks.
    """
    facts = results.suite_facts(suite)
    of_suite = {system: results.rows[suite, system] for system in results.systems if (suite, system) in results.rows}
    n = max(map(len, of_suite.values()))
    complete = bool(facts.get("is_complete")) and n == facts.get("num_total")
    return {
        "n": n,
        "num_total": facts.get("num_total"),
        "is_complete": complete,
        "label": "complete" if complete else f"subset, n = {n}",
        "num_missing": results.num_missing(suite),
        "note": facts.get("note", ""),
        "metric": facts.get("metric", ""),
        "bank": results.bank(suite),
        "systems": {
            system: {
                **scores(rows),
                "domain": results.domain(suite, system),
                "routing": routing(rows, results.header.get("k")),
            }
            for system, rows in of_suite.items()
        },
    }


def scores(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the mean of each score, the interval of F1, `n` and `num_errors`; a row that failed scores 0.

    A system with a gate has `gate_refuses`, the share of rows that it refuses, and `gate_off_f1`, F1 without it.
    """
    found: dict[str, Any] = {"n": len(rows), "num_errors": sum(bool(row.error) for row in rows)}
    for name in SCORES:
        if any(name in row.scores for row in rows):
            found[name] = fmean(row.scores.get(name, 0.0) for row in rows)
    found["f1_interval"] = bootstrap_interval([row.scores.get("f1", 0.0) for row in rows])
    if refusal.has_gate(rows):
        found["gate_off_f1"] = fmean(refusal.generated(row)[1] for row in rows)
        found["gate_refuses"] = fmean(row.refused_by == "gate" for row in rows)
    by_type: dict[str, list[float]] = {}
    for row in rows:
        if row.answer_type:
            by_type.setdefault(row.answer_type, []).append(row.scores.get("official", row.scores.get("f1", 0.0)))
    if by_type:
        found["by_type"] = {name: {"n": len(v), "official": fmean(v)} for name, v in sorted(by_type.items())}
    return found


def overall_by_system(results: Results, suites: Mapping[str, Any]) -> dict[str, Any]:
    """Return F1, with intervals, and ROUGE-L over the paper's suites; nothing for a system that was asked none."""
    found: dict[str, Any] = {}
    for system in results.systems:
        for score in ("f1", "rouge_l"):
            of_suite = {name: suite["systems"].get(system, {}).get(score) for name, suite in suites.items()}
            mean = overall({name: value for name, value in of_suite.items() if value is not None})
            if mean is not None:
                found.setdefault(system, {})[score] = asdict(mean)
        if system in found:
            took_part = found[system]["f1"]["suites"]
            values = [[row.scores["f1"] for row in results.rows[suite, system]] for suite in took_part]
            weights = [INFERRED_COUNTS[suite] for suite in took_part]
            found[system]["f1"]["macro_interval"] = stratified_interval(values)
            found[system]["f1"]["weighted_interval"] = stratified_interval(values, weights)
    return found


def routing(rows: Sequence[Row], top_k: int | None) -> dict[str, Any]:
    """Return how often a gold atom is among the first of the router, and of BM25 alone, where a gold atom is known."""
    known = [row for row in rows if row.extra.get("bm25_rank") is not None and not row.error]
    if not known:
        return {}
    ranks = {"router": [row.gold_rank for row in known], "bm25": [row.extra["bm25_rank"] for row in known]}
    places = {f"top{place}": place for place in sorted({1, top_k or 1})}
    return {
        "n": len(known),
        **{
            who: {name: fmean(rank is not None and rank <= place for rank in found) for name, place in places.items()}
            for who, found in ranks.items()
        },
    }


def refusal_summary(results: Results, suite: str) -> dict[str, Any]:
    """Return the figures of refusal by system, and notes on the bank and the questions.

    Returns:
        Nothing where every question has an answer.
    """
    of_suite = {system: results.rows.get((suite, system), ()) for system in results.systems}
    bank = results.header.get("bank")
    systems = {
        name: refusal.summarize(rows, bank=bank) for name, rows in of_suite.items() if refusal.unanswerable_kinds(rows)
    }
    if not systems:
        return {}
    notes = [results.bank(suite), results.suite_facts(suite).get("note", "")]
    if any(len(refusal.certain(rows, bank)) < len(rows) for rows in of_suite.values()):
        notes.append(OF_ANOTHER_DOCUMENT)
    return {"notes": [note for note in notes if note], "systems": systems}
