"""Spans, sentences and windows: character arithmetic that must never be off by one."""

import random
from itertools import pairwise

from models.atomizer.spans import locate_span, sentences, windows

PAGE = """# Harbour log

Dr. Vane left Port Ellis at 6.30 a.m. on 4 May. The sea was
calm, and nobody spoke.

- two barrels of tar
- one anchor

| item | weight |
|------|--------|
| rope | 12 kg  |
"""


def texts(text: str, ranges: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in ranges]


def random_text(rng: random.Random, length: int) -> str:
    alphabet = "aB9 .,;:!?\n\n\t|-#*()\"'>é中。ß\u00a0\u2028\x00\x1c\ud800😀"
    pick = rng.choice((alphabet, [chr(rng.randrange(1, 0x3000)) for _ in range(60)]))
    return "".join(rng.choice(pick) for _ in range(length))


def test_an_exact_span_is_found_at_or_after_the_start():
    text = "red fox, red fox"
    assert locate_span(text, "red fox") == (0, 7)
    assert locate_span(text, "red fox", start=1) == (9, 16)  # 7 letters, comma, space


def test_an_occurrence_before_the_start_is_better_than_none():
    assert locate_span("red fox, grey wolf", "red fox", start=5) == (0, 7)


def test_any_run_of_white_space_matches_any_other():
    text = "It rained\n  all   day."
    assert locate_span(text, "rained all day") == (3, 21)
    assert text[3:21] == "rained\n  all   day"


def test_an_exact_span_wins_over_an_earlier_one_with_other_spaces():
    assert locate_span("a  b then a b", "a b") == (10, 13)


def test_a_span_that_is_not_there_is_not_found():
    assert locate_span("It rained all day.", "it rained") is None
    assert locate_span("It rained all day.", " \n ") is None


def test_special_characters_in_a_span_are_literal():
    assert locate_span("cost (approx.)\n$5", "(approx.) $5") == (5, 17)


def test_blocks_end_sentences_and_line_breaks_do_not():
    assert texts(PAGE, sentences(PAGE, "en")) == [
        "# Harbour log",
        "Dr. Vane left Port Ellis at 6.30 a.m. on 4 May.",
        "The sea was\ncalm, and nobody spoke.",
        "- two barrels of tar",
        "- one anchor",
        "| item | weight |",
        "|------|--------|",
        "| rope | 12 kg  |",
    ]


def test_chinese_sentences_end_at_their_own_full_stop():
    text = "港口很安静。船长说话了！"
    assert texts(text, sentences(text, "zh")) == ["港口很安静。", "船长说话了！"]


def test_a_sentence_cut_by_a_page_break_goes_on():
    text = "The captain had counted every barrel in the hold\n\nand found two of them empty."
    assert len(sentences(text)) == 1


def test_code_keeps_its_comment_lines_out_of_the_headings():
    text = "```\n# not a heading\n\nx = 1\n```"
    assert texts(text, sentences(text)) == [text]


def test_sentences_lose_no_character_of_any_text():
    rng = random.Random(7)
    for _ in range(400):
        text = random_text(rng, rng.randrange(200))
        ranges = sentences(text)
        assert all(first[1] <= second[0] for first, second in pairwise(ranges))
        assert "".join("".join(texts(text, ranges)).split()) == "".join(text.split())


def test_windows_hold_whole_sentences_up_to_their_size():
    text = "One two three. Four five six. Seven eight nine."
    # "One two three. Four five six." is 29 characters; the third sentence would make it 47.
    assert texts(text, windows(text, max_chars=30)) == ["One two three. Four five six.", "Seven eight nine."]


def test_a_sentence_longer_than_a_window_is_cut_at_a_blank():
    assert texts("alpha beta gamma", windows("alpha beta gamma", max_chars=11)) == ["alpha beta", "gamma"]


def test_windows_lose_no_character_and_stay_within_their_size():
    rng = random.Random(8)
    for _ in range(200):
        text = random_text(rng, rng.randrange(400))
        size = rng.randrange(1, 80)
        ranges = windows(text, max_chars=size)
        assert all(0 < end - start <= size for start, end in ranges)
        assert "".join("".join(texts(text, ranges)).split()) == "".join(text.split())
