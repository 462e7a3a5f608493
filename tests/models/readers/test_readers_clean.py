"""Normal form of characters."""

from __future__ import annotations

import pytest

from models.readers.clean import damage, normalise, superscript, tidy


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("e\x00ective", "eective"),
        ("eﬃcient ﬁnding of ﬀ and ﬂow", "efficient finding of ff and flow"),
        ("compu\ufffe\ntation", "computation"),
        ("compu\u00ad\n  tation and re\u00adview", "computation and review"),
        ("a\x1b]0;title\x07b\x9b2Jc", "a]0;titleb2Jc"),
        ("evil\u202egpj.exe\u2066", "evilgpj.exe"),
        ("line\r\nline\rline\x0cpage", "line\nline\nline\npage"),
        ("no\u00a0break\u2009space", "no break space"),
        ("cafe\u0301", "café"),
        ("\ud83d\ude00 and \udb62", "😀 and \ufffd"),
    ],
)
def test_characters_that_hinder_search_or_terminals_are_normalised(raw: str, clean: str) -> None:
    assert normalise(raw) == clean


def test_superscripts_and_units_survive_unlike_under_compatibility_folding() -> None:
    assert normalise("10⁶ m² at 5 µm, ½ litre, ™") == "10⁶ m² at 5 µm, ½ litre, ™"


def test_a_raised_exponent_does_not_become_another_number() -> None:
    assert "10" + superscript("-6") == "10⁻⁶"
    assert superscript("th") == "th"


def test_tidy_keeps_one_blank_line_between_paragraphs() -> None:
    assert tidy("\n a  \n\n\n\nb\t\n") == "a\n\nb"


def test_private_use_characters_are_reported_with_an_example() -> None:
    (warning,) = damage(["The Of\ue000ce of the (cid:12) clerk"])
    assert "2 characters could not be interpreted" in warning
    assert "'Of\\ue000ce'" in warning


def test_rare_damage_in_a_long_text_is_not_worth_a_warning() -> None:
    # 1 damaged character in 5,001 is under 1 in 1,000.
    assert damage(["x" * 5000 + "\ufffd"]) == []


def test_signs_inside_words_reveal_a_font_without_a_character_map() -> None:
    (warning,) = damage(["di!cult scienti!c de#ned words"])
    assert "3 words hold a wrong sign" in warning
    assert damage(["A 5% rise, really! No #tag, cost $5"]) == []
