"""References as the official evaluations have them: every alternative, spans apart, kinds of answers."""

import json

import pytest

from tests.training.bench.sets import GAME, drop_answer, hop, judged, paper, ropes, write
from training.bench.suites import load_suite


def by_id(name, source):
    return {sample.sample_id: sample for sample in load_suite(name, source)[0].samples}


def test_ropes_has_its_first_answer_alone(tmp_path):
    file = write(tmp_path / "x.json", ropes(("Wind cools.", "Ann and Bo.", [("1", "Who?", ["Bo", "Ann"])])))
    assert by_id("ropes", file)["1"].references == ("Bo",)


QAS = [
    {
        "query_id": "number",
        "question": "How many points?",
        # A number counts before spans, and equal answers count once.
        "answer": drop_answer("14", spans=["Otters"]),
        "validated_answers": [drop_answer("14"), drop_answer("7"), drop_answer()],
    },
    {"query_id": "span", "question": "Who scored for the Hens?", "answer": drop_answer(spans=["Cy"])},
    {
        "query_id": "spans",
        "question": "Who scored for the Otters?",
        "answer": drop_answer(spans=["Ann", "Bo"]),
        "validated_answers": [drop_answer(spans=["Ann and Bo"])],
    },
    {"query_id": "date", "question": "When?", "answer": drop_answer(month="May", day="2", year="1990")},
]


def test_drop_has_validated_answers_as_spans_with_the_type_of_its_own(tmp_path):
    samples = by_id("drop", write(tmp_path / "x.json", {"nfl_1": {"passage": f" {GAME} ", "qa_pairs": QAS}}))
    assert {name: (s.spans, s.answer_type) for name, s in samples.items()} == {
        "number": ((("14",), ("7",)), "number"),
        "span": ((("Cy",),), "span"),
        "spans": ((("Ann", "Bo"), ("Ann and Bo",)), "spans"),
        "date": ((("2 May 1990",),), "date"),
    }
    assert samples["spans"].references == ("Ann and Bo", "Ann and Bo")
    assert samples["spans"].reference_types == ("spans", "span")


def test_equal_questions_of_drop_keep_their_own_answers(tmp_path):
    twice = [{**QAS[1], "query_id": "1"}, {**QAS[1], "query_id": "2", "answer": drop_answer(spans=["Bo"])}]
    samples = by_id("drop", write(tmp_path / "x.json", {"nfl_1": {"passage": GAME, "qa_pairs": twice}}))
    assert [s.references for s in samples.values()] == [("Cy",), ("Bo",)]


def test_drop_of_the_hub_reads_like_the_official_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = ("number", "spans", "date")
    rows = [
        {
            "section_id": "nfl_1",
            "passage": GAME,
            **{key: qa[key] for key in ("query_id", "question", "answer")},
            "validated_answers": {key: [a[key] for a in qa.get("validated_answers", [])] for key in columns},
        }
        for qa in QAS
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "drop_validation.parquet")
    official = write(tmp_path / "drop_dataset_dev.json", {"nfl_1": {"passage": GAME, "qa_pairs": QAS}})
    assert load_suite("drop", tmp_path / "drop_validation.parquet") == load_suite("drop", official)


def test_drop_that_lost_its_types_is_read_from_its_words_and_says_so(tmp_path):
    def row(question, reference):
        return {"context": f"Passage: {GAME}\nQuestion: {question}\nAnswer:", "ref_text": reference}

    rows = [
        row("1?", "14|7"),
        row("2?", "Ann and Cy|Bo"),
        # These words are in the passage as they stand.
        row("3?", "Ann and Bo"),
        row("4?", "2 May 1990"),
    ]
    [suite] = load_suite("drop", write(tmp_path / "x.jsonl", rows))
    assert [(s.spans, s.answer_type) for s in suite.samples] == [
        ((("14",), ("7",)), "number"),
        ((("Ann", "Cy"), ("Bo",)), "spans"),
        ((("Ann and Bo",),), "span"),
        ((("2 May 1990",),), "date"),
    ]
    assert "types of answers are lost" in suite.note


