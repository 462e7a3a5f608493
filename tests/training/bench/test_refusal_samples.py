"""Questions that a document cannot answer: where they come from, and that they are the same however many are drawn."""

from collections import Counter

import pytest

from tests.training.bench.sets import judged, paper, record, ropes, squad, write
from training.bench.refusal_samples import refusal
from training.bench.suites import load_suite
from training.records import DataError

NAMES = ("Ann", "Bo", "Cy", "Di", "Ed", "Flo")
FED = tuple(
    enumerate((part, *pair) for part in ("hotpotqa", "triviaqa") for pair in (("Ann", "pears"), ("Bo", "plums")))
)
TOOLS = ("saw", "hammer", "spade", "needle", "chisel", "anvil")


def article(title, *, human=False):
    """Make an article with a passage for each name; every question names what only its own passage has."""
    passages = []
    for name, tool in zip(NAMES, TOOLS, strict=True):
        answer = f"{tool} of {title}"
        qas = [(f"{title}-{name}", f"What did {name} carry through {title}?", answer)]
        qas += [(f"{title}-{name}-human", f"Why did {name} sleep?")] if human else []
        passages.append((f"In the town of {title} lived {name}, known for the {answer}.", qas))
    return title, passages


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "dev-v2.0.json", squad(article("Marn", human=True), article("Tor"), article("Sol")))


def strangers(suite, kind):
    return [(suite.contexts[s.document], s) for s in suite.samples if s.kind == kind]


def test_each_kind_is_as_frequent_as_answerable_questions_and_comes_from_where_it_says(source):
    suite = refusal(load_suite("squad_v2", source)[0])
    counts = Counter(sample.kind for sample in suite.samples)
    assert counts == {"answerable": 18, "human": 6, "sibling": 18, "off_topic": 18, "probe": 18}
    assert suite.note.startswith("18 answerable, 6 human, 18 sibling, 18 off_topic, 18 probe")
    assert (suite.name, suite.num_total, suite.is_complete) == ("refusal/squad_v2", 78, False)
    assert all(context.title in sample.item.question for context, sample in strangers(suite, "sibling"))
    assert not any(context.title in sample.item.question for context, sample in strangers(suite, "off_topic"))
    assert all(sample.sample_id == f"{c.questions[0].question_id}-human" for c, sample in strangers(suite, "human"))


def test_no_document_is_asked_its_own_question_or_the_same_twice(source):
    suite = refusal(load_suite("squad_v2", source)[0])
    asked = Counter((sample.document, sample.item.question) for sample in suite.samples)
    assert set(asked.values()) == {1}
    assert len({sample.sample_id for sample in suite.samples}) == len(suite.samples)
    for sample in suite.samples:
        if sample.kind != "answerable":
            assert sample.item.is_impossible and not sample.references and not sample.item.answers


def test_what_is_asked_depends_on_the_seed_but_not_on_the_limit(source):
    whole = {seed: refusal(load_suite("squad_v2", source)[0], seed).samples for seed in (0, 1)}
    part = load_suite("refusal/squad_v2", source, limit=9)[0].samples
    assert sum(sample.kind == "answerable" for sample in part) == 9
    assert 9 < len(part) < len(whole[0]) and set(map(str, part)) < set(map(str, whole[0]))
    assert list(part) == [sample for sample in whole[0] if sample in part]
    assert set(map(str, whole[0])) != set(map(str, whole[1]))


def test_a_sibling_whose_answer_is_in_the_passage_too_is_not_asked(tmp_path):
    passages = [
        ("Ann carried a saw to Marn.", [("1", "What did Ann carry?", "saw")]),
        ("Bo took the Saw and an axe.", [("2", "What did Bo take along?", "axe")]),
    ]
    suite = refusal(load_suite("squad", write(tmp_path / "x.json", squad(("Tools", passages))))[0])
    assert [(s.document, s.item.question) for _, s in strangers(suite, "sibling")] == [(0, "What did Bo take along?")]


