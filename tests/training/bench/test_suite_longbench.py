"""LongBench: its own records where all are there, else distinct ones of all kinds, named for what they are."""

import zipfile
from dataclasses import replace

import pytest

from tests.training.bench.sets import record, write
from training.bench.suites import SUITES, load_suite
from training.records import DataError


def ids(suite):
    return [sample.sample_id for sample in suite.samples]


def test_records_of_several_origins_are_distinct_and_named(tmp_path):
    write(
        tmp_path / "longbench" / "a_records.jsonl",
        [
            record("e1", "hotpotqa_e", "Who?"),
            record("p1", "hotpotqa", "When?"),
            record("p2", "hotpotqa", "When?", answers=("2",)),
            record("q1", "qasper_e"),
        ],
    )
    mini = [record("mini_0", "hotpotqa", "Who?"), record("mini_1", "hotpotqa", "Where?"), record("x", "lcc")]
    write(tmp_path / "longbench" / "minilongbench.jsonl", mini)
    suites = {suite.name: suite for suite in load_suite("longbench", tmp_path)}
    assert list(suites) == ["longbench/hotpotqa", "longbench/qasper"]
    hotpot = suites["longbench/hotpotqa"]
    # The second "When?" about the same text is left out, as is the small benchmark's "Who?".
    assert ids(hotpot) == ["p1", "e1", "mini_1"] and len(hotpot.contexts) == 1
    assert hotpot.note == "LongBench subset: 1 of LongBench, 1 of LongBench-E, 1 of MiniLongBench"
    assert (hotpot.num_total, hotpot.is_complete, hotpot.dataset) == (3, False, "longbench/hotpotqa")


def test_all_of_the_benchmarks_own_records_are_the_suite(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES, "longbench/musique", replace(SUITES["longbench/musique"], num_official=2))
    write(tmp_path / "musique.jsonl", [record("1", "musique"), record("2", "musique")])
    write(tmp_path / "musique_e.jsonl", [record("3", "musique_e", "Where?")])
    [suite] = load_suite("longbench/musique", tmp_path)
    # Two questions of the benchmark may be equal: the official evaluation asks both.
    assert (ids(suite), suite.is_complete, suite.note) == (["1", "2"], True, "")


def test_the_hubs_archive_holds_the_even_variant_too(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES, "longbench/musique", replace(SUITES["longbench/musique"], num_official=1))
    parts = {"data/musique.jsonl": [record("1", "musique")], "data/musique_e.jsonl": [record("2", "musique_e", "Why?")]}
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for name, rows in parts.items():
            archive.writestr(name, write(tmp_path / "x.jsonl", rows).read_text())
    (tmp_path / "x.jsonl").unlink()
    [suite] = load_suite("longbench/musique", tmp_path)
    assert ids(suite) == ["1"] and suite.is_complete


def test_even_records_alone_are_never_the_benchmark(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES, "longbench/qasper", replace(SUITES["longbench/qasper"], num_official=1))
    [suite] = load_suite("longbench/qasper", write(tmp_path / "qasper_e.jsonl", [record("1", "qasper_e")]))
    assert not suite.is_complete and suite.note == "LongBench subset: 1 of LongBench-E"


def test_all_references_count_and_chinese_and_few_shot_parts_have_metrics_of_their_own(tmp_path):
    parts = ("multifieldqa_zh", "multifieldqa_en", "triviaqa")
    rows = [record(part, part, answers=("水獭", "獭")) for part in parts]
    suites = load_suite("longbench", write(tmp_path / "x.jsonl", rows))
    assert [suite.samples[0].references for suite in suites] == [("水獭", "獭")] * 3
    assert {suite.name.removeprefix("longbench/"): suite.metric for suite in suites} == {
        "multifieldqa_zh": "qa_f1_zh",
        "multifieldqa_en": "qa_f1",
        "triviaqa": "qa_f1_first_line",
    }


def test_a_part_that_a_file_lacks_is_told(tmp_path):
    file = write(tmp_path / "x.jsonl", [record("1", "qasper")])
    with pytest.raises(DataError, match="holds no questions of longbench/musique"):
        load_suite("longbench/musique", file)
