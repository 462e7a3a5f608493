"""Claims about altered questions: near misses that their passage does not answer."""

from __future__ import annotations

from collections import Counter

import pytest

from training.annotation.altered import Altered, Alterer
from training.datasets.context import Context, QAItem, locate

TEXT = (
    "The light on Gannet Rock was built by Ines Okafor in 1868. Oil fed the largest lamp. "
    "Gulls nest there. A storm took a boat of Paul Weber in 1901."
)


def item(question: str, answer: str, *, text: str = TEXT, **more: object) -> QAItem:
    return QAItem(question_id=question, question=question, answers=(locate(text, answer),), **more)


def passage(*items: QAItem, text: str = TEXT, title: str = "Lights", name: str = "rock", **more: str) -> Context:
    given = {"dataset": "made", "mode": "extractive", **more}
    return Context(context_id=name, title=title, text=text, questions=items, **given)


def altered(context: Context, *others: Context, count: int = 9) -> list[Altered]:
    return Alterer([context, *others]).altered(context, count)


def kinds(context: Context, *others: Context) -> dict[str, str]:
    """Return the question of each kind that is made of the first question, over copies that draw differently."""
    found = {}
    for number in range(60):
        copy = Context(**{**vars(context), "context_id": f"rock {number}"})
        found.update((a.kind, a.question) for a in altered(copy, *others, count=1))
    return found


def test_a_year_becomes_one_from_another_sentence() -> None:
    context = passage(item("What was built on Gannet Rock in 1868?", "The light"))
    assert kinds(context)["number"] == "What was built on Gannet Rock in 1901?"


def test_a_name_becomes_one_of_the_passage_that_is_not_beside_the_answer() -> None:
    text = "The boat of Paul Weber sank off Tern Point. Gulls nest there. The dog of Ines Okafor came home."
    context = passage(item("Where did the boat of Paul Weber sink?", "Tern Point", text=text), text=text)
    # Ines Okafor stands after the same word, and her sentence tells of no boat.
    assert kinds(context)["entity"] == "Where did the boat of Ines Okafor sink?"


def test_a_name_that_the_passage_answers_for_is_not_put_in() -> None:
    text = "The boat of Paul Weber sank off Tern Point. Gulls nest there. The boat of Ines Okafor sank off Gull Rock."
    context = passage(item("Where did the boat of Paul Weber sink?", "Tern Point", text=text), text=text)
    assert "entity" not in kinds(context)


def test_a_name_comes_from_another_context_where_the_own_one_has_none() -> None:
    text = "The boat of Paul Weber sank off Tern Point."
    other = passage(text="The boat of Adam Weld was sold.", name="other")
    context = passage(item("Where did the boat of Paul Weber sink?", "Tern Point", text=text), text=text)
    assert kinds(context, other)["entity"] == "Where did the boat of Adam Weld sink?"


def test_a_name_from_another_context_is_not_put_in_where_the_passage_has_it() -> None:
    text = "The boat of Paul Weber sank off Tern Point. Gulls nest there. Adam Weld came home."
    other = passage(text="The boat of Adam Weld was sold.", name="other")
    context = passage(item("Where did the boat of Paul Weber sink?", "Tern Point", text=text), text=text)
    assert "entity" not in kinds(context, other)


@pytest.mark.parametrize("alias", ["Paul Adler", "Mr Weber"])
def test_an_alias_is_no_other_name(alias: str) -> None:
    text = "The boat of Paul Weber sank off Tern Point."
    other = passage(text=f"The boat of {alias} was sold.", name="other")
    context = passage(item("Where did the boat of Paul Weber sink?", "Tern Point", text=text), text=text)
    assert "entity" not in kinds(context, other)


