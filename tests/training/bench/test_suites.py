"""Suites: what each name reads from a folder, and which samples a limit draws."""

import sys
import types
from dataclasses import replace

import pytest

from tests.training.bench.sets import GAME, HARBOUR, hop, ropes, squad, write
from training.bench.metrics import METRICS
from training.bench.suites import GROUPS, NAMES, SUITES, load_suite
from training.datasets import DATASETS, family_of
from training.records import DataError

SQUAD = squad(
    ("Otters", [(GAME, [("a", "Who won?", "The Otters", "Otters"), ("b", "Who lost?", "the Hens")])]),
    ("Marn", [(HARBOUR, [("c", "When?", "1802"), ("d", "What?", "wool", "wool and slate")]), ("Tor is a lake.", [])]),
)


def ids(suite):
    return [sample.sample_id for sample in suite.samples]


def test_samples_point_at_their_documents_and_keep_all_references(tmp_path):
    write(tmp_path / "squad" / "dev-v1.1.json", SQUAD)
    [suite] = load_suite("squad", tmp_path)
    assert [(s.sample_id, s.document, s.references, s.kind) for s in suite.samples] == [
        ("a", 0, ("The Otters", "Otters"), "answerable"),
        ("b", 0, ("the Hens",), "answerable"),
        ("c", 1, ("1802",), "answerable"),
        ("d", 1, ("wool", "wool and slate"), "answerable"),
    ]
    # A passage that nobody asks about is in the bank of all passages.
    assert [(c.title, c.text) for c in suite.contexts] == [
        ("Otters", GAME),
        ("Marn", HARBOUR),
        ("Marn", "Tor is a lake."),
    ]
    assert (suite.num_total, suite.is_complete, suite.note) == (4, False, "subset: 4 of 10,570 questions")


def test_impossible_questions_of_squad_2_are_human_and_have_no_reference(tmp_path):
    file = write(tmp_path / "any.json", squad(("Otters", [(GAME, [("a", "Who won?", "Otters"), ("b", "Who slept?")])])))
    [suite] = load_suite("squad_v2", file)
    assert [(s.kind, s.references) for s in suite.samples] == [("answerable", ("Otters",)), ("human", ())]


@pytest.mark.parametrize("folder", ["eval/squad", "squad", "."])
def test_a_set_is_found_in_a_collection_in_its_own_folder_and_in_a_folder_of_any_name(tmp_path, folder):
    write(tmp_path / folder / "dev-v1.1.json", SQUAD)
    assert load_suite("squad", tmp_path)[0].num_total == 4


def test_equal_texts_are_one_document_with_all_its_questions(tmp_path):
    again = squad(("Otters", [(GAME, [("a", "Who won?", "Otters")]), (GAME, [("b", "Who lost?", "Hens")])]))
    [suite] = load_suite("squad", write(tmp_path / "dev-v1.1.json", again))
    assert [s.document for s in suite.samples] == [0, 0]
    assert [[q.question_id for q in c.questions] for c in suite.contexts] == [["a", "b"]]


def test_a_limit_draws_at_random_keeps_the_documents_and_is_part_of_a_larger_limit(tmp_path):
    many = squad(*((f"T{n}", [(f"Otter {n} swims.", [(str(n), "Who?", f"Otter {n}")])]) for n in range(40)))
    source = write(tmp_path / "dev-v1.1.json", many)
    drawn = {limit: load_suite("squad", source, limit=limit, seed=3)[0] for limit in (5, 20, 40)}
    assert len(ids(drawn[5])) == 5 and set(ids(drawn[5])) < set(ids(drawn[20])) < set(ids(drawn[40]))
    assert ids(drawn[20]) == sorted(ids(drawn[20]), key=int) != [str(n) for n in range(20)]
    assert len(drawn[5].contexts) == 40 and drawn[5].num_total == 40
    assert ids(load_suite("squad", source, limit=20, seed=4)[0]) != ids(drawn[20])


def test_files_that_repeat_a_question_count_it_once_and_what_was_left_out_is_told(tmp_path):
    first, second = hop("1", "Which lake?", "Tor"), hop("2", "Which sea?", "Marn")
    without_id = {key: value for key, value in second.items() if key != "_id"}
    lacking = {key: value for key, value in hop("3", "Which?", "Sol").items() if key != "context"}
    write(tmp_path / "2wikimultihopqa" / "dev1.jsonl", [first, second])
    write(tmp_path / "2wikimultihopqa" / "dev2.jsonl", [first, without_id, lacking, hop("4", "Which moor?", "Sol")])
    [suite] = load_suite("2wiki", tmp_path)
    assert ids(suite) == ["1", "2", "4"]
    assert suite.note == (
        "subset: 3 of 12,576 questions; without the aliases of id_aliases.json; left out: 1 no context"
    )


