"""Refusal by gate, by generation and by both, on eight rows whose figures are worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.training.bench.rows import row
from training.bench.refusal import (
    area,
    operating_curve,
    operating_point,
    refusal_f1,
    risk_coverage,
    says_no,
    summarize,
)

# The gate refuses below 0.5. Two questions without an answer fall to the gate, of which the model refuses one itself;
# one the model alone refuses; one gets an answer.
ANSWERABLE = [
    row("a1", 1.0, answerability=0.9, refusal_logprob=-5.0),
    row("a2", 0.5, answerability=0.6, refusal_logprob=-3.0),
    row("a3", 0.0, answerability=0.3, refusal_logprob=-4.0, ungated=("Lisbon", 1.0)),
    row("a4", 0.0, answerability=0.7, refusal_logprob=-0.1, prediction="unanswerable", refused_by="model"),
]
MODEL_REFUSED = {"refused_by": "model", "kind": "off_topic"}
OFF_TOPIC = [
    row("u1", 0.0, answerability=0.1, refusal_logprob=-2.0, ungated=("Rome", 0.0), kind="off_topic"),
    row("u2", 0.0, answerability=0.4, refusal_logprob=-0.2, ungated=("unanswerable", 0.0), kind="off_topic"),
    row("u3", 0.0, answerability=0.8, refusal_logprob=-6.0, prediction="Oslo", kind="off_topic"),
    row("u4", 0.0, answerability=0.55, refusal_logprob=-0.3, prediction="Unanswerable.", **MODEL_REFUSED),
]
ROWS = [*ANSWERABLE, *OFF_TOPIC]


@pytest.mark.parametrize(
    ("refuser", "refused", "answered", "false"),
    [
        # u1 and u2 of four; a3 lost to the gate, a4 to the model's own words: (1 + 0.5) / 4.
        ("gate", 0.5, 0.375, 0.25),
        # u2 and u4; a3 is answered: (1 + 0.5 + 1) / 4.
        ("generation", 0.5, 0.625, 0.25),
        # u1, u2 and u4; a3 and a4 are refused.
        ("both", 0.75, 0.375, 0.5),
    ],
)
def test_each_refuser_has_its_own_refusals_and_its_own_losses(refuser, refused, answered, false):
    found = summarize(ROWS)["refusers"][refuser]
    assert found["refusal_f1"] == refused and found["by_kind"] == {"off_topic": refused}
    assert found["answerable_f1"] == answered and found["false_refusals"] == false
    assert found["refusal_interval"][0] <= refused <= found["refusal_interval"][1]


def test_in_a_bank_of_all_documents_only_peoples_questions_count_as_unanswerable():
    human = [
        row("h1", 0.0, answerability=0.2, ungated=("Rome", 0.0), kind="human"),
        row("h2", 0.0, answerability=0.95, prediction="Oslo", kind="human"),
    ]
    found = summarize([*ROWS, *human], bank="all")
    gate = found["refusers"]["gate"]
    # h1 of h1 and h2; of all six it is u1, u2 and h1.
    assert gate["refusal_f1"] == 0.5 and gate["by_kind"] == {"human": 0.5, "off_topic": 0.5}
    assert summarize([*ROWS, human[0]], bank="document")["refusers"]["gate"]["refusal_f1"] == 3 / 5
    # Surest first: h2 0, a1 1, a4 0, a2 0.5, a3 1, h1 0: risks 1, 1/2, 2/3, 5/8, 1/2, 7/12, of which the mean.
    assert found["aurc"] == pytest.approx((1 + 1 / 2 + 2 / 3 + 5 / 8 + 1 / 2 + 7 / 12) / 6)
    assert "refusal_f1" not in summarize(ROWS, bank="all")["refusers"]["gate"]


def test_auroc_is_told_for_each_kind_and_each_signal():
    sibling = row("s1", 0.0, answerability=0.65, refusal_logprob=-1.0, prediction="Oslo", kind="sibling")
    found = summarize([*ROWS, sibling])
    # Gate: 0.9 beats 4, 0.6 beats 3, 0.3 beats 1, 0.7 beats 3 of 4: 11 / 16; over 0.65 are 0.9 and 0.7 of 4.
    assert found["auroc"]["gate"] == {"sibling": 0.5, "off_topic": 11 / 16}
    # Refusal: -log P of 5 beats 3, 3 beats 3, 4 beats 3, 0.1 beats 0 of (2, 0.2, 6, 0.3): 9 / 16; over 1 are 3 of 4.
    assert found["auroc"]["generation"] == {"sibling": 0.75, "off_topic": 9 / 16}
    assert found["n"] == {"answerable": 4, "sibling": 1, "off_topic": 4}


def test_risk_falls_on_what_is_answered_wrongly_first():
    # By answerability: a1 1, u3 0, a4 0, a2 0.5, u4 1 (refused in words), u2 1, a3 1 (without the gate), u1 0.
    right = [1, 1, 1, 1.5, 2.5, 3.5, 4.5, 4.5]
    expected = [((i + 1) / 8, 1 - right[i] / (i + 1)) for i in range(8)]
    found = risk_coverage(ROWS)
    assert [point for pair in found for point in pair] == pytest.approx([p for pair in expected for p in pair])
    assert summarize(ROWS)["aurc"] == pytest.approx(sum(risk for _, risk in expected) / 8)


def test_rows_of_equal_confidence_are_answered_together():
    tied = [row("a", 1.0, answerability=0.5), row("b", 0.0, answerability=0.5), row("c", 1.0, answerability=0.2)]
    assert risk_coverage(tied) == [(2 / 3, 0.5), (1.0, pytest.approx(1 / 3))]
    assert area([(0.5, 0.2), (1.0, 0.4)]) == pytest.approx(0.5 * 0.2 + 0.5 * 0.4)


def test_operating_curve_goes_from_answering_all_to_refusing_all():
    curve = operating_curve(ROWS)
    # The gate left out; then at 0.55 u1 and u2 are refused and a3 is lost: (1 + 0.5 + 0) / 4.
    assert curve[0] == (0.0, 0.625) and (0.5, 0.375) in curve and curve[-1] == (1.0, 0.0)
    assert operating_point(ROWS) == (0.75, 0.375)


def test_a_system_without_a_gate_refuses_in_words_alone():
    rows = [row("a", 1.0), row("b", 0.0, prediction="unanswerable", kind="probe"), row("c", 0.0, kind="human")]
    found = summarize(rows)
    assert list(found["refusers"]) == ["generation"] and found["auroc"] == {} and "aurc" not in found
    assert found["refusers"]["generation"]["by_kind"] == {"human": 0.0, "probe": 1.0}
    assert operating_curve(rows) == [] and risk_coverage(rows) == []


def test_a_refusal_that_was_overruled_counts_where_the_model_decides_and_its_answer_everywhere_else():
    rows = [
        row("a", 1.0, answerability=0.9, extra={"overruled": True}),
        row("b", 0.5, answerability=0.9),
        row("u", 0.0, answerability=0.6, prediction="Oslo", extra={"overruled": True}, kind="human"),
    ]
    found = summarize(rows)["refusers"]
    assert {who: f["answerable_f1"] for who, f in found.items()} == {"gate": 0.75, "generation": 0.25, "both": 0.75}
    assert {who: f["refusal_f1"] for who, f in found.items()} == {"gate": 0.0, "generation": 1.0, "both": 0.0}
    # As it is used: nothing is refused, whatever the model would.
    assert operating_point(rows) == (0.0, 0.75)


def test_refusal_is_scored_by_words_as_the_paper_does():
    # "unanswerable" among three words: precision 1/3, recall 1.
    assert refusal_f1(row("u", 0.0, prediction="It is unanswerable", kind="probe"), "both") == pytest.approx(0.5)
    assert says_no(" Unanswerable.\n") and says_no("") and not says_no("It is unanswerable")


def test_a_row_that_failed_is_no_refusal_and_has_no_confidence():
    failed = [
        row("a", 0.0, prediction="", error="out of memory"),
        row("u", 0.0, prediction="", error="out of memory", kind="probe"),
    ]
    found = summarize([*failed, row("b", 1.0, answerability=0.9), row("v", 0.0, answerability=0.1, kind="probe")])
    both = found["refusers"]["both"]
    assert (both["refusal_f1"], both["false_refusals"], both["answerable_f1"]) == (0.0, 0.0, 0.5)
    assert found["auroc"]["gate"] == {"probe": 1.0} and not math.isnan(found["aurc"])


def test_a_kind_of_which_every_row_failed_has_no_auroc():
    rows = [row("a", 1.0, answerability=0.9), row("u", 0.0, prediction="", error="out of memory", kind="probe")]
    assert summarize(rows)["auroc"] == {}