def test_a_question_whose_words_are_all_in_the_document_may_be_answerable(tmp_path):
    passages = [
        ("The first touchdown was by Ann.", [("1", "Who made the first touchdown?", "Ann")]),
        ("Bo made the first touchdown, on grass.", [("2", "What was the first made on?", "grass")]),
    ]
    suite = refusal(load_suite("squad", write(tmp_path / "x.json", squad(("Match", passages))))[0])
    # "Who made the first touchdown?" has an answer in the second passage, though it is not Ann.
    assert [s.document for _, s in strangers(suite, "sibling")] == [0]


def test_situations_over_a_background_are_siblings(tmp_path):
    situations = [
        ("Wind cools.", "Ann stood at sea.", [("1", "Was Ann or the miller colder?", ["Ann"])]),
        ("Wind cools.", "Bo sat inside.", [("2", "Was Bo or the potter warmer?", ["Bo"])]),
        ("Sun warms.", "Cy lay in the grass.", [("3", "Was Cy or the smith hotter?", ["Cy"])]),
    ]
    suite = refusal(load_suite("ropes", write(tmp_path / "dev-v1.0.json", ropes(*situations)))[0])
    assert [(s.document, s.item.question_id) for _, s in strangers(suite, "sibling")] == [
        (0, "sibling/0/2"),
        (1, "sibling/1/1"),
    ]
    assert {s.item.question_id for _, s in strangers(suite, "off_topic") if s.document == 2} <= {
        "off_topic/2/1",
        "off_topic/2/2",
    }


def test_questions_that_point_at_their_paper_are_asked_only_where_they_name_something_else(tmp_path):
    def asked(name, question):
        made = paper((name, [judged(["9 otters"])]))
        return {**made, "title": name, "abstract": f"{name} counts.", "qas": [{**made["qas"][0], "question": question}]}

    papers = {
        "1": asked("a", "What are the shapes that Zibet draws?"),
        "2": asked("b", "Which baselines does their approach outperform?"),
    }
    papers["2"]["full_text"] = [{"section_name": "", "paragraphs": ["We saw 9 otters. None of those."]}]
    papers["1"]["full_text"] = [{"section_name": "", "paragraphs": ["We saw 9 otters. Zibet."]}]
    papers["1"]["qas"][0]["answers"] = [judged(free="circles mostly")]
    suite = refusal(load_suite("qasper", write(tmp_path / "test.json", papers))[0])
    assert [s.item.question for s in suite.samples if s.kind != "answerable"] == [
        "What are the shapes that Zibet draws?"
    ]


def test_a_question_on_which_annotators_disagree_is_not_asked(tmp_path):
    qas = [("split", [judged(["9 otters"]), judged(unanswerable=True)]), ("plain", [judged(["9 otters"])])]
    qas.append(("none", [judged(unanswerable=True)]))
    suite = refusal(load_suite("qasper", write(tmp_path / "test.json", {"1": paper(*qas)}))[0])
    kinds = {sample.sample_id: sample.kind for sample in suite.samples}
    assert "split" not in kinds and kinds["plain"] == "answerable"


def test_of_a_group_those_without_such_questions_are_left_out(tmp_path):
    rows = [record(str(n), name, f"What did {who} eat?", f"{who} ate {what}.", [what]) for n, (name, who, what) in FED]
    found = load_suite("refusal/longbench", write(tmp_path / "x.jsonl", rows))
    assert [suite.name for suite in found] == ["refusal/longbench/hotpotqa"]


def test_a_suite_whose_documents_answer_everything_is_refused(tmp_path):
    rows = [record("1", "triviaqa", "Passage:\nTor is a lake.\nQuestion: What is Tor?", "Examples.", ["Tor"])]
    rows.append(record("2", "triviaqa", "Passage:\nSol is a moor.\nQuestion: What is Sol?", "More Sol.", ["Sol"]))
    with pytest.raises(DataError, match="has no question that its document cannot answer"):
        load_suite("refusal/longbench/triviaqa", write(tmp_path / "x.jsonl", rows))