def test_a_word_becomes_its_antonym_and_the_article_follows() -> None:
    assert kinds(passage(item("What fed the largest lamp?", "Oil")))["antonym"] == "What fed the smallest lamp?"
    text = "Oil is a domestic product."
    context = passage(item("What is a domestic product?", "Oil", text=text), text=text)
    assert kinds(context) == {"antonym": "What is a foreign product?"}
    text = "Oil is a safe and beneficial product."
    context = passage(item("What is an external product?", "Oil", text=text), text=text)
    assert kinds(context) == {"antonym": "What is an internal product?"}
    context = passage(item("What is a successful product?", "Oil", text=text), text=text)
    assert kinds(context) == {"antonym": "What is an unsuccessful product?"}


def test_an_antonym_that_the_passage_knows_is_not_put_in() -> None:
    text = f"{TEXT} Gas fed the smallest lamp."
    assert "antonym" not in kinds(passage(item("What fed the largest lamp?", "Oil", text=text), text=text))


@pytest.mark.parametrize("question", ["What is the first name of Okafor?", "Who gets most of the oil?"])
def test_a_word_without_an_opposite_there_stays(question: str) -> None:
    assert "antonym" not in kinds(passage(item(question, "Ines")))


def test_a_word_becomes_one_that_excludes_it() -> None:
    text = "The harbour lies on the north coast."
    context = passage(item("What lies on the north coast?", "The harbour", text=text), text=text)
    assert kinds(context) == {"exclusion": "What lies on the south coast?"}


@pytest.mark.parametrize(
    ("question", "negated"),
    [
        ("What did Okafor build?", "What didn't Okafor build?"),
        ("What can Okafor build?", "What can't Okafor build?"),
        ("Who was named by Okafor?", "Who wasn't named by Okafor?"),
    ],
)
def test_a_negation_is_put_in(question: str, negated: str) -> None:
    assert kinds(passage(item(question, "The light")))["negation"] == negated


@pytest.mark.parametrize("question", ["What did Okafor not build?", "What year did Okafor build it?"])
def test_a_question_with_a_negation_or_for_a_date_gets_none(question: str) -> None:
    assert "negation" not in kinds(passage(item(question, "The light")))


def test_what_the_passage_denies_is_not_asked() -> None:
    text = f"{TEXT} Okafor did not build the pier."
    assert "negation" not in kinds(passage(item("What did Okafor build?", "The light", text=text), text=text))


def test_an_altered_question_never_repeats_one_of_the_context() -> None:
    asked = item("What fed the SMALLEST lamp?", "Oil", is_impossible=True)
    assert altered(passage(item("What fed the largest lamp?", "Oil"), asked)) == []


def test_questions_that_no_rule_fits_stay_unaltered() -> None:
    closed = item("Was the largest lamp out when it blew?", "A storm")
    told = item("What is the oil of the largest lamp?", "Oil")
    choice = item("What fed the largest lamp, gas or not?", "Oil")
    statement = item("Name the largest lamp's fuel.", "Oil")
    impossible = item("What did Okafor not do in 1868?", "Oil", is_impossible=True)
    nowhere = item("What fed the largest lamp?", "Gas")
    plain = item("Why?", "A storm")
    foreign = item("油灯由什么供油？", "Oil")
    assert altered(passage(closed, told, choice, statement, impossible, nowhere, plain, foreign)) == []


def test_what_takes_reasoning_is_not_turned_round() -> None:
    question = item("What fed the largest lamp?", "Oil")
    assert altered(passage(question, mode="multi_hop")) == []
    assert altered(passage(question, dataset="ropes")) == []


def test_each_question_is_altered_once_and_no_more_than_asked() -> None:
    questions = [
        item("What was built on Gannet Rock in 1868?", "The light"),
        item("What fed the largest lamp?", "Oil"),
        item("What took the boat in 1901?", "A storm"),
    ]
    found = altered(passage(*questions))
    assert Counter(a.original.question for a in found) == Counter(q.question for q in questions)
    assert len(altered(passage(*questions), count=2)) == 2
    assert altered(passage(*questions), count=0) == []


def test_the_same_contexts_give_the_same_alterations() -> None:
    contexts = [passage(item("What was built in 1868?", "The light"), name=f"rock {n}") for n in range(5)]
    assert [altered(c, *contexts) for c in contexts] == [altered(c, *contexts) for c in contexts]
