"""Suites of the copies beside the repository: the counts that their description states."""

from collections import Counter
from pathlib import Path

import pytest

from training.bench.suites import load_suite

DATA = Path(__file__).parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not (DATA / "eval").is_dir(), reason=f"{DATA / 'eval'} is absent")


@pytest.fixture(scope="module")
def suites():
    return {suite.name: suite for suite in load_suite("all", DATA)}


def test_complete_sets_are_complete(suites):
    counts = {name: suite.num_total for name, suite in suites.items() if suite.is_complete}
    assert counts == {
        "squad": 10570,
        "squad_v2": 11873,
        "drop": 9536,
        "drop-contrast": 947,
        "ropes": 1688,
        "ropes-contrast": 974,
        "narrativeqa": 10557,
        "quoref-contrast": 698,  # of 700 two are there twice
        "quoref-original": 415,
        "longbench/multifieldqa_zh": 200,
    }


def test_subsets_say_so(suites):
    subsets = {name: suite for name, suite in suites.items() if not suite.is_complete}
    assert {name: suite.num_total for name, suite in subsets.items()} == {
        "2wiki": 503 + 164 - 7,
        "hotpotqa": 297,  # 3 of 200 + 100 are shared
        "musique": 200,
        "qasper": 82,
        "longbench/2wikimqa": 115,
        "longbench/hotpotqa": 26,
        "longbench/multifieldqa_en": 18,
        "longbench/musique": 7,
        "longbench/narrativeqa": 25,
        "longbench/qasper": 46,
        "longbench/triviaqa": 113,
    }
    assert all("subset" in suite.note for suite in subsets.values())
    assert "left out: 36 no context" in subsets["2wiki"].note
    assert "left out: 188 unacceptable" in subsets["qasper"].note and len(subsets["qasper"].contexts) == 80
    assert "103 of LongBench-E, 12 of MiniLongBench" in subsets["longbench/2wikimqa"].note


def test_half_of_squad_2_is_unanswerable(suites):
    kinds = Counter(sample.kind for sample in suites["squad_v2"].samples)
    assert kinds == {"answerable": 11873 - 5945, "human": 5945}


def test_samples_have_names_of_their_own_and_references_where_they_are_answerable(suites):
    for name, suite in suites.items():
        assert len({sample.sample_id for sample in suite.samples}) == suite.num_total, name
        assert len({context.text for context in suite.contexts}) == len(suite.contexts), name
        assert len({context.context_id for context in suite.contexts}) == len(suite.contexts), name
        for sample in suite.samples:
            assert bool(sample.references) == (sample.kind == "answerable"), sample.sample_id
            assert sample.item in suite.contexts[sample.document].questions, sample.sample_id


def test_drops_spans_of_several_are_told_apart(suites):
    types = Counter(sample.answer_type for sample in suites["drop"].samples)
    assert types.total() == 9536 and 540 <= types["spans"] <= 600
    typed = Counter(sample.answer_type for sample in suites["drop-contrast"].samples)
    assert typed == {"number": 452, "span": 431, "spans": 46, "date": 18}


@pytest.mark.parametrize("name", ["squad_v2", "drop", "2wiki", "hotpotqa"])
def test_refusal_asks_about_as_many_questions_of_each_kind(name):
    [suite] = load_suite(f"refusal/{name}", DATA, limit=30)
    kinds = Counter(sample.kind for sample in suite.samples)
    assert kinds["off_topic"] == kinds["answerable"] > 0 and kinds["probe"] >= 0.75 * kinds["answerable"]
    if name == "squad_v2":
        assert kinds["sibling"] == kinds["answerable"] and kinds["human"] >= 0.75 * kinds["answerable"]
