"""Contexts: where answers are found, and what happens to places when paragraphs go."""

from training.datasets.context import (
    Answer,
    Context,
    QAItem,
    clean_title,
    distinct,
    join_paragraphs,
    join_spans,
    locate,
    without_paragraphs,
)


def test_an_official_offset_is_believed_where_the_text_agrees():
    assert locate("an ox and an ox", "ox", 13).char_start == 13


def test_a_wrong_offset_leads_to_the_nearest_occurrence():
    assert locate("an ox and an ox", "ox", 11).char_start == 13
    assert locate("an ox and an ox", "ox", 4).char_start == 3


def test_only_whole_words_count_and_case_only_where_no_other_way_is_left():
    assert locate("the concat of a cat", "cat").char_start == 16
    assert locate("concatenate", "cat").char_start is None
    assert locate("Cat and cat", "cat").char_start == 8
    assert locate("Cell X grew", "cell x").char_start == 0


def test_words_of_chinese_need_no_spaces_around_them():
    assert locate("他在北京出生", "北京").char_start == 2


def test_an_answer_that_begins_with_a_sign_is_found_behind_a_letter():
    assert locate("It cost US$5.", "$5").char_start == 10
    assert locate("It cost $50.", "$5").char_start is None


def test_characters_that_grow_when_lowered_do_not_move_offsets():
    assert locate("İİ and the CAT", "cat").char_start == 11


def test_joined_spans_are_one_reference_with_the_ranges_of_each():
    answer, evidence = join_spans("Ada and later Bo sang", ["Ada", "Bo", "Cy"])
    assert answer == Answer(text="Ada and Bo and Cy")
    assert evidence == ((0, 3), (14, 16))


def test_a_single_span_is_located_itself():
    assert join_spans("Ada sang", ["Ada", "Ada"]) == (Answer(text="Ada", char_start=0), ((0, 3),))


def test_of_answers_with_equal_words_the_first_counts():
    answers = [Answer(text="a", char_start=1), Answer(text="b"), Answer(text="a", char_start=9)]
    assert distinct(answers) == (answers[0], answers[1])


def test_paragraphs_lie_below_their_titles():
    text, (one, two) = join_paragraphs([("Marn", "A town.", True), ("", "A lake.", False)])
    assert text == "Marn\nA town.\n\nA lake."
    assert [text[p.char_start : p.char_end] for p in (one, two)] == ["A town.", "A lake."]


def test_taking_a_paragraph_out_moves_what_points_behind_it_and_forgets_what_pointed_into_it():
    text, paragraphs = join_paragraphs([("Tor", "A lake.", False), ("Marn", "A town.", True)])
    town, lake = text.index("town"), text.index("lake")
    item = QAItem(
        question_id="1",
        question="What is Marn?",
        answers=(Answer(text="town", char_start=town), Answer(text="lake", char_start=lake)),
        evidence=((town - 2, town + 5), (lake, lake + 4)),
    )
    context = Context(
        dataset="x", context_id="1", title="", text=text, questions=(item,), mode="multi_hop", paragraphs=paragraphs
    )
    left = without_paragraphs(context, {0})
    assert left.text == "Marn\nA town."
    assert left.questions[0].answers == (Answer(text="town", char_start=7), Answer(text="lake"))
    assert [left.text[a:b] for a, b in left.questions[0].evidence] == ["A town."]
    assert [left.text[p.char_start : p.char_end] for p in left.paragraphs] == ["A town."]


def test_titles_of_machines_become_empty_and_those_of_people_stay():
    assert [clean_title(t) for t in ("ec0", "dev_12", "show s03 e11", "7", None)] == [""] * 5
    assert [clean_title(t) for t in ("Super_Bowl_50", "Windows 8", "Beyoncé")] == [
        "Super Bowl 50",
        "Windows 8",
        "Beyoncé",
    ]
