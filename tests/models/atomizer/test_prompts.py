"""Claims about the prompts an annotator is given."""

from __future__ import annotations

import pytest

from models.atomizer.prompts import DECOMPOSITION, ask_again
from models.atomizer.xml import parse_atoms
from models.atoms import ABSTRACTION_LEVELS, RELATION_TYPES, SEMANTIC_TYPES


@pytest.mark.parametrize("word", [*SEMANTIC_TYPES, *RELATION_TYPES, *ABSTRACTION_LEVELS])
def test_the_prompt_explains_every_value_of_the_schema(word: str) -> None:
    assert word in DECOMPOSITION.system


def test_the_example_of_the_prompt_parses_without_a_fault_and_quotes_its_passage() -> None:
    parsed = parse_atoms(DECOMPOSITION.system, is_echo=lambda text: False)
    passage = DECOMPOSITION.system.partition("Example of a passage")[2].partition("Example of a reply")[0]
    assert [d.local_id for d in parsed.drafts] == ["1", "2", "3", "4"]
    assert not parsed.repaired
    assert not [d.source_spans for d in parsed.drafts if d.source_spans[0] not in passage]


def test_a_model_that_hands_back_the_prompt_is_found_out() -> None:
    parsed = parse_atoms(DECOMPOSITION.system, is_echo=DECOMPOSITION.is_echo)
    assert parsed.drafts == ()
    assert parsed.dropped["copied from the prompt"] == 4


def test_short_words_that_stand_in_the_prompt_by_chance_are_no_echo() -> None:
    assert "oats" in DECOMPOSITION.system
    assert not DECOMPOSITION.is_echo("oats")
    assert not DECOMPOSITION.is_echo("Harrow Mill was sold in 1850 to a miller.")


def test_material_with_braces_is_put_into_the_prompt_as_it_is() -> None:
    user = DECOMPOSITION.messages(title="T", passage="set {x} & </passage> {0}")[1]["content"]
    assert "set {x} & </passage> {0}" in user


def test_an_adapter_adds_to_the_instructions_and_changes_the_fingerprint() -> None:
    adapted = DECOMPOSITION.adapted("Give every quantity an atom of its own.")
    assert adapted.system.startswith(DECOMPOSITION.system)
    assert adapted.system.endswith("Give every quantity an atom of its own.")
    assert adapted.fingerprint != DECOMPOSITION.fingerprint
    assert adapted.user == DECOMPOSITION.user


def test_asking_again_names_the_reason_and_leaves_the_first_question_alone() -> None:
    messages = DECOMPOSITION.messages(title="T", passage="P")
    again = ask_again(messages, "it was empty")
    assert "it was empty" in again[-1]["content"]
    assert again[0] == messages[0]
    assert "it was empty" not in messages[-1]["content"]
