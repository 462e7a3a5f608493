"""DROP: official files, rows of the hub, and prompts with their reference text."""

from tests.training.forms import read, spans, table
from training.datasets import load
from training.datasets.context import Answer

GAME = "The Otters scored 14 points in 1990 and 7 in 1991. Ann threw to Bo and Cy caught it."


def drop_answer(number="", spans=(), **date):
    return {"number": number, "spans": list(spans), "date": {"day": "", "month": "", "year": "", **date}}


def test_drop_reads_numbers_spans_and_dates(tmp_path):
    qas = [
        {
            "query_id": "n",
            "question": "How many points?",
            "answer": drop_answer("14"),
            "validated_answers": [drop_answer("15")],
        },
        {"query_id": "s", "question": "Who threw?", "answer": drop_answer(spans=["Ann"])},
        {"query_id": "m", "question": "Which two?", "answer": drop_answer(spans=["Ann", "Bo"])},
        {"query_id": "d", "question": "When?", "answer": drop_answer(year="1990", month="May")},
        {"query_id": "c", "question": "How many games?", "answer": drop_answer("7")},
    ]
    [context] = read("drop", tmp_path / "x.json", {"nfl_1": {"passage": GAME, "qa_pairs": qas}})
    number, one, several, date, counted = context.questions
    assert (context.context_id, context.mode) == ("nfl_1", "numeric")
    assert number.answers == (Answer(text="14", char_start=GAME.index("14")), Answer(text="15"))
    assert one.answers == (Answer(text="Ann", char_start=GAME.index("Ann")),)
    assert several.answers == (Answer(text="Ann and Bo"),) and spans(context, several) == ["Ann", "Bo"]
    assert date.answers == (Answer(text="May 1990"),)
    # A single digit may be there by chance.
    assert counted.answers == (Answer(text="7"),) and counted.evidence == ()
    assert [q.question_type for q in context.questions] == [
        "aggregation",
        "single_hop",
        "aggregation",
        "temporal",
        "aggregation",
    ]


def test_drop_prompts_split_references_and_tell_joined_spans_from_an_and_of_the_passage(tmp_path):
    def row(question, reference):
        return {
            "context": f"Passage: {GAME}\nQuestion: {question}\nAnswer:",
            "completion": f" {reference}",
            "ref_text": reference,
        }

    rows = [row("Which?", "Ann and Cy|Bo"), row("To whom?", "Bo and Cy"), row("How many?", "14")]
    [context] = read("drop", tmp_path / "x.jsonl", rows)
    joined, phrase, number = context.questions
    assert context.text == GAME and joined.question == "Which?"
    assert joined.answers == (Answer(text="Ann and Cy"), Answer(text="Bo", char_start=GAME.index("Bo")))
    assert spans(context, joined) == ["Ann", "Cy"]
    assert phrase.answers == (Answer(text="Bo and Cy", char_start=GAME.index("Bo and Cy")),)
    assert number.answers[0].char_start == GAME.index("14")


def test_drop_rows_of_the_hub_join_their_spans(tmp_path):
    rows = [
        {
            "section_id": "nfl_1",
            "query_id": "m",
            "passage": GAME,
            "question": "Which two?",
            "answers_spans": {"spans": ["Ann", "Bo"], "types": ["span", "span"]},
        },
        {
            "section_id": "nfl_1",
            "query_id": "n",
            "passage": GAME,
            "question": "How many?",
            "answers_spans": {"spans": ["14"], "types": ["number"]},
        },
    ]
    [context] = load("drop", table(tmp_path / "x.parquet", rows))
    assert context.context_id == "nfl_1"
    assert [q.answers[0].text for q in context.questions] == ["Ann and Bo", "14"]
