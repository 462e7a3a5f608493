"""Loading by name: what a folder holds, the paper's sets from the hub, and what is told when nothing is found."""

import json

import pytest

from models.atoms import QUESTION_TYPES
from training import datasets
from training.datasets import (
    DATASETS,
    EVAL_SETS,
    PAPER_SOURCES,
    family_of,
    find_sources,
    load,
    load_eval_sets,
    load_sources,
)
from training.datasets.context import MODES
from training.datasets.longbench import FAMILIES
from training.records import DataError


def squad(text):
    qa = {"id": text, "question": "Who?", "answers": [{"text": text[:3], "answer_start": 0}]}
    return {"data": [{"title": "Marn", "paragraphs": [{"context": text, "qas": [qa]}]}]}


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


def collection(root):
    put(root / "train" / "squad" / "train_part.json", squad("Ann sat."))
    put(root / "train" / "squad" / "train-v2.json", squad("Bob ran."))
    put(root / "train" / "boolq" / "train.jsonl", {"question": "do they", "answer": True, "passage": "They do."})
    put(root / "eval" / "squad" / "dev-v1.1.json", squad("Cat lay."))
    return root


def test_a_folder_gives_the_training_files_of_every_set_it_holds(tmp_path):
    sources = load_sources(None, collection(tmp_path))
    assert [(s.name, s.split, [c.text for c in s.contexts]) for s in sources] == [
        ("squad", "train", ["Ann sat."]),
        ("squad_v2", "train", ["Bob ran."]),
        ("boolq", "train", ["They do."]),
    ]
    assert [p.name for s in sources for p in s.files] == ["train_part.json", "train-v2.json", "train.jsonl"]


def test_evaluation_files_are_found_from_the_collection_and_from_its_training_folder(tmp_path):
    root = collection(tmp_path)
    for data in (root, root / "train"):
        assert {name: [c.text for c in found] for name, found in load_eval_sets(data).items()} == {
            "squad": ["Cat lay."]
        }
    assert load_eval_sets(root, names=["drop"]) == {}


def test_a_set_is_read_from_its_file_its_folder_and_a_folder_of_sets_in_one_level(tmp_path):
    squad_folder = collection(tmp_path) / "train" / "squad"
    for source in (squad_folder / "train_part.json", squad_folder, tmp_path / "train", tmp_path):
        assert [c.text for c in load("squad", source)] == ["Ann sat."]
    put(tmp_path / "flat" / "squad" / "train-v1.1.json", squad("Ann sat."))
    put(tmp_path / "flat" / "squad" / "dev-v1.1.json", squad("Cat lay."))
    assert [c.text for c in load("squad", tmp_path / "flat")] == ["Ann sat."]
    assert [c.text for c in load("squad", tmp_path / "flat", "dev")] == ["Cat lay."]
    assert find_sources(tmp_path / "flat") == ["squad"]


def test_without_a_folder_the_papers_five_sets_come_from_the_hub(monkeypatch):
    asked = []

    def fake(hub, split, name):
        asked.append((name, split, hub.repo_id))
        return []

    monkeypatch.setattr(datasets, "download", fake)
    assert [s.name for s in load_sources()] == list(PAPER_SOURCES)
    assert set(PAPER_SOURCES) == {"2wikimultihopqa", "drop", "qasper", "ropes", "squad"}
    assert ("squad", "train", "rajpurkar/squad") in asked


def test_published_dev_sets_come_from_the_hub_and_contrast_sets_do_not(monkeypatch):
    asked = []
    monkeypatch.setattr(datasets, "download", lambda hub, split, name: asked.append((name, split)) or [])
    load_eval_sets()
    assert ("drop", "dev") in asked and ("longbench", "dev") in asked
    assert not any(name.endswith("contrast") for name, _ in asked)


def test_a_set_that_is_not_on_the_hub_names_its_page():
    with pytest.raises(DataError, match=r"policyqa is not on the Hugging Face hub. Download it from https://github"):
        list(load("policyqa"))


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("sqad", "train", "dataset must be one of squad, .*got 'sqad'"),
        ("drop", "train", r"holds no train files of drop. Put drop_dataset_train.json\* or .* into"),
        ("boolq", "test", r"boolq: split must be one of \['dev', 'train'\], got 'test'"),
    ],
)
def test_what_cannot_be_found_says_what_would_be(tmp_path, name, split, message):
    with pytest.raises(DataError, match=message):
        list(load(name, collection(tmp_path), split))


def test_missing_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist.*--data"):
        list(load("squad", tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"holds no training set\. Put sets into folders of these names: squad, "):
        find_sources(tmp_path)


def test_every_set_of_the_registry_is_whole():
    for name, info in DATASETS.items():
        assert info.name == name and info.mode in MODES and info.files
        assert info.hub is not None or info.homepage.startswith("https://"), name
        assert info.hub is None or set(info.hub.patterns) <= {"train", "dev"}, name
        assert all(e in EVAL_SETS or e.split("/")[1] in FAMILIES for e in info.eval_sets), name
    assert {item.dataset for item in EVAL_SETS.values()} <= set(DATASETS)


def test_families_join_a_set_its_contrast_set_and_its_part_of_longbench():
    names = ("2wikimultihopqa", "longbench/2wikimqa", "squad_v2", "drop_contrast", "longbench/triviaqa")
    assert [family_of(n) for n in names] == ["2wikimultihopqa", "2wikimultihopqa", "squad", "drop", "triviaqa"]


def test_question_types_are_those_of_the_schema():
    from training.datasets.multihop import QUESTION_TYPES as HOPS

    assert set(HOPS.values()) <= set(QUESTION_TYPES)
