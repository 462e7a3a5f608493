"""ROPES, judged answers, stories and LongBench, in their official forms and as rows of the hub."""

import pytest

from tests.training.forms import read, table
from training.datasets import load
from training.datasets.context import Answer
from training.records import DataError


def test_ropes_joins_background_and_situation_and_groups_equal_ones(tmp_path):
    def paragraph(number, word):
        qa = {"id": number, "question": "Which cup?", "answers": [{"text": word}]}
        return {"background": "Heat melts ice. ", "situation": "Cup A is hot, cup B is cold.", "qas": [qa]}

    data = {"data": [{"title": "ropes", "paragraphs": [paragraph("1", "cup B"), paragraph("2", "Cup C")]}]}
    [context] = read("ropes", tmp_path / "x.json", data)
    assert context.text == "Background\nHeat melts ice.\n\nSituation\nCup A is hot, cup B is cold."
    assert [context.text[p.char_start : p.char_end] for p in context.paragraphs] == [
        "Heat melts ice.",
        "Cup A is hot, cup B is cold.",
    ]
    b, c = context.questions
    assert b.answers == (Answer(text="cup B", char_start=context.text.index("cup B")),) and c.answers == (
        Answer(text="Cup C"),
    )
    row = {
        "id": "1",
        "background": "Heat melts ice. ",
        "situation": "Cup A is hot, cup B is cold.",
        "question": "Which cup?",
        "answers": {"text": ["cup B"]},
    }
    [same] = load("ropes", table(tmp_path / "x.parquet", [row]))
    assert same.text == context.text and same.questions[0].answers == b.answers


def test_boolq_answers_yes_or_no(tmp_path):
    rows = [
        {"question": "do otters swim", "title": "Otter", "answer": True, "passage": "They swim."},
        {"question": "do they fly", "answer": False, "passage": "They swim."},
    ]
    [context] = read("boolq", tmp_path / "x.jsonl", rows)
    assert context.title == "Otter" and [q.answers for q in context.questions] == [
        (Answer(text="yes"),),
        (Answer(text="no"),),
    ]


def test_true_candidates_are_the_answers(tmp_path):
    candidates = [("Otters", 1), ("hens", 0), ("The otters of Tor", 1)]
    nested = {
        "text": "Otters swim.",
        "questions": [
            {
                "question": "Who?",
                "idx": 0,
                "answers": [{"text": t, "idx": i, "label": label} for i, (t, label) in enumerate(candidates)],
            },
            {"question": "None?", "idx": 1, "answers": [{"text": "x", "idx": 3, "label": 0}]},
        ],
    }
    [context] = read("multirc", tmp_path / "x.jsonl", [{"idx": 0, "passage": nested}])
    [item] = context.questions
    assert item.answers == (Answer(text="Otters", char_start=0), Answer(text="The otters of Tor"))
    rows = [
        {
            "paragraph": "Otters swim.",
            "question": "Who?",
            "answer": t,
            "label": label,
            "idx": {"paragraph": 0, "question": 0, "answer": i},
        }
        for i, (t, label) in enumerate(candidates)
    ]
    [same] = load("multirc", table(tmp_path / "x.parquet", rows))
    assert same.questions[0].answers == item.answers


def test_tales_are_read_by_section_and_questions_about_several_have_them_all(tmp_path):
    for folder in ("questions/train", "section-stories/train"):
        (tmp_path / "fairytaleqa" / folder).mkdir(parents=True)
    head = (
        "question_id,local-or-sum,cor_section,attribute1,attribute2,question,"
        "ex-or-im1,answer1,answer2,answer3,ex-or-im2,answer4,answer5,answer6\n"
    )
    (tmp_path / "fairytaleqa/questions/train/the-otter-questions.csv").write_text(
        head
        + "1,local,1,causal relationship,,Why?,explicit,It was cold.,,,explicit,cold,,\n"
        + '2,summary,"1,2",action,,What?,implicit,went home,,,,,,\n'
    )
    (tmp_path / "fairytaleqa/section-stories/train/the-otter-story.csv").write_text(
        "section,text\n1,It was cold.\n2,The otter left.\n"
    )
    first, both = load("fairytaleqa", tmp_path)
    assert (first.title, first.text, both.text) == ("the otter", "It was cold.", "It was cold.\n\nThe otter left.")
    assert [a.text for a in first.questions[0].answers] == ["It was cold.", "cold"]
    assert [c.questions[0].question_type for c in (first, both)] == ["causal", None]
    (tmp_path / "train.csv").write_text(
        "story_name,story_section,question,answer1,answer2,local-or-sum,attribute,ex-or-im,ex-or-im2\n"
        "the-otter,It was cold.,Why?,It was cold.,cold,local,causal relationship,explicit,explicit\n"
    )
    [same] = load("fairytaleqa", tmp_path / "train.csv")
    assert (same.title, same.text, same.questions[0].answers) == (first.title, first.text, first.questions[0].answers)


def test_summaries_take_the_human_answers(tmp_path):
    row = {
        "context.tokens": "Ann found a key .",
        "question.tokens": "Who ?",
        "ground_truths": ["Ann", "It is Ann"],
        "answers": "['a key', [[2, 4]]]",
    }
    [context] = read("narrativeqa", tmp_path / "x.json", [row])
    assert context.questions[0].answers == (Answer(text="Ann", char_start=0), Answer(text="It is Ann"))
    hub = {
        "document": {"text": "The whole book .", "summary": {"text": "Ann found a key ."}},
        "question": {"text": "Who ?"},
        "answers": [{"text": "Ann"}],
    }
    [same] = load("narrativeqa", table(tmp_path / "x.parquet", [hub]))
    assert same.text == context.text and same.questions[0].answers == (Answer(text="Ann", char_start=0),)


def test_longbench_names_the_subset_and_leaves_out_what_asks_nothing(tmp_path):
    row = {
        "input": "Who?",
        "context": "Ann sang.",
        "answers": ["Ann"],
        "length": 2,
        "dataset": "2wikimqa_e",
        "_id": "1",
    }
    [context] = read("longbench", tmp_path / "x.jsonl", [row, {**row, "dataset": "gov_report"}])
    assert (context.dataset, context.mode) == ("longbench/2wikimqa", "multi_hop")


@pytest.mark.parametrize(
    ("name", "data"),
    [("squad", {"rows": []}), ("ropes", [{"situation": "x"}]), ("boolq", [{"question": "x"}]), ("musique", [["x"]])],
)
def test_another_form_is_refused_by_the_name_of_file_and_set(tmp_path, name, data):
    with pytest.raises(DataError, match=rf"x.json is not in the format of {name}: .*See https"):
        read(name, tmp_path / "x.json", data)
