"""Sets in SQuAD's form and its relatives: official files, rows of the hub and common copies."""

from tests.training.forms import read, spans, table
from training.datasets import load
from training.datasets.context import Answer

CONTEXT = "Ilse Kant was born in Marn in 1881. She built the nine bridges of Marn. The town burned in 1920."
MARN = CONTEXT.index("Marn")


def article(*qas, title="Ilse_Kant", **paragraph):
    return {"data": [{"title": title, "paragraphs": [{"context": CONTEXT, "qas": list(qas), **paragraph}]}]}


def answer(text, start):
    return {"text": text, "answer_start": start}


def test_squad_gives_distinct_answers_and_marks_what_has_none(tmp_path):
    data = article(
        {"id": "a", "question": " Where was she born? ", "answers": [answer("Marn", MARN), answer("Marn", MARN)]},
        {
            "id": "b",
            "question": "Who sank?",
            "answers": [],
            "is_impossible": True,
            "plausible_answers": [answer("Ilse", 0)],
        },
        {"id": "c", "question": "Who swam?", "answers": []},
    )
    [context] = read("squad_v2", tmp_path / "x.json", data)
    assert (context.dataset, context.title, context.text, context.mode) == (
        "squad_v2",
        "Ilse Kant",
        CONTEXT,
        "extractive",
    )
    assert [(q.question_id, q.question, q.answers, q.is_impossible) for q in context.questions] == [
        ("a", "Where was she born?", (Answer(text="Marn", char_start=MARN),), False),
        ("b", "Who sank?", (), True),
        ("c", "Who swam?", (), True),
    ]


def test_flat_files_and_rows_of_the_hub_join_questions_by_context(tmp_path):
    flat = [
        {"context": CONTEXT, "question": "Where?", "answer": "Marn"},
        {"context": "A hen sat.", "question": "Who sat?", "answer": "hen"},
        {"context": CONTEXT, "question": "When?", "answer": "1920"},
        {"context": CONTEXT, "question": "Why?", "answer": "not in the text"},
    ]
    kant, hen = read("squad", tmp_path / "x.json", flat)
    assert [(q.question, q.answers[0].char_start) for q in kant.questions] == [
        ("Where?", MARN),
        ("When?", CONTEXT.index("1920")),
    ]
    assert len({q.question_id for c in (kant, hen) for q in c.questions}) == 3
    columns = {"text": ["Marn"], "answer_start": [MARN]}
    row = {"id": "a", "title": "Ilse_Kant", "context": CONTEXT, "question": "Where?", "answers": columns}
    [context] = load("squad", table(tmp_path / "x.parquet", [row]))
    assert context.title == "Ilse Kant" and context.questions[0].answers == (Answer(text="Marn", char_start=MARN),)


def test_chinese_articles_keep_only_references_that_are_in_the_text(tmp_path):
    qa = {"id": "1", "question": "谁？", "answers": [answer("甲", -1), answer("甲。乙", 0)]}
    data = {"data": [{"title": "城", "paragraphs": [{"id": "D", "context": "城主是甲，住在乙。", "qas": [qa]}]}]}
    [context] = read("cmrc2018", tmp_path / "x.json", data)
    assert context.questions[0].answers == (Answer(text="甲", char_start=3),)


def test_answers_of_quoref_are_asked_for_together(tmp_path):
    qa = {"id": "1", "question": "Which two?", "answers": [answer("Ilse", 0), answer("Marn", MARN)]}
    [context] = read("quoref", tmp_path / "x.json", article(qa, context_id="c"))
    [item] = context.questions
    assert item.answers == (Answer(text="Ilse and Marn"),) and spans(context, item) == ["Ilse", "Marn"]


def test_full_stops_behind_answers_of_quoref_are_taken_off(tmp_path):
    def row(number, question, *outputs):
        return {"id": number, "input": f"Passage: {CONTEXT} \nQuestion: {question}", "output": list(outputs)}

    data = {
        "Positive Examples": [row("0", "Ignored?", "Ignored.")],
        "Instances": [
            row("1", "Who?", "Ilse Kant."),
            row("2", "Which?", "Marn.", "Ilse."),
            {**row("3", "?", "x."), "input": "?"},
        ],
    }
    [context] = read("quoref", tmp_path / "x.json", data)
    who, which = context.questions
    assert context.text == CONTEXT and who.question == "Who?"
    assert who.answers == (Answer(text="Ilse Kant", char_start=0),)
    assert which.answers == (Answer(text="Marn and Ilse"),) and spans(context, which) == ["Marn", "Ilse"]


def test_dialogues_are_lines_and_answers_are_words_of_an_utterance_or_its_speaker(tmp_path):
    lines = [
        {"uid": 0, "speakers": ["#NOTE#"], "utterance": "[ A kitchen ]"},
        {"uid": 1, "speakers": ["Ann"], "utterance": "Ann here , take the soup ."},
    ]
    given = {"utterance_id": 1, "inner_end": 0}
    qas = [
        {
            "id": "1",
            "question": "Take what ?",
            "answers": [{**given, "answer_text": "the soup", "inner_start": 4, "is_speaker": False}],
        },
        {
            "id": "2",
            "question": "Who ?",
            "answers": [{**given, "answer_text": "Ann", "inner_start": -1, "is_speaker": True}],
        },
        {
            "id": "3",
            "question": "Named ?",
            "answers": [{**given, "answer_text": "Ann", "inner_start": 0, "is_speaker": False}],
        },
    ]
    data = {"data": [{"title": "s01_e01_c01", "paragraphs": [{"utterances:": lines, "qas": qas}]}]}
    [context] = read("friendsqa", tmp_path / "x.json", data)
    assert context.text == "[ A kitchen ]\nAnn: Ann here , take the soup ."
    # The second line begins at 14, its words at 19; "the soup" is 16 characters on.
    assert [q.answers[0].char_start for q in context.questions] == [35, 14, 19]


def test_pages_with_times_mark_questions_without_targets(tmp_path):
    rows = [
        {
            "idx": "/wiki/Marn#P1#0",
            "question": "Who in 1881?",
            "context": CONTEXT,
            "targets": ["Ilse Kant"],
            "from": [0],
            "end": [9],
        },
        {
            "idx": "/wiki/Marn#P1#1",
            "question": "Who in 1700?",
            "context": CONTEXT,
            "targets": [""],
            "from": [0],
            "end": [0],
        },
    ]
    [context] = read("timeqa", tmp_path / "x.jsonl", rows)
    assert context.context_id == "/wiki/Marn" and context.mode == "field_lookup"
    assert [(q.answers, q.is_impossible) for q in context.questions] == [
        ((Answer(text="Ilse Kant", char_start=0),), False),
        ((), True),
    ]
