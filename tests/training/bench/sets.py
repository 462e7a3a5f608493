"""Small evaluation sets in the forms of their official distributions, invented for the tests."""

import json

GAME = "The Otters beat the Hens 14 to 7 on a wet day. Ann and Bo scored for the Otters, Cy for the Hens."
HARBOUR = "The harbour of Marn was dug in 1802. Ships carried wool and slate to the north."


def write(path, data):
    """Write JSON, or JSON lines where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.name.endswith(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in data) if lines else json.dumps(data), "utf-8")
    return path


def squad(*articles):
    """Make articles `(title, [(text, [(id, question, answers)])])`; without answers a question is impossible."""

    def qa(text, name, question, *answers):
        spans = [{"text": words, "answer_start": text.index(words)} for words in answers]
        return {"id": name, "question": question, "answers": spans, "is_impossible": not answers}

    return {
        "data": [
            {
                "title": title,
                "paragraphs": [{"context": text, "qas": [qa(text, *q) for q in qas]} for text, qas in passages],
            }
            for title, passages in articles
        ]
    }


def ropes(*situations):
    """Make situations `(background, situation, [(id, question, answers)])`."""
    return {
        "data": [
            {
                "paragraphs": [
                    {
                        "background": background,
                        "situation": situation,
                        "qas": [
                            {"id": name, "question": question, "answers": [{"text": text} for text in answers]}
                            for name, question, answers in qas
                        ],
                    }
                    for background, situation, qas in situations
                ]
            }
        ]
    }


def drop_answer(number="", spans=(), day="", month="", year=""):
    return {"number": number, "spans": list(spans), "date": {"day": day, "month": month, "year": year}}


def hop(name, question, answer, **more):
    """Make a sample of 2WikiMultihopQA or HotpotQA whose text is its own."""
    return {
        "_id": name,
        "type": "compositional",
        "question": question,
        "answer": answer,
        "context": [[f"Place {name}", [f"Place {name} lies by {answer}."]], ["Hens", ["Hens sit."]]],
        "supporting_facts": [[f"Place {name}", 0]],
        **more,
    }


def judged(spans=(), free="", yes_no=None, unanswerable=False):
    """Make an answer of one of QASPER's annotators."""
    answer = {"extractive_spans": list(spans), "free_form_answer": free, "yes_no": yes_no, "unanswerable": unanswerable}
    return {"answer": {**answer, "evidence": []}, "annotation_id": "a"}


def paper(*qas):
    """Make a paper of QASPER with questions `(id, answers)`."""
    return {
        "title": "Otters",
        "abstract": "We count otters.",
        "full_text": [{"section_name": "Data", "paragraphs": ["We saw 9 otters and 4 hens."]}],
        "qas": [{"question_id": n, "question": f"Question {n}?", "answers": list(answers)} for n, answers in qas],
    }


def record(name, dataset, question="Who sits?", context="Hens sit.", answers=("Hens",)):
    """Make a record of LongBench."""
    return {"_id": name, "dataset": dataset, "input": question, "context": context, "answers": list(answers)}
