"""The figures of a run, worked out by hand from a few rows."""

from __future__ import annotations

import pytest

from tests.training.bench.rows import row, write_run
from training.bench.results import read_results
from training.bench.summary import routing, summarize

SUITES = {
    "squad": {"n": 2, "num_total": 2, "is_complete": True, "metric": "squad"},
    "drop": {"n": 3, "num_total": 9536, "is_complete": False, "metric": "drop", "note": "spans joined"},
}


def summary(folder, rows, **header):
    return summarize(read_results(write_run(folder, rows, **header)))


def test_scores_are_means_and_a_row_that_failed_is_a_zero_among_them(tmp_path):
    zero = {"f1": 0.0, "rouge_l": 0.0, "em": 0.0, "official": 0.0}
    rows = [row("a", 1.0), row("b", 0.5), row("c", 0.0, scores=zero, error="out of memory")]
    found = summary(tmp_path, rows)["suites"]["squad"]["systems"]["doc2atom"]
    # F1 (1 + 0.5 + 0) / 3; EM counts the full score alone.
    assert (found["f1"], found["em"], found["n"], found["num_errors"]) == (0.5, pytest.approx(1 / 3), 3, 1)
    assert found["f1_interval"] == (0.0, 1.0)


def test_what_the_gate_costs_stands_beside_the_score_with_it(tmp_path):
    gated = row("b", 0.0, answerability=0.1, ungated=("Lisbon", 1.0))
    rows = [row("a", 1.0, answerability=0.9), gated, row("a", 0.5, system="no-context")]
    found = summary(tmp_path, rows)["suites"]["squad"]["systems"]
    assert (found["doc2atom"]["f1"], found["doc2atom"]["gate_off_f1"], found["doc2atom"]["gate_refuses"]) == (
        0.5,
        1,
        0.5,
    )
    assert "gate_off_f1" not in found["no-context"]


def test_a_suite_is_complete_only_where_every_official_question_has_a_row(tmp_path):
    rows = [row("a", 1.0), row("b", 1.0), *(row(f"d{i}", 1.0, suite="drop") for i in range(2))]
    found = summary(tmp_path, rows, suites=SUITES)["suites"]
    assert (found["squad"]["label"], found["drop"]["label"]) == ("complete", "subset, n = 2")
    half = summary(tmp_path / "half", rows[:1], suites=SUITES)["suites"]["squad"]
    assert half["label"] == "subset, n = 1"


def test_rows_that_an_interrupted_run_lacks_are_counted_over_all_systems_that_can_run(tmp_path):
    systems = {"doc2atom": {"status": "ok"}, "base+ctx": {"status": "ok"}, "blind": {"status": "unavailable"}}
    rows = [row("a", 1.0), row("b", 1.0), row("a", 1.0, system="base+ctx")]
    found = summary(tmp_path, rows, suites=SUITES, systems=systems)
    # One of squad's two for base+ctx, and drop's three for each of the two.
    assert (found["suites"]["squad"]["num_missing"], found["num_missing"]) == (1, 7)


def test_scores_come_by_type_of_answer(tmp_path):
    rows = [row("a", 1.0, answer_type="number"), row("b", 0.0, answer_type="number"), row("c", 0.5, answer_type="span")]
    found = summary(tmp_path, rows)["suites"]["squad"]["systems"]["doc2atom"]["by_type"]
    assert found == {"number": {"n": 2, "official": 0.5}, "span": {"n": 1, "official": 0.5}}


def test_refusal_suites_are_no_suites_of_question_answering(tmp_path):
    rows = [row("a", 1.0), row("a", 1.0, suite="refusal/squad"), row("u", 0.0, suite="refusal/squad", kind="probe")]
    found = summary(tmp_path, rows)
    assert list(found["suites"]) == ["squad"] and list(found["refusal"]) == ["refusal/squad"]


def test_a_set_with_questions_without_an_answer_has_scores_and_refusal(tmp_path):
    found = summary(tmp_path, [row("a", 1.0), row("u", 0.0, kind="human")])
    assert list(found["suites"]) == list(found["refusal"]) == ["squad"]


def test_what_a_question_is_asked_of_is_said_in_words(tmp_path):
    facts = {"squad": {**SUITES["squad"], "num_atoms": 10491, "mean_bank_atoms": 5.1}}
    found = [summary(tmp_path / bank, [row("a", 1.0)], suites=facts, bank=bank) for bank in ("document", "all")]
    assert [one["suites"]["squad"]["bank"] for one in found] == [
        "one bank a document, 5.1 atoms on average, 10,491 in all",
        "one bank of all documents, 10,491 atoms",
    ]


def test_routing_counts_questions_with_a_known_gold_atom_alone():
    ranks = [(1, 2), (3, 1), (None, 1), (2, 9)]
    rows = [row(f"s{i}", 1.0, gold_rank=gold, extra={"bm25_rank": words}) for i, (gold, words) in enumerate(ranks)]
    found = routing([*rows, row("unknown", 1.0, gold_rank=1)], 3)
    assert found == {"n": 4, "router": {"top1": 0.25, "top3": 0.75}, "bm25": {"top1": 0.5, "top3": 0.75}}
    assert routing([row("a", 1.0)], 3) == {}


def test_a_bank_of_all_may_hold_what_a_question_without_an_answer_asks(tmp_path):
    rows = [row("a", 1.0), row("u", 0.0, kind="sibling")]
    facts = {"squad": {"n": 2, "num_atoms": 9, "mean_bank_atoms": 9.0, "note": "1 answerable, 1 sibling"}}
    of = {bank: summary(tmp_path / bank, rows, suites=facts, bank=bank)["refusal"] for bank in ("document", "all")}
    notes = {bank: found["squad"]["notes"] for bank, found in of.items()}
    assert notes["document"] == ["one bank a document, 9.0 atoms on average, 9 in all", "1 answerable, 1 sibling"]
    assert notes["all"][0] == "one bank of all documents, 9 atoms" and "human questions alone" in notes["all"][2]
    # Its own document may hold the answer to the only such question: no figure over kinds is left.
    of_bank = {bank: found["squad"]["systems"]["doc2atom"]["refusers"] for bank, found in of.items()}
    assert "refusal_f1" in of_bank["document"]["generation"] and "refusal_f1" not in of_bank["all"]["generation"]
