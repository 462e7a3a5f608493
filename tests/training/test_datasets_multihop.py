"""Multi-hop sets: paragraphs, supporting sentences and answers, in all their forms."""

import json

from tests.training.forms import read, spans, table
from training.datasets import load
from training.datasets.context import Answer

TOWN, LAKE = ["Marn is a town.", "Marn lies by Tor."], ["Tor is a lake.", "Otters of Marn live in Tor."]


def test_hops_mark_supporting_paragraphs_and_sentences(tmp_path):
    row = {
        "_id": "h1",
        "type": "compositional",
        "question": "Which lake?",
        "answer": "Tor",
        "context": [["Marn", TOWN], ["Hens", ["Hens know Tor."]], ["Tor (lake)", LAKE]],
        "supporting_facts": [["Marn", 1], ["Tor (lake)", 0]],
        "qa_pairs": [{"question": "Written by a model?", "answer": "yes"}],
        "explanation": "Written by a model.",
    }
    [context] = read("2wikimultihopqa", tmp_path / "x.json", [row])
    [item] = context.questions
    assert context.text == (
        "Marn\nMarn is a town. Marn lies by Tor.\n\nHens\nHens know Tor.\n\n"
        "Tor (lake)\nTor is a lake. Otters of Marn live in Tor."
    )
    assert [(p.title, p.is_supporting) for p in context.paragraphs] == [
        ("Marn", True),
        ("Hens", False),
        ("Tor (lake)", True),
    ]
    assert spans(context, item) == ["Marn lies by Tor.", "Tor is a lake."]
    # The answer is located in the last supporting paragraph, not in its title nor where it is first named.
    assert item.answers == (Answer(text="Tor", char_start=context.text.index("Tor is")),)
    assert item.question_type == "multi_hop"
    columns = {
        "id": "h1",
        "type": "comparison",
        "question": "Which lake?",
        "answer": "yes",
        "context": {"title": ["Marn", "Tor (lake)"], "sentences": [TOWN, [LAKE[0], f" {LAKE[1]}"]]},
        "supporting_facts": {"title": ["Marn", "Tor (lake)"], "sent_id": [1, 1]},
    }
    [other] = load("hotpotqa", table(tmp_path / "x.parquet", [columns]))
    assert spans(other, other.questions[0]) == ["Marn lies by Tor.", "Otters of Marn live in Tor."]
    assert other.questions[0].answers == (Answer(text="yes"),) and other.questions[0].question_type == "comparison"
    as_text = {**row, "context": json.dumps(row["context"]), "supporting_facts": json.dumps(row["supporting_facts"])}
    assert read("2wikimultihopqa", tmp_path / "y.jsonl", [as_text]) == [context]


def test_samples_without_a_context_are_left_out(tmp_path):
    row = {"_id": "1", "question": "?", "answer": "no", "supporting_facts": [["Marn", 0]]}
    assert read("2wikimultihopqa", tmp_path / "x.jsonl", [row]) == []


def test_musique_keeps_aliases_and_unanswerable_questions(tmp_path):
    paragraphs = [
        {"idx": 0, "title": "Marn", "paragraph_text": "Marn lies by Tor.", "is_supporting": True},
        {"idx": 1, "title": "Hens", "paragraph_text": "Hens sit.", "is_supporting": False},
    ]
    row = {
        "id": "2hop__1_2",
        "question": "Which?",
        "answer": "Lake Tor",
        "answer_aliases": ["Tor"],
        "paragraphs": paragraphs,
    }
    known, unknown = read(
        "musique", tmp_path / "x.jsonl", [{**row, "answerable": True}, {**row, "id": "x", "answerable": False}]
    )
    assert known.questions[0].answers == (
        Answer(text="Lake Tor"),
        Answer(text="Tor", char_start=known.text.index("Tor")),
    )
    assert spans(known, known.questions[0]) == ["Marn lies by Tor."]
    assert unknown.questions[0].is_impossible and unknown.questions[0].answers == ()
