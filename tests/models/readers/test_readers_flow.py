"""Lines of a layout to running text."""

from __future__ import annotations

import pytest

from models.readers.flow import drop_running_lines, flow


def _flow(text: str) -> str:
    return flow([text])[0]


def test_wrapped_lines_become_one_paragraph_and_short_last_lines_end_it() -> None:
    text = (
        "The river rises in the northern hills and runs through three\n"
        "provinces before it reaches the sea near the old harbour, where\n"
        "fishing boats still land.\n"
        "In winter the upper valley is closed to traffic, and the mail is\n"
        "carried over the pass on skis by two men from the village."
    )
    assert _flow(text).split("\n\n") == [
        "The river rises in the northern hills and runs through three provinces before it reaches the sea near the "
        "old harbour, where fishing boats still land.",
        "In winter the upper valley is closed to traffic, and the mail is carried over the pass on skis by two men "
        "from the village.",
    ]


def test_a_heading_stands_by_itself() -> None:
    text = (
        "the measurements were repeated on three days with the same result.\n"
        "2.1 Materials\n"
        "Samples were taken from the lake at a depth of two metres and kept\n"
        "on ice until they reached the laboratory in the afternoon of the day."
    )
    assert "\n2.1 Materials\n\nSamples were" in _flow(text)


def test_a_heading_after_a_raised_reference_stands_by_itself() -> None:
    text = (
        "the tool allows a comparison of different methods of explanation and it\n"
        "is used for the prediction of molecular properties in many groups now. 84\n"
        "Surrogate models\n"
        "One approach to explain such predictions is to fit an interpretable model."
    )
    assert "\n\nSurrogate models\n\nOne approach" in _flow(text)


def test_lines_of_a_receipt_stay_apart() -> None:
    lines = ["Corner Shop", "12 Mill Lane", "Bread $3.20", "Butter $4.10", "Total $7.30"]
    assert _flow("\n".join(lines)).split("\n") == lines


def test_list_items_stay_apart_and_their_wrapped_lines_are_joined() -> None:
    text = "You need the following things:\n• a rope of at least forty metres that has been\nchecked\n• two lamps"
    assert _flow(text).endswith("• a rope of at least forty metres that has been checked\n• two lamps")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("the result of a compu-\ntation is stored", "a computation is"),
        ("a state-of-the-\nart method is used", "state-of-the-art method"),
        ("we measured n-\ntridecanal in samples", "n-tridecanal in"),
        ("this is a well-\nknown property of it", "well-known property"),
        ("the high-\nest mountain of all", "the highest mountain"),
        ("imports of vracht-\nen personenwagens", "vracht- en personenwagens"),
        ("the import-\nand export of goods", "import- and export"),
        ("written by Smith-\nJones in the spring", "Smith-Jones in"),
        ("the years 1914-\n18 were hard ones", "1914-18 were"),
        ("see the COVID-\nrelated cases there", "COVID-related cases"),
        ("an idea -\nnot a new one", "an idea - not"),
    ],
)
def test_only_hyphens_of_broken_words_are_removed(lines: str, expected: str) -> None:
    assert expected in _flow(lines)


def test_the_document_itself_decides_how_a_broken_word_is_written() -> None:
    assert "nonlinear one" in _flow("A nonlinear model. It is a non-\nlinear one")
    assert "re-creation two" in _flow("The re-creation one. It is a re-\ncreation two")
    assert "black-box case" in _flow("The black and the grey box here. It is a black-\nbox case")


def test_chinese_lines_are_joined_without_a_space() -> None:
    text = "机器学习模型是人工智能的一个重要分支它研究如何让\n计算机从数据中学习规律并且用于预测和决策任务"
    assert "如何让计算机" in _flow(text)


def test_a_drop_cap_rejoins_its_word() -> None:
    assert _flow("T\nhe nut is of one piece").startswith("The nut")


def test_a_sentence_runs_over_a_page_break_and_the_pages_cover_the_text() -> None:
    pages = flow(["The committee met in May and found that an agreed upon", "measure was lacking.\n\nIt adjourned."])
    assert "".join(pages) == (
        "The committee met in May and found that an agreed upon measure was lacking.\n\nIt adjourned."
    )
    assert pages[1].startswith("measure")


def test_a_word_broken_by_a_page_break_is_joined() -> None:
    assert flow(["It was a regu-", "larizing term."]) == ["It was a regu", "larizing term."]


def test_headers_footers_and_page_numbers_that_recur_are_dropped_once_seen() -> None:
    pages = [f"Annual Report\nBody of page {n} says something.\n\nPage {n} of 9" for n in range(1, 6)]
    cleaned = drop_running_lines(pages)
    assert "".join(cleaned).count("Annual Report") == 1
    assert "of 9" not in "".join(cleaned)
    assert all(f"Body of page {n} says" in page for n, page in enumerate(cleaned, start=1))


def test_rows_of_numbers_at_page_edges_are_not_taken_for_page_numbers() -> None:
    pages = [f"{7 * n + 3} {n * n} {90 - 4 * n}\n{n**3}\n{13 * n} {50 - n}" for n in range(1, 8)]
    assert drop_running_lines(pages) == pages


def test_numbered_entries_are_not_taken_for_page_numbers() -> None:
    pages = [f"Question {n}\nEntry {n} of the register.\nAnswer {n}" for n in range(1, 30)]
    assert drop_running_lines(pages) == pages


def test_bare_page_numbers_go_from_the_second_page_on() -> None:
    assert drop_running_lines(["Some words.\n11", "Other words.\n- 12 -"]) == [
        "Some words.\n11",
        "Other words.\n- 12 -",
    ]
    assert drop_running_lines(["Some words.\n11", "Other words.\n12"]) == ["Some words.\n", "Other words.\n"]


def test_a_header_on_three_pages_stays() -> None:
    pages = [f"Draft\nText number {word}.\nEnd {word}" for word in ("one", "two", "three")]
    assert drop_running_lines(pages) == pages


def test_marked_headings_and_rows_keep_a_line_each() -> None:
    page = "The harbour was closed when\n# Traffic by year\nand it\nYear | Ships\n1909 | 212\nships were counted."
    assert flow([page]) == [
        "The harbour was closed when\n\n# Traffic by year\n\nand it\n\nYear | Ships\n1909 | 212\n\nships were counted."
    ]
