"""Claims about cross-validation: the set and the atoms have the last word over the annotator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.atomizer import Atomization
from models.atoms import AnnotationMeta, AnnotationRecord, Atom, Question
from tests.training.annotator_stub import MILL, SENTENCES, label_xml
from training.annotation.crosscheck import checked_record, labelled_questions, probe_item
from training.annotation.replies import parse_labels


def atom(number: int, *, group: str | None = None, span_valid: bool = True) -> Atom:
    text = SENTENCES[number % 3]
    return Atom(
        atom_id=f"atom_{number}",
        semantic_type="fact_claim",
        content=text,
        source_span=text,
        retrieval_text=text,
        conflict_group=group,
        span_valid=span_valid,
    )


def record(*labels: str, atoms: tuple[Atom, ...] = (atom(0), atom(1), atom(2))) -> AnnotationRecord:
    """The mill's record with its two questions, one probe, and the given labels."""
    probes = [probe_item(MILL, 0, "What did Harrow Mill grind?")]
    questions, warnings = labelled_questions(MILL, probes, parse_labels("".join(labels)))
    meta = AnnotationMeta(annotator="test", num_atoms=len(atoms))
    return checked_record(MILL, Atomization(atoms=atoms, meta=meta), questions, warnings)


BUILT = label_xml("q_0", "temporal", "atom_0", "atom_2")
OWNER = label_xml("q_1", "irrelevant", answerable="no")
PROBE = label_xml("q_2", "irrelevant", answerable="no")


def question(found: AnnotationRecord, place: int) -> Question:
    return found.qa_pairs[place]


def test_a_clean_reply_gives_a_record_without_warnings() -> None:
    found = record(BUILT, OWNER, PROBE)
    assert [q.annotation_warnings for q in found.qa_pairs] == [(), (), ()]
    assert found.annotation_meta.warnings == ()
    built = question(found, 0)
    assert (built.question_type, built.answers) == ("temporal", ("1794",))
    assert (built.gold_atom_ids, built.relevant_atom_ids, built.distractor_atom_ids) == (
        ("atom_0",),
        ("atom_0",),
        ("atom_2",),
    )


def test_the_record_counts_its_questions_and_its_probes_rescued_ones_too() -> None:
    for probe in (PROBE, label_xml("q_2", "field_lookup", "atom_1", "atom_2")):
        meta = record(BUILT, OWNER, probe).annotation_meta
        assert (meta.num_atoms, meta.num_questions, meta.num_irrelevant_generated) == (3, 3, 1)
    written = meta.__dict__ | {"warnings": []}
    old = {k: v for k, v in written.items() if k not in ("num_questions", "num_irrelevant_generated")}
    assert AnnotationMeta.from_dict(old).num_questions == 0  # records of before still load


def test_a_rescued_probe_stays_generated_and_keeps_its_gold_without_a_warning() -> None:
    rescued = question(record(BUILT, OWNER, label_xml("q_2", "field_lookup", "atom_1", "atom_2")), 2)
    assert rescued.is_generated_irrelevant and not rescued.is_irrelevant
    assert (rescued.question_type, rescued.gold_atom_ids, rescued.relevant_atom_ids) == (
        "field_lookup",
        ("atom_1",),
        ("atom_1",),
    )
    assert rescued.annotation_warnings == ()


@pytest.mark.parametrize(
    "label",
    [
        label_xml("q_2", "irrelevant", "atom_1", answerable="no"),
        label_xml("q_2", "field_lookup", "", answerable="yes"),
    ],
)
def test_a_probe_that_is_not_rescued_has_no_gold(label: str) -> None:
    probe = question(record(BUILT, OWNER, label), 2)
    assert (probe.is_irrelevant, probe.is_generated_irrelevant) == (True, True)
    assert (probe.question_type, probe.gold_atom_ids, probe.relevant_atom_ids) == ("irrelevant", (), ())


