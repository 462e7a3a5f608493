"""QASPER: papers with several annotators, tables of papers, and questions over their evidence."""

import json

from tests.training.forms import read, spans
from training.datasets import load


def judged(spans=(), free="", yes_no=None, unanswerable=False, evidence=()):
    return {
        "answer": {
            "extractive_spans": list(spans),
            "free_form_answer": free,
            "yes_no": yes_no,
            "unanswerable": unanswerable,
            "evidence": list(evidence),
        }
    }


def test_papers_give_each_annotators_answer_and_the_paragraphs_of_evidence(tmp_path):
    def qa(number, *answers):
        return {"question_id": number, "question": f"Question {number}?", "answers": list(answers)}

    paper = {
        "title": "Otters",
        "abstract": "We study otters.",
        "full_text": [{"section_name": "Data", "paragraphs": ["We saw 9 otters.", "All swam."]}],
        "qas": [
            qa(
                "span",
                judged(["9 otters"], evidence=["We saw 9 otters.", "FLOAT SELECTED: Table 1"]),
                judged(free="nine"),
            ),
            qa("spans", judged(["otters", "All"])),
            qa("boolean", judged(yes_no=False)),
            qa("none", judged(unanswerable=True), judged(unanswerable=True), judged(free="many")),
            qa("split", judged(unanswerable=True), judged(free="many")),
            qa("empty", judged()),
        ],
    }
    [context] = read("qasper", tmp_path / "x.json", {"1901.1": paper})
    assert (context.context_id, context.title, context.mode) == ("1901.1", "Otters", "scientific")
    assert context.text == "Abstract\nWe study otters.\n\nData\nWe saw 9 otters.\n\nAll swam."
    answers = {q.question_id: [a.text for a in q.answers] for q in context.questions}
    assert answers == {
        "span": ["9 otters", "nine"],
        "spans": ["otters, All"],
        "boolean": ["No"],
        "none": [],
        "split": ["many"],
    }
    assert [q.question_id for q in context.questions if q.is_impossible] == ["none"]
    assert spans(context, context.questions[0]) == ["We saw 9 otters."]
    qas = paper["qas"]
    columns = {
        **paper,
        "id": "1901.1",
        "full_text": {"section_name": ["Data"], "paragraphs": [["We saw 9 otters.", "All swam."]]},
        "qas": {
            "question": [q["question"] for q in qas],
            "question_id": [q["question_id"] for q in qas],
            "answers": [{"answer": [a["answer"] for a in q["answers"]]} for q in qas],
        },
    }
    assert read("qasper", tmp_path / "y.json", columns) == [context]
    (tmp_path / "z.json").write_text(json.dumps(columns, indent=1) * 2, "utf-8")
    assert list(load("qasper", tmp_path / "z.json")) == [context, context]


def test_a_table_of_papers_loses_its_unacceptable_answers(tmp_path):
    (tmp_path / "x.csv").write_text(
        ",paper,questions,answers\n"
        "0,\"Otters\tWe study otters.\tAll swam.\",\"['Who?', 'How?']\",\"['Unacceptable', 'All swam']\"\n"
    )
    [context] = load("qasper", tmp_path / "x.csv")
    assert (context.title, context.text) == ("Otters", "We study otters.\n\nAll swam.")
    assert [(q.question, q.answers[0].char_start) for q in context.questions] == [("How?", context.text.index("All"))]


def test_questions_over_their_evidence_have_it_below_its_heading(tmp_path):
    row = {
        "paper_idx": 3,
        "example_idx": 4,
        "title": "Otters",
        "question": "How many?",
        "answer": "nine",
        "evidence": "Data ::: Counts\n-----\nWe saw 9 otters.",
        "annotated_rewrite_question": "Written by a model?",
    }
    [context] = read("qasper", tmp_path / "x.json", [row])
    assert context.text == "Data ::: Counts\nWe saw 9 otters."
    assert context.questions[0].question_id == "3-4" and spans(context, context.questions[0]) == ["We saw 9 otters."]
