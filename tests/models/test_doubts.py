"""Doubts: names, opposites and negations of a question that its atoms do not have."""

import pytest

from models.doubts import doubts

LAKE = "Ilse Kant measured the deepest lake of Oland in 1913."
FERRY = "Kant's ferry did not sink."


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Who measured the deepest lake of Oland?", (0, 0, 0)),
        ("Who measured the deepest lake of Norland in 1914?", (2, 0, 0)),  # a name and a number
        (
            "Who of Norland, Westland, Eastland and Marn measured it in 1914 or 1915?",
            (3, 0, 0),
        ),  # six, and no more than 3
        ("The pump is broken. How do I mend it?", (0, 0, 0)),  # a sentence's first word, and "I"
        ("Did Dr. Spry measure it?", (2, 0, 0)),  # no sentence ends behind a title
        ("Norland has a lake; who measured it?", (0, 0, 0)),  # the first word has its capital anyway
        ("What is Kant\u2019s lake called?", (0, 0, 0)),  # a possessive, in either apostrophe
        ("Who never measured the deepest lake?", (0, 0, 1)),
        ("Who didn't measure the deepest lake?", (0, 0, 1)),
        ("Why did Kant's ferry not sink?", (0, 0, 0)),  # the nearest atom has a negation too
        ("Which ferry rose?", (0, 0, 0)),
    ],
)
def test_what_a_question_says_and_no_atom_does(question: str, expected: tuple[int, int, int]) -> None:
    assert doubts(question, [LAKE, FERRY]) == expected


@pytest.mark.parametrize(
    ("question", "is_opposite"),
    [
        ("Who wrote the last letter?", True),
        ("Who wrote the first letter?", False),
        ("Was the last letter written before the first?", False),  # it has both words itself
        ("Who wrote the heavy letter?", False),
    ],
)
def test_an_opposite_counts_where_the_word_itself_is_nowhere(question: str, is_opposite: bool) -> None:
    assert doubts(question, ["Ilse wrote the first letter.", "It rained."])[1] == is_opposite


def test_an_atom_that_has_the_word_settles_its_opposite_in_another() -> None:
    assert doubts("Who wrote the last letter?", ["Ilse wrote the first letter.", "Otto wrote the last one."])[1] == 0


def test_no_atoms_cast_no_doubt() -> None:
    assert doubts("Who never lived in Oland?", []) == (0, 0, 0)
