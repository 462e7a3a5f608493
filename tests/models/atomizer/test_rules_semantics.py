"""What kind of knowledge an atom carries, and how its kind, edges and conflicts come about."""

import pytest

from models.atoms import Relation
from tests.models.atomizer.test_rules import atoms_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Ada Brook was a botanist from Leeds.", "entity_attribute"),
        ("The mast is made of two pieces of pine.", "entity_attribute"),
        ("The tank holds 40 litres when the cap is closed.", "entity_attribute"),
        ("Marlow Works sold the yard to its workers.", "event_relation"),
        ("On 4 May 1911 the harbour was closed.", "event_relation"),
        ("Press the green button until the lamp goes out.", "process_step"),
        ("First, open the valve by hand.", "process_step"),
        ("Move orders seldom arrive in time.", "fact_claim"),
        ("There was a quarrel about tar.", "fact_claim"),
        ("Figure 3: Water level behind the dam.", "evidence_fragment"),
        ('"We never saw the ship again," the keeper wrote.', "evidence_fragment"),
        ("Holm, E. On the tides of 1999, pp. 4-9, doi:10.1/x", "evidence_fragment"),
        ("Cold water holds more oxygen than warm water does.", "fact_claim"),
    ],
)
def test_the_words_of_a_sentence_decide_its_type(text: str, kind: str):
    assert atoms_of(text)[0].semantic_type == kind


def test_rows_are_attributes_where_columns_name_them():
    named = atoms_of("| Part | Mass |\n|---|---|\n| Valve | 310 g |")
    bare = atoms_of("Valve | steel | 310 g\nPiston | iron | 4 kg")
    assert [(a.semantic_type, a.is_answer_bearing) for a in named] == [
        ("entity_attribute", False),
        ("entity_attribute", True),
    ]
    assert {a.semantic_type for a in bare} == {"evidence_fragment"}


def test_a_row_of_data_does_not_name_columns():
    assert [a.content for a in atoms_of("Ada | Leeds | botany\nEmmy | Bonn | algebra")] == [
        "Ada | Leeds | botany",
        "Emmy | Bonn | algebra",
    ]


@pytest.mark.parametrize(
    ("text", "bears"),
    [
        ("Who paid for the bridge?", False),
        ("The following section describes the method.", False),
        ("The bridge was paid for by the town.", True),
        ("See the report of Marlow Works for 1911.", True),
    ],
)
def test_questions_and_signposts_bear_no_answer(text: str, bears: bool):
    assert atoms_of(text)[0].is_answer_bearing is bears


def test_summaries_are_abstract_and_hybrid_with_figures():
    text = "# Abstract\n\nTar keeps wood dry. It lasts 12 years.\n\n# Results\n\nThe planks lost 3 kg of water each."
    assert [a.abstraction_level for a in atoms_of(text)] == ["abstract", "hybrid", "evidence"]


def test_noise_lowers_confidence():
    clean, noisy, cut = (
        atoms_of(t)[0].confidence
        for t in (
            "The harbour froze early that year.",
            "T|e h^rb~ur fr{}ze €§ &arly t h a t y e a r.",
            "The harbour froze early",
        )
    )
    assert clean == 0.95
    assert noisy < 0.6
    assert cut == round(0.95 * 0.85, 3)  # no full stop


def test_steps_precede_one_another():
    atoms = atoms_of("1. Open the valve slowly.\n2. Press the green button.\n3. Wait for the lamp.")
    assert atoms[1].relations == (
        Relation(type="follows", target="atom_0"),
        Relation(type="precedes", target="atom_2"),
    )


def test_list_items_are_part_of_their_lead_in():
    atoms = atoms_of("The ship carried these goods:\n\n- ten barrels of tar\n- one iron anchor")
    assert [a.relations for a in atoms] == [(), *[(Relation(type="part_of", target="atom_0"),)] * 2]


def test_a_pronoun_elaborates_on_the_sentence_before():
    atoms = atoms_of("The keeper lit the lamp at six. He slept until noon.")
    assert atoms[1].relations == (Relation(type="elaborates", target="atom_0"),)


def test_events_are_ordered_by_their_years_not_by_the_text():
    atoms = atoms_of("Marlow Works closed in 1954. The bankers founded Marlow Works in 1871.")
    assert Relation(type="precedes", target="atom_0") in atoms[1].relations
    assert Relation(type="follows", target="atom_1") in atoms[0].relations


def test_the_nearest_atom_with_a_rare_name_is_linked():
    atoms = atoms_of("We met Ada Brook there. The sea was rough. We lost sight of Ada Brook. They hid Ada Brook well.")
    linked = [[r.target for r in a.relations if r.type == "same_entity"] for a in atoms]
    assert linked == [[], [], ["atom_0"], ["atom_2"]]


def test_two_heights_of_one_tower_contradict():
    text = "The Sker Tower is 41 metres tall.\n\nThe Sker Tower is 44 metres tall and white."
    first, second = atoms_of(text)
    assert first.conflict_group == second.conflict_group == "conflict_0"
    assert Relation(type="contradicts", target="atom_1") in first.relations


@pytest.mark.parametrize(
    "other",
    [
        "The Sker Tower is 41 metres tall and white.",
        "The Sker Tower is 9 metres wide.",
        "The Vane Tower is 44 metres tall.",
        "In 1911 the Sker Tower was 38 metres tall.",
        "The Sker Tower is 6 metres taller than the church.",
        "The mast on the Sker Tower is 9 metres tall.",
    ],
)
def test_what_differs_in_subject_attribute_or_time_does_not_contradict(other: str):
    assert [a.conflict_group for a in atoms_of(f"The Sker Tower is 41 metres tall.\n\n{other}")] == [None, None]
