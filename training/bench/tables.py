"""The tables of a run, as headers and rows of text: the same for the report and for the terminal.

Scores are percentages, the paper's among them. Takes what `summary` and `compare` worked out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.bench.compare import Comparison
from training.bench.overall import NOTE
from training.bench.published import OVERALL, published
from training.bench.refusal import KINDS

# Systems that write nothing into the model: under the same prompt they show what the prompt alone refuses.
NO_ADAPTER = ("no-context", "base+ctx", "retrieval", "retrieval-bm25", "retrieval-dense")
# The paper's models, by the preset that has their base.
PAPER = {"gemma": "paper, Gemma-2-2B", "qwen": "paper, Qwen3-4B"}
PAPER_SYSTEMS = ("base+ctx", "d2l-ckpt", "d2l-raw", "d2l-atom", "doc2atom", "doc2atom+ctx")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text under headers."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def percent(value: float | None) -> str:
    """Return a share as a percentage with one decimal; nothing for None."""
    return "" if value is None else f"{100 * value:.1f}"


def with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """Return `66.6 [61.1, 72.3]`."""
    return percent(value) + (f" [{percent(interval[0])}, {percent(interval[1])}]" if interval else "")


def paper_cells(suite: str, system: str, score: str = "f1") -> list[str]:
    """Return what the paper has, a cell a model, with the two decimals that it prints."""
    found = [published(model, system, suite, score) for model in PAPER]
    return ["" if value is None else f"{100 * value:.2f}" for value in found]


def scores_table(name: str, suite: Mapping[str, Any], systems: Mapping[str, Any]) -> Table:
    """Return the scores of all systems on a suite; the paper's systems keep their row where they have no scores.

    Args:
        systems: What the header says of each.
    """
    rows = []
    for system, facts in suite["systems"].items():
        figures = [percent(facts.get(name)) for name in ("rouge_l", "em", "official", "gate_off_f1", "gate_refuses")]
        counts = [str(facts["n"]), str(facts["num_errors"])]
        f1 = with_interval(facts["f1"], facts["f1_interval"])
        rows.append([system, f1, *figures, *counts, facts["domain"], *paper_cells(name, system)])
    others = [system for system in dict.fromkeys((*systems, *PAPER_SYSTEMS)) if system not in suite["systems"]]
    for system in others:
        paper = paper_cells(name, system)
        if system in systems or any(paper):
            status = systems.get(system, {"status": "not asked"})["status"]
            why = {"unavailable": "could not run", "ok": "to come"}.get(status, status)
            rows.append([system, why, *[""] * 8, *paper])
    ours = ["system", "F1 [95 %]", "ROUGE-L", "EM", f"official: {suite['metric']}", "F1, gate off", "gate refuses"]
    ours += ["n", "failed", "trained on"]
    headers = [*ours, *(f"{model}, F1" for model in PAPER.values())]
    title = f"{name}, {suite['label']}"
    return Table(title=title, headers=headers, rows=rows, notes=_notes(suite))


def overall_table(overall: Mapping[str, Any]) -> Table:
    """Return F1 and ROUGE-L over the paper's suites, as mean of suites and weighted as the paper's own."""
    rows = []
    for system, found in overall.items():
        f1, rouge = found["f1"], found["rouge_l"]
        means = [with_interval(f1[mean], f1[f"{mean}_interval"]) for mean in ("macro", "weighted")]
        means += [percent(rouge[mean]) for mean in ("macro", "weighted")]
        number = len(f1["suites"])
        rows.append([system, *means, f"{number} of {number + len(f1['missing'])}", *paper_cells(OVERALL, system)])
    ours = [
        "system",
        "F1, mean of suites [95 %]",
        "F1, weighted [95 %]",
        "ROUGE-L, mean of suites",
        "ROUGE-L, weighted",
        "suites",
    ]
    headers = [*ours, *(f"{model}, F1 weighted" for model in PAPER.values())]
    missing = list(dict.fromkeys(suite for found in overall.values() for suite in found["f1"]["missing"]))
    absent = f"Some systems lack {', '.join(missing)}: their Overall is another figure than the paper's"
    return Table(title="Overall", headers=headers, rows=rows, notes=[NOTE, *([absent] if missing else [])])


def _notes(suite: Mapping[str, Any]) -> list[str]:
    total = suite["num_total"]
    facts = [
        f"{suite['n']:,} of {total:,} questions" if total and total != suite["n"] else "",
        suite["bank"],
        suite["note"],
        f"{suite['num_missing']:,} rows still to come" if suite["num_missing"] else "",
    ]
    return [fact for fact in facts if fact]


def routing_table(name: str, suite: Mapping[str, Any]) -> Table | None:
    """Return how often a gold atom is found, beside BM25 on the same atoms; each system has a row of its own."""
    systems = {system: facts["routing"] for system, facts in suite["systems"].items() if facts["routing"]}
    if not systems:
        return None
    rows, places = [], list(next(iter(systems.values()))["router"])
    for system, found in systems.items():
        rows.append([system, str(found["n"]), *(percent(found["router"][place]) for place in places)])
    first = next(iter(systems.values()))
    rows.append(["BM25 on the same atoms", str(first["n"]), *(percent(first["bm25"][place]) for place in places)])
    headers = ["", "n with a known gold atom", *(f"gold in top {place.removeprefix('top')}" for place in places)]
    return Table(title=f"{name}, routing", headers=headers, rows=rows)


def types_table(name: str, suite: Mapping[str, Any]) -> Table | None:
    """Return the official score by type of answer, for a suite that has types."""
    systems = {system: facts["by_type"] for system, facts in suite["systems"].items() if "by_type" in facts}
    types = sorted({kind for found in systems.values() for kind in found})
    if not types:
        return None
    counts = {kind: max(found[kind]["n"] for found in systems.values() if kind in found) for kind in types}
    rows = [
        [system, *(percent(found[kind]["official"]) if kind in found else "" for kind in types)]
        for system, found in systems.items()
    ]
    headers = ["system", *(f"{kind} (n = {counts[kind]})" for kind in types)]
    title = f"{name} by type of answer, official score"
    return Table(title=title, headers=headers, rows=rows)


def refusal_table(name: str, found: Mapping[str, Any]) -> Table:
    """Return what each refuser of each system refuses, and what is still answered."""
    systems: Mapping[str, Any] = found["systems"]
    kinds = [kind for kind in KINDS if any(kind in facts["n"] for facts in systems.values())]
    rows = []
    for system, facts in systems.items():
        last = list(facts["refusers"])[-1]
        for refuser, figures in facts["refusers"].items():
            by_kind = [percent(figures["by_kind"].get(kind)) for kind in kinds]
            refused = with_interval(figures.get("refusal_f1"), figures.get("refusal_interval"))
            answered = with_interval(figures.get("answerable_f1"), figures.get("answerable_interval"))
            label = "prompt alone" if system in NO_ADAPTER else refuser
            false = percent(figures.get("false_refusals"))
            # The paper's figures are those of whole systems.
            paper = paper_cells(name.removeprefix("refusal/"), system, "refusal_f1") if refuser == last else ["", ""]
            rows.append([system, label, refused, *by_kind, answered, false, *paper])
    sizes = max((facts["n"] for facts in systems.values()), key=lambda n: sum(n.values()))
    headers = [
        "system",
        "refused by",
        "refusal F1 [95 %]",
        *(f"{kind} (n = {sizes.get(kind, 0)})" for kind in kinds),
        f"F1 of answerable [95 %] (n = {sizes['answerable']})",
        "answerable refused",
        *(f"{model}, unrelated questions" for model in PAPER.values()),
    ]
    return Table(title=f"Refusal, {name}", headers=headers, rows=rows, notes=found["notes"])


def auroc_table(name: str, found: Mapping[str, Any]) -> Table | None:
    """Return the area under the ROC curve by kind of question, and the area under the risk-coverage curve."""
    systems: Mapping[str, Any] = found["systems"]
    kinds = [kind for kind in KINDS if any(kind in facts["n"] for facts in systems.values())]
    rows = []
    for system, facts in systems.items():
        for i, (signal, figures) in enumerate(facts["auroc"].items()):
            aurc = f"{facts['aurc']:.3f}" if i == 0 and "aurc" in facts else ""
            rows.append([system, signal, *(percent(figures.get(kind)) for kind in kinds), aurc])
    headers = ["system", "signal", *(f"AUROC {kind}" for kind in kinds), "area under risk-coverage"]
    return Table(title=f"Answerable or not, {name}", headers=headers, rows=rows) if rows else None


def comparison_table(title: str, found: Sequence[Comparison], *, a: str, b: str) -> Table:
    """Return differences of two sides, b - a, with their intervals."""
    rows = [
        [
            row.suite,
            row.system,
            str(row.n),
            percent(row.a),
            percent(row.b),
            f"{100 * row.difference:+.1f} [{100 * row.interval[0]:+.1f}, {100 * row.interval[1]:+.1f}]",
            row.verdict,
            str(row.only_a + row.only_b),
        ]
        for row in found
    ]
    headers = ["suite", "system", "n", a, b, "difference [95 %]", f"{b} is", "left out"]
    return Table(title=title, headers=headers, rows=rows)


def unavailable_table(found: Mapping[str, str]) -> Table:
    """Return the systems that could not run, with the reason."""
    rows = list(map(list, found.items()))
    return Table(title="Could not run", headers=["system", "why"], rows=rows)
