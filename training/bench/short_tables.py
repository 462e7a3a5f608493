"""The tables of a run as a terminal has room for: all suites in one, our figures alone.

What they leave out is in the report, whose tables are in `tables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.bench.refusal import KINDS
from training.bench.tables import NO_ADAPTER, Table, percent, with_interval


def scores(suites: Mapping[str, Any]) -> Table:
    """Return the scores of all systems on all suites."""
    rows = []
    for name, suite in suites.items():
        for system, facts in suite["systems"].items():
            figures = [percent(facts.get(score)) for score in ("rouge_l", "em", "official")]
            f1 = with_interval(facts["f1"], facts["f1_interval"])
            rows.append([name, system, f1, *figures, str(facts["n"]), "" if suite["is_complete"] else "subset"])
    headers = ["suite", "system", "F1 [95 %]", "ROUGE-L", "EM", "official", "n", ""]
    return Table(title="Scores", headers=headers, rows=rows)


def overall(found: Mapping[str, Any]) -> Table:
    """Return F1 over the paper's suites."""
    rows = []
    for system, means in found.items():
        f1 = means["f1"]
        number = len(f1["suites"])
        means = [with_interval(f1[mean], f1[f"{mean}_interval"]) for mean in ("macro", "weighted")]
        rows.append([system, *means, f"{number} of {number + len(f1['missing'])}"])
    headers = ["system", "F1, mean of suites", "F1, weighted", "suites"]
    return Table(title="Overall", headers=headers, rows=rows)


def refusal(suites: Mapping[str, Any]) -> Table:
    """Return what each system refuses of each kind of question, and what it still answers."""
    kinds = [
        kind for kind in KINDS if any(kind in s["n"] for suite in suites.values() for s in suite["systems"].values())
    ]
    rows = []
    for name, suite in suites.items():
        for system, facts in suite["systems"].items():
            for refuser, figures in facts["refusers"].items():
                by_kind = [percent(figures["by_kind"].get(kind)) for kind in kinds]
                who = "prompt" if system in NO_ADAPTER else refuser
                answered = percent(figures.get("answerable_f1"))
                rows.append([name, system, who, *by_kind, answered])
    headers = ["suite", "system", "refused by", *kinds, "answerable F1"]
    title = "Refusal F1 by kind of unanswerable question"
    notes = [f"{name}: {note}" for name, suite in suites.items() for note in suite["notes"]]
    return Table(title=title, headers=headers, rows=rows, notes=notes)
