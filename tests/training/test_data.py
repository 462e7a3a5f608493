"""Raw sets to records: reading both forms, gold atoms from spans, and de-duplication."""

import json

import pytest

from models.atomizer import build_atomizer
from models.config import AtomizerConfig
from training.data import (
    Passage,
    annotate,
    clean_title,
    read_squad,
    without_overlap,
)
from training.records import DataError

CONTEXT = "Ilse Kant was born in Marn in 1881. She built the nine bridges of Marn. The town burned in 1920."


def write_json(path, data):
    path.write_text(json.dumps(data), "utf-8")
    return path


def passage(context, *questions, title=""):
    return Passage(title=title, context=context, questions=tuple((q, q, (), False) for q in questions))


def words(*numbers):
    return " ".join(f"w{n}" for n in numbers)


def test_squad_files_give_passages_with_distinct_answers(tmp_path):
    answers = [{"text": "Marn", "answer_start": 22}, {"text": "Marn", "answer_start": 22}]
    qas = [
        {"id": "a", "question": " Where was Ilse Kant born? ", "answers": answers},
        {"id": "b", "question": "Who sank?", "answers": [], "is_impossible": True},
        {"id": "c", "question": "Who swam?", "answers": []},
    ]
    data = {"data": [{"title": "Ilse_Kant", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    [found] = read_squad(write_json(tmp_path / "s.json", data))
    assert (found.title, found.context) == ("Ilse Kant", CONTEXT)
    assert found.questions == (
        ("a", "Where was Ilse Kant born?", (("Marn", 22),), False),
        ("b", "Who sank?", (), True),
        ("c", "Who swam?", (), True),
    )


def test_flat_files_join_questions_by_context_and_give_each_its_own_id(tmp_path):
    rows = [
        {"context": "A fox ran.", "question": "Who ran?", "answer": "fox"},
        {"context": "A hen sat.", "question": "Who sat?", "answer": "hen"},
        {"context": "A fox ran.", "question": "What did it do?", "answer": "ran"},
        {"context": "A fox ran.", "question": "Why?", "answer": "not in the text"},
    ]
    fox, hen = read_squad(write_json(tmp_path / "flat.json", rows))
    assert [(q[1], q[2]) for q in fox.questions] == [("Who ran?", (("fox", 2),)), ("What did it do?", (("ran", 6),))]
    assert [q[1] for q in hen.questions] == ["Who sat?"]
    ids = [q[0] for p in (fox, hen) for q in p.questions]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(("content", "message"), [('{"rows": []}', "no key 'data'"), ("{oops", "not JSON")])
def test_a_file_of_another_form_is_refused(tmp_path, content, message):
    (tmp_path / "x.json").write_text(content, "utf-8")
    with pytest.raises(DataError, match=message):
        list(read_squad(tmp_path / "x.json"))


def test_a_missing_file_names_the_option_that_gives_the_folder(tmp_path):
    with pytest.raises(DataError, match=r"does not exist.*--data"):
        list(read_squad(tmp_path / "none.json"))


def test_titles_of_machines_become_empty_and_those_of_people_stay():
    assert [clean_title(t) for t in ("ec0", "dev_12", "show s03 e11", "7")] == [""] * 4
    assert [clean_title(t) for t in ("Super_Bowl_50", "Windows 8", "Beyoncé")] == [
        "Super Bowl 50",
        "Windows 8",
        "Beyoncé",
    ]


def test_gold_atoms_are_those_whose_span_holds_the_answer():
    source = Passage(
        title="",
        context=CONTEXT,
        questions=(
            ("a", "When did the town burn?", (("1920", CONTEXT.index("1920")),), False),
            ("b", "Where was she born and what did she build?", (("1881. She built", CONTEXT.index("1881")),), False),
            ("c", "Who sank?", (), True),
        ),
    )
    record = annotate(source, build_atomizer(AtomizerConfig()))
    spans = {a.atom_id: a.source_span for a in record.atoms}
    gold = [[spans[i] for i in q.gold_atom_ids] for q in record.qa_pairs]
    born, built, burned = (
        "Ilse Kant was born in Marn in 1881.",
        "She built the nine bridges of Marn.",
        "The town burned in 1920.",
    )
    assert gold == [[burned], [born, built], []]
    assert [q.is_irrelevant for q in record.qa_pairs] == [False, False, True]
    assert record.qa_pairs[0].answers == ("1920",)


def test_no_label_reaches_an_atom():
    atomizer = build_atomizer(AtomizerConfig())
    with_answers = Passage(
        title="", context=CONTEXT, questions=(("a", "When?", (("1920", CONTEXT.index("1920")),), False),)
    )
    without = Passage(title="", context=CONTEXT, questions=())
    assert annotate(with_answers, atomizer).atoms == annotate(without, atomizer).atoms


def test_thirteen_shared_words_drop_a_passage_and_twelve_do_not():
    held_out = words(*range(20))
    thirteen, twelve = words(90, *range(3, 16), 91), words(90, *range(3, 15), 91, 92)
    kept, dropped = without_overlap([passage(thirteen), passage(twelve)], [held_out])
    assert ([p.context for p in kept], dropped) == ([twelve], 1)


def test_overlap_ignores_case_and_punctuation_and_short_texts_must_be_equal():
    kept, dropped = without_overlap([passage("The SHOP, closed!"), passage("The shop")], ["the shop closed"])
    assert ([p.context for p in kept], dropped) == (["The shop"], 1)


def test_equal_contexts_merge_their_questions_and_keep_the_first_of_equal_ones():
    first = Passage(
        title="", context="Same.", questions=(("1", "Who?", (("Same", 0),), False), ("2", "Why?", (), True))
    )
    second = Passage(title="T", context="Same.", questions=(("3", "Who?", (), True), ("4", "How?", (), True)))
    [merged], dropped = without_overlap([first, second], [])
    assert dropped == 0 and merged.title == "T"
    assert sorted(q[0] for q in merged.questions) == ["1", "2", "4"]