def test_drop_with_validators_in_one_list_says_that_spans_are_approximate(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    def row(name, spans, kind):
        answers = {"spans": spans, "types": [kind] * len(spans)}
        return {"section_id": "s", "query_id": name, "passage": GAME, "question": name, "answers_spans": answers}

    rows = [row("1", ["14", "7"], "number"), row("2", ["Cy", "Cy"], "span"), row("3", ["Ann", "Bo"], "span")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    [suite] = load_suite("drop", tmp_path / "x.parquet")
    assert [(s.references, s.answer_type) for s in suite.samples] == [
        (("14", "7"), "number"),
        (("Cy",), "span"),
        (("Ann", "Bo"), "spans"),
    ]
    assert "several spans are approximate" in suite.note


def test_answers_of_quoref_belong_together(tmp_path):
    def qa(name, *answers):
        spans = [{"text": text, "answer_start": GAME.index(text)} for text in answers]
        return {"id": name, "question": f"Question {name}?", "answers": spans}

    articles = {
        "data": [{"title": "Otters", "paragraphs": [{"context": GAME, "qas": [qa("1", "Ann", "Bo"), qa("2", "Cy")]}]}]
    }
    samples = by_id("quoref-contrast", write(tmp_path / "x.json", articles))
    assert (samples["1"].spans, samples["1"].answer_type) == ((("Ann", "Bo"),), "spans")
    assert (samples["2"].spans, samples["2"].answer_type) == ((("Cy",),), "span")


def test_2wiki_takes_the_aliases_and_demonyms_of_the_answers_entity(tmp_path):
    rows = [hop("1", "Which land?", "Marn", answer_id="Q1"), hop("2", "Which lake?", "Tor", answer_id=None)]
    dev = write(tmp_path / "dev.json", rows)
    assert by_id("2wiki", dev)["1"].references == ("Marn",)
    lines = [
        {"Q_id": "Q1", "aliases": ["Old Marn", "Marn"], "demonyms": ["Marnish"]},
        {"Q_id": "Q2", "aliases": [], "demonyms": []},
    ]
    (tmp_path / "id_aliases.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = by_id("2wiki", tmp_path)
    assert samples["1"].references == ("Marn", "Old Marn", "Marnish") and samples["2"].references == ("Tor",)
    assert "aliases" not in load_suite("2wiki", tmp_path)[0].note


def test_qasper_has_each_annotators_answer_with_its_type(tmp_path):
    qas = [
        ("spans", [judged(["9 otters", "4 hens"]), judged(free="otters and hens"), judged(free="9 otters, 4 hens")]),
        ("boolean", [judged(yes_no=False), judged(yes_no=True)]),
        ("none", [judged(unanswerable=True), judged(unanswerable=True)]),
        ("mostly none", [judged(unanswerable=True), judged(unanswerable=True), judged(["9 otters"])]),
    ]
    samples = by_id("qasper", write(tmp_path / "qasper-test-v0.3.json", {"1901.1": paper(*qas)}))
    assert {name: (s.references, s.reference_types, s.kind) for name, s in samples.items()} == {
        "spans": (("9 otters, 4 hens", "otters and hens"), ("extractive", "abstractive"), "answerable"),
        "boolean": (("No", "Yes"), ("boolean", "boolean"), "answerable"),
        "none": ((), (), "human"),
        "mostly none": (("Unanswerable", "9 otters"), ("none", "extractive"), "answerable"),
    }
    assert [s.answer_type for s in samples.values()] == ["extractive", "boolean", "none", "none"]
    # The set calls it impossible, but what an annotator found is right.
    item = samples["mostly none"].item
    assert not item.is_impossible and [a.text for a in item.answers] == ["9 otters"] and item.answers[0].span


def test_qasper_of_the_hub_reads_like_the_official_file(tmp_path):
    official = paper(("a", [judged(["9 otters"]), judged(unanswerable=True)]), ("b", [judged(free="nine")]))
    columns = {
        **official,
        "id": "1901.1",
        "full_text": {"section_name": ["Data"], "paragraphs": [["We saw 9 otters and 4 hens."]]},
        "qas": {
            "question": [qa["question"] for qa in official["qas"]],
            "question_id": [qa["question_id"] for qa in official["qas"]],
            "answers": [{"answer": [a["answer"] for a in qa["answers"]]} for qa in official["qas"]],
        },
    }
    one = load_suite("qasper", write(tmp_path / "a.json", {"1901.1": official}))
    assert load_suite("qasper", write(tmp_path / "b.json", [columns])) == one
    assert load_suite("qasper", write(tmp_path / "c.json", columns)) == one


def test_a_table_of_papers_tells_types_by_form_and_drops_what_nobody_accepted(tmp_path):
    (tmp_path / "test.csv").write_text(
        ",paper,questions,answers\n0,\"Otters\tWe saw 9 otters.\",\"['a?', 'b?', 'c?', 'd?']\","
        "\"['9 otters', 'Yes', 'nine', 'Unacceptable']\"\n"
    )
    [suite] = load_suite("qasper", tmp_path)
    assert [(s.references, s.answer_type) for s in suite.samples] == [
        (("9 otters",), "extractive"),
        (("Yes",), "boolean"),
        (("nine",), "abstractive"),
    ]
    assert "left out: 1 unacceptable" in suite.note


def test_narrativeqa_is_read_from_its_authors_tables(tmp_path):
    (tmp_path / "qaps.csv").write_text(
        "document_id,set,question,answer1,answer2\n"
        "d1,train,Who ran?,Bo,Bo\nd1,test,Who swam?,an otter,the otter\nd1,test,Where?,Tor,Tor\n"
    )
    summaries = tmp_path / "third_party" / "wikipedia" / "summaries.csv"
    summaries.parent.mkdir(parents=True)
    summaries.write_text('document_id,set,summary\nd1,test,"An otter swam in Tor."\n')
    [suite] = load_suite("narrativeqa", tmp_path)
    assert [(s.item.question, s.references) for s in suite.samples] == [
        ("Who swam?", ("an otter", "the otter")),
        ("Where?", ("Tor",)),
    ]
    assert [c.text for c in suite.contexts] == ["An otter swam in Tor."]
    assert "tokenised" not in suite.note


def test_a_tokenised_copy_of_narrativeqa_says_so(tmp_path):
    row = {"context.tokens": "An otter swam .", "question.tokens": "Who swam ?", "ground_truths": ["an otter", "otter"]}
    [suite] = load_suite("narrativeqa", write(tmp_path / "test.json", [row]))
    assert suite.samples[0].references == ("an otter", "otter") and "tokenised text" in suite.note