def test_reading_stops_at_the_file_that_makes_a_set_complete(tmp_path, monkeypatch):
    monkeypatch.setitem(SUITES, "hotpotqa", replace(SUITES["hotpotqa"], num_official=1))
    write(tmp_path / "hotpotqa" / "hotpot_dev_distractor_v1.json", [hop("1", "Which lake?", "Tor")])
    write(tmp_path / "hotpotqa" / "distractor_dev2.json", [hop("2", "Which sea?", "Marn")])
    [suite] = load_suite("hotpotqa", tmp_path)
    assert (ids(suite), suite.is_complete, suite.note) == (["1"], True, "distractor setting")


def test_contrast_sets_are_suites_of_their_own(tmp_path):
    write(tmp_path / "ropes" / "dev-v1.0.json", ropes(("Wind cools.", "Ann stands in wind.", [("1", "Who?", ["Ann"])])))
    write(tmp_path / "ropes" / "ropes_contrast_set_032820.json", ropes(("Sun warms.", "Bo.", [("2", "Who?", ["Bo"])])))
    assert [ids(load_suite(name, tmp_path)[0]) for name in ("ropes", "ropes-contrast")] == [["1"], ["2"]]


def test_all_is_what_a_folder_of_sets_has(tmp_path):
    write(tmp_path / "eval" / "squad" / "dev-v2.0.json", SQUAD)
    write(tmp_path / "eval" / "hotpotqa" / "distractor_dev.json", [hop("1", "Which lake?", "Tor")])
    assert [suite.name for suite in load_suite("all", tmp_path)] == ["squad_v2", "hotpotqa"]
    # A file's name alone would make this the dev set of 2WikiMultihopQA, too.
    assert [suite.name for suite in load_suite("all", tmp_path / "eval" / "squad")] == ["squad_v2"]


def test_all_from_the_hub_leaves_out_what_the_hub_lacks(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("training.bench.suites.download", lambda hub, split, name: asked.append((name, split)) or [])
    empty = types.SimpleNamespace(num_total=0)
    monkeypatch.setattr("training.bench.suites.read_suite", lambda info, files, **options: empty)
    with pytest.raises(DataError, match="the hub holds no questions of all"):
        load_suite("all")
    assert {name for name, _ in asked} == {name for name, info in SUITES.items() if info.hub} and "squad" in SUITES
    assert {split for _, split in asked} == {"dev"} and not any("contrast" in name for name, _ in asked)


def test_the_hub_is_the_source_where_none_is_given(tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    for shard, rows in enumerate(([("a", "Who won?")], [("b", "Who won?"), ("c", "Who lost?")])):
        data = [
            {
                "id": n,
                "title": "T",
                "context": GAME,
                "question": q,
                "answers": {"text": ["Otters"], "answer_start": [4]},
            }
            for n, q in rows
        ]
        path = tmp_path / "plain_text" / f"validation-0000{shard}-of-00002.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(pa.Table.from_pylist(data), path)
    hub = types.SimpleNamespace(snapshot_download=lambda *args, **kwargs: str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    # Both shards are one file: an equal question is another question there.
    assert ids(load_suite("squad")[0]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("squat", "suite must be one of squad, .*longbench, all, refusal, got 'squat'"),
        ("drop", "holds no files of drop.*Put drop_dataset_dev.json"),
        ("all", "holds no questions of all"),
        ("longbench", "holds no questions of longbench"),
    ],
)
def test_what_a_folder_lacks_is_told(tmp_path, name, message):
    with pytest.raises(DataError, match=message):
        load_suite(name, tmp_path)


def test_faults_of_the_source_are_told(tmp_path):
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_suite("squad", tmp_path / "nowhere")
    with pytest.raises(DataError, match="nowhere does not exist"):
        load_suite("all", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"x.json is not in the format of drop: TypeError"):
        load_suite("drop", write(tmp_path / "x.json", SQUAD))
    with pytest.raises(DataError, match=r"drop-contrast is not on the Hugging Face hub.*contrast-sets"):
        load_suite("drop-contrast")


def test_without_network_a_suite_of_the_hub_says_so(monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    hub = types.SimpleNamespace(snapshot_download=refuse)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(DataError, match="squad cannot be fetched from the Hugging Face hub: no route to host"):
        load_suite("squad")


def test_every_suite_has_a_known_set_family_and_metric():
    assert all(info.dataset in DATASETS and info.metric in METRICS for info in SUITES.values())
    assert family_of("longbench/2wikimqa") == "2wikimultihopqa"
    assert len(GROUPS["longbench"]) == 8 and set(GROUPS["refusal"]) < set(SUITES) < set(NAMES)
