"""Claims about reading what a model wrote: what is well-formed survives, the rest is left out."""

from __future__ import annotations

from tests.training.annotator_stub import label_xml
from training.annotation.replies import parse_labels, parse_probes


def test_labels_before_a_cut_survive_and_the_cut_one_is_left_out() -> None:
    reply = "<questions>" + label_xml("q_0", "temporal", "atom_0") + label_xml("q_1", "causal", "atom_1")[:60]
    assert list(parse_labels(reply)) == ["q_0"]


def test_a_question_that_is_never_closed_does_not_swallow_the_next() -> None:
    broken = '<question id="q_0" type="causal" answerable="yes"><gold>atom_3</gold>'
    labels = parse_labels(broken + label_xml("q_1", "causal", "atom_1"))
    assert {name: label.gold for name, label in labels.items()} == {"q_1": ("atom_1",)}


def test_a_question_without_a_closed_list_of_gold_is_left_out() -> None:
    assert parse_labels('<question id="q_0" answerable="yes"><gold>atom_1</question>') == {}


def test_ids_are_read_whatever_parts_them_and_bare_numbers_name_atoms() -> None:
    label = parse_labels(label_xml("0", "Multi-Hop", "atom_4, 13;ATOM_4", "none"))["q_0"]
    assert label.gold == ("atom_4", "atom_13")
    assert label.distractors == ()
    assert label.question_type == "multi_hop"


def test_an_empty_element_is_an_empty_list() -> None:
    label = parse_labels('<question id="q_0" type="irrelevant"><gold/><supporting/></question>')["q_0"]
    assert (label.gold, label.supporting, label.distractors) == ((), (), ())
    # The type alone says it where the attribute is missing.
    assert label.is_answerable is False


def test_what_was_thought_aloud_is_no_reply() -> None:
    thought = "<think>" + label_xml("q_0", "causal", "atom_9") + "</think>"
    assert parse_labels(thought + label_xml("q_0", "causal", "atom_1"))["q_0"].gold == ("atom_1",)
    assert parse_labels(thought.removesuffix("</think>")) == {}


def test_probes_are_read_once_each_without_markup_and_the_cut_one_is_left_out() -> None:
    reply = "```xml\n<probes><probe> Who &amp; why? </probe><probe>Who &amp; why?</probe><probe></probe><probe>How ma"
    assert parse_probes(reply) == ["Who & why?"]
