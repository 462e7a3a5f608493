"""Claims about rules in place of adapters: quantities apart, paragraphs apart and bridged, words verbatim."""

from __future__ import annotations

import pytest

from models.atoms import Atom, Relation
from models.config import AtomizerConfig
from training.annotation import DiscardedSampleError
from training.annotation.decomposition import build_decomposer
from training.annotation.structure import split_quantities
from training.datasets.context import Context, join_paragraphs


def context(text: str, mode: str = "numeric") -> Context:
    return Context(dataset="made", context_id="made-0", title="", text=text, questions=(), mode=mode)


def decomposed(made: Context) -> tuple[Atom, ...]:
    atoms = build_decomposer(AtomizerConfig()).decompose(made).atoms
    assert all(made.text[a.char_start : a.char_end] == a.source_span for a in atoms)
    assert [a.atom_id for a in atoms] == [f"atom_{place}" for place in range(len(atoms))]
    return atoms


def test_each_quantity_of_a_sentence_gets_an_atom_with_its_words_verbatim() -> None:
    atoms = decomposed(context("Tern Harbour landed 410 tons of herring, and bought 35 nets for its crews."))
    assert [a.source_span for a in atoms] == [
        "Tern Harbour landed 410 tons of herring",
        "bought 35 nets for its crews.",
    ]
    assert [a.content for a in atoms] == [
        "Tern Harbour landed 410 tons of herring",
        "Tern Harbour: bought 35 nets for its crews.",
    ]
    assert atoms[1].relations == (Relation(type="elaborates", target="atom_0"),)


def test_what_opens_a_sentence_holds_for_each_of_its_quantities() -> None:
    atoms = decomposed(context("In 1931, Tern Harbour landed 410 tons of herring but sold 35 tons of salt."))
    assert [a.content for a in atoms] == [
        "In 1931, Tern Harbour landed 410 tons of herring",
        "In 1931, Tern Harbour: sold 35 tons of salt.",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "Tern Harbour landed from 410 tons and 3 boats to 500 tons of herring.",
        "Boats of Tern Harbour were lost in 1931 and 1932 at sea.",
        "The mole of Tern Harbour was opened on March 3, 1990 by the mayor.",
        "Tern Harbour landed 1,410.5 tons of herring.",
        "Tern Harbour has a mole and a light.",
    ],
)
def test_ranges_lists_dates_and_single_quantities_stay_whole(sentence: str) -> None:
    assert [a.source_span for a in decomposed(context(sentence))] == [sentence]


def test_other_modes_leave_sentences_whole() -> None:
    text = "Tern Harbour landed 410 tons of herring, and bought 35 nets for its crews."
    assert [a.source_span for a in decomposed(context(text, "extractive"))] == [text]


def test_relations_to_a_split_atom_lead_to_its_first_piece() -> None:
    def atom(number: int, text: str, *targets: str) -> Atom:
        return Atom(
            atom_id=f"atom_{number}",
            semantic_type="fact_claim",
            content=text,
            source_span=text,
            retrieval_text=text,
            relations=tuple(Relation(type="follows", target=t) for t in targets),
            char_start=0,
            char_end=len(text),
        )

    before = (atom(0, "It has 2 cranes, and needs 3 more.", "atom_1"), atom(1, "The quay is new.", "atom_0"))
    after = split_quantities(before)
    # Two pieces and one whole atom: the quay moves from place 1 to place 2.
    assert [[(r.type, r.target) for r in a.relations] for a in after] == [
        [("follows", "atom_2")],
        [("elaborates", "atom_0")],
        [("follows", "atom_0")],
    ]


def paragraphs(*pairs: tuple[str, str]) -> Context:
    text, placed = join_paragraphs((title, body, False) for title, body in pairs)
    return Context(
        dataset="made", context_id="hop", title="", text=text, questions=(), mode="multi_hop", paragraphs=placed
    )


def test_a_paragraph_that_names_anothers_title_is_bridged_to_it_in_both_directions() -> None:
    made = paragraphs(
        ("Salt Road (film)", "Salt Road is a film directed by Ines Okafor."),
        ("Gannet Rock", "Gannet Rock is an islet with a light."),
        ("Ines Okafor", "Ines Okafor was born in Lisbon. She studied law."),
    )
    atoms = decomposed(made)
    links = {a.atom_id: {r.target for r in a.relations if r.type == "same_entity"} for a in atoms}
    assert links["atom_0"] == {"atom_2"}
    assert "atom_0" in links["atom_2"]
    assert links["atom_1"] == set()


def test_a_name_in_most_paragraphs_is_no_bridge() -> None:
    made = paragraphs(*((f"Village {n}", f"The village number {n} lies in West Fenland.") for n in range(5)))
    assert [a.relations for a in decomposed(made)] == [()] * 5


def test_each_paragraph_is_understood_under_its_own_title() -> None:
    made = paragraphs(("Gannet Rock", "It has a light."), ("Salt Road", "It is a film."))
    assert [a.content for a in decomposed(made)] == ["Gannet Rock: It has a light.", "Salt Road: It is a film."]


def test_a_context_without_text_is_discarded() -> None:
    with pytest.raises(DiscardedSampleError, match="made-0 holds no text"):
        decomposed(context(" \n"))
