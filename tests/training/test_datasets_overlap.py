"""De-duplication: what counts as shared text, and what is done about it."""

from dataclasses import replace

import pytest

from training.datasets.context import Answer, Context, QAItem, join_paragraphs
from training.datasets.overlap import HeldOut, merge_equal


def words(*numbers):
    return " ".join(f"w{n}" for n in numbers)


def passage(text, *questions, title=""):
    items = tuple(QAItem(question_id=q, question=q, answers=()) for q in questions)
    return Context(dataset="squad", context_id=text, title=title, text=text, questions=items, mode="extractive")


def hops(*parts, answer="town"):
    text, paragraphs = join_paragraphs(parts)
    item = QAItem(question_id="q", question="What?", answers=(Answer(text=answer, char_start=text.index(answer)),))
    return Context(
        dataset="hotpotqa",
        context_id=text,
        title="",
        text=text,
        questions=(item,),
        mode="multi_hop",
        paragraphs=paragraphs,
    )


def test_thirteen_words_in_a_row_count_and_twelve_do_not():
    held_out = HeldOut({"dev": [passage(words(*range(20)))]})
    thirteen, twelve = passage(words(90, *range(3, 16), 91)), passage(words(90, *range(3, 15), 91, 92))
    kept, overlap = held_out.clean(thirteen)
    assert kept is None and overlap.near == {"dev"} and not overlap.exact
    assert held_out.clean(twelve)[0] == twelve


def test_the_order_of_words_counts():
    held_out = HeldOut({"dev": [passage(words(*range(13)))]})
    assert held_out.clean(passage(words(*reversed(range(13)))))[0] is not None


def test_case_and_punctuation_do_not_count_and_short_texts_must_be_equal():
    held_out = HeldOut({"dev": [passage("the shop closed")], "test": [passage("The shop: closed")]})
    kept, overlap = held_out.clean(passage("The SHOP, closed!"))
    assert kept is None and overlap.exact == {"dev", "test"}
    assert held_out.clean(passage("The shop"))[0] is not None


def test_chinese_is_compared_by_characters():
    held_out = HeldOut({"dev": [passage("甲乙丙丁戊己庚辛壬癸子丑寅卯")]})
    assert held_out.clean(passage("前甲乙丙丁戊己庚辛壬癸子丑寅后"))[0] is None
    assert held_out.clean(passage("前甲乙丙丁戊己庚辛壬癸子丑后"))[0] is not None


def test_a_needed_paragraph_that_is_held_out_drops_the_sample_whatever_its_title():
    held_out = HeldOut({"dev": [passage("Marn is a town.")]})
    kept, overlap = held_out.clean(hops(("Marn", "Marn is a town.", True), ("Tor", "A lake.", False)))
    assert kept is None and overlap.exact == {"dev"}


def test_a_distractor_that_is_held_out_is_taken_out_of_the_context():
    held_out = HeldOut({"dev": [passage("Tor is a lake.")]})
    kept, overlap = held_out.clean(hops(("Tor", "Tor is a lake.", False), ("Marn", "Marn is a town.", True)))
    assert kept.text == "Marn\nMarn is a town." and overlap.exact == {"dev"}
    [answer] = kept.questions[0].answers
    assert kept.text[answer.char_start :] == "town."


def test_a_multi_hop_context_in_one_piece_or_without_any_clean_paragraph_is_dropped():
    held_out = HeldOut({"dev": [passage("Tor is a lake.")]})
    whole = replace(passage("Tor is a lake."), mode="multi_hop")
    assert (
        held_out.clean(whole)[0] is None
        and held_out.clean(hops(("", "Tor is a lake.", False), answer="Tor"))[0] is None
    )
    assert HeldOut({"dev": [whole]}).clean(passage("Tor is a lake."))[0] is None


def test_distractors_of_an_evaluation_question_are_not_held_out():
    held_out = HeldOut({"dev": [hops(("Marn", "Marn is a town.", True), ("Tor", "Tor is a lake.", False))]})
    assert held_out.clean(passage("Tor is a lake."))[0] is not None
    assert held_out.clean(passage("Marn is a town."))[0] is None


@pytest.mark.parametrize(
    ("background", "situation", "is_kept"),
    [("Ice melts.", "Kim had a cup.", False), ("Ice melts.", "Bo had a pan.", True)],
)
def test_ropes_is_compared_by_situation_alone(background, situation, is_kept):
    def ropes(*parts):
        text, paragraphs = join_paragraphs(parts)
        return Context(
            dataset="ropes", context_id="1", title="", text=text, questions=(), mode="extractive", paragraphs=paragraphs
        )

    dev = ropes(("Background", "Ice melts.", True), ("Situation", "Kim had a cup.", True))
    trained = ropes(("Background", background, True), ("Situation", situation, True))
    assert (HeldOut({"ropes": [dev]}).clean(trained)[0] is not None) == is_kept


def test_nothing_held_out_leaves_all_as_it_is():
    assert HeldOut({}).clean(passage("A text."))[0] == passage("A text.")
    assert HeldOut({"dev": [passage("")]}).clean(passage("A text."))[0] == passage("A text.")


def test_equal_contexts_join_their_questions_and_the_first_of_equal_ones_counts():
    first, second = passage("Same.", "Who?", "Why?"), passage("Same.", "How?", "Who?", title="T")
    [merged] = merge_equal([first, second])
    assert merged.title == "T"
    assert [item.question for item in merged.questions] == ["Who?", "Why?", "How?"]
    assert merged.questions[0] is first.questions[0]