def test_unknown_ids_are_dropped_and_the_question_is_warned_about() -> None:
    built = question(record(label_xml("q_0", "temporal", "atom_0, atom_9", "atom_8"), OWNER, PROBE), 0)
    assert (built.gold_atom_ids, built.distractor_atom_ids) == (("atom_0",), ())
    assert built.annotation_warnings == ("unknown atom id atom_9", "unknown atom id atom_8")


def test_an_atom_without_a_valid_span_is_no_atom_to_a_question_and_stays_in_the_record() -> None:
    found = record(label_xml("q_0", "temporal", "atom_3"), OWNER, PROBE, atoms=(atom(0), atom(3, span_valid=False)))
    assert [a.atom_id for a in found.atoms] == ["atom_0", "atom_3"]
    assert question(found, 0).gold_atom_ids == ()
    assert question(found, 0).annotation_warnings == ("unknown atom id atom_3",)


def test_an_answerable_question_that_is_called_irrelevant_is_cleared_and_warned_about() -> None:
    built = question(record(label_xml("q_0", "temporal", "atom_0", answerable="no"), OWNER, PROBE), 0)
    assert (built.is_irrelevant, built.question_type, built.gold_atom_ids) == (True, "irrelevant", ())
    assert built.annotation_warnings == ("reclassified as irrelevant by the annotator",)


def test_people_who_wrote_an_unanswerable_question_are_believed() -> None:
    owner = question(record(BUILT, label_xml("q_1", "single_hop", "atom_2"), PROBE), 1)
    assert (owner.is_irrelevant, owner.is_generated_irrelevant, owner.gold_atom_ids) == (True, False, ())
    assert owner.annotation_warnings == ("unanswerable in the set, answerable to the annotator",)


def test_conflicts_are_derived_from_the_atoms() -> None:
    atoms = (atom(0, group="c"), atom(1, group="c"), atom(2))
    label = '<question id="q_0" type="temporal" answerable="yes"><gold>{}</gold><supporting>{}</supporting></question>'
    assert question(record(label.format("atom_0", "atom_1"), OWNER, PROBE, atoms=atoms), 0).has_conflict
    assert not question(record(label.format("atom_0", "atom_2"), OWNER, PROBE, atoms=atoms), 0).has_conflict


def test_an_atom_in_two_lists_keeps_its_first_role() -> None:
    label = label_xml("q_0", "temporal", "atom_0", "atom_0, atom_1").replace(
        "<supporting></supporting>", "<supporting>atom_0, atom_2</supporting>"
    )
    built = question(record(label, OWNER, PROBE), 0)
    assert (built.gold_atom_ids, built.supporting_atom_ids, built.distractor_atom_ids) == (
        ("atom_0",),
        ("atom_2",),
        ("atom_1",),
    )


def test_a_question_that_the_reply_left_out_is_named_and_warned_about() -> None:
    found = record(OWNER, PROBE, label_xml("q_7", "causal", "atom_0"))
    assert question(found, 0).annotation_warnings == ("not annotated",)
    assert found.annotation_meta.warnings == (
        "question built was left out of the reply",
        "the reply names an unknown question q_7",
    )


def test_an_unknown_type_becomes_the_modes_own_and_is_warned_about() -> None:
    built = question(record(label_xml("q_0", "riddle", "atom_0"), OWNER, PROBE), 0)
    assert (built.question_type, built.annotation_warnings) == ("single_hop", ("unknown question type 'riddle'",))


def test_an_answerable_question_without_gold_is_warned_about() -> None:
    assert question(record(label_xml("q_0", "temporal"), OWNER, PROBE), 0).annotation_warnings == ("no gold atom",)


def test_checking_a_checked_record_changes_nothing() -> None:
    found = record(BUILT, OWNER, label_xml("q_2", "field_lookup", "atom_1"))
    meta = replace(found.annotation_meta)
    again = checked_record(MILL, Atomization(atoms=found.atoms, meta=meta), found.qa_pairs)
    assert again == found
