"""Preparing records: every raw set is read, and what overlaps with the evaluation set is left out."""

import json

from training.datasets.manifest import DataManifest
from training.prepare import DEV_SET, TRAIN_SETS, prepare
from training.records import read_records


def squad(context, answer):
    qa = {
        "id": context[:9],
        "question": f"What about {answer}?",
        "answers": [{"text": answer, "answer_start": context.index(answer)}],
    }
    return {"data": [{"title": "Marn", "paragraphs": [{"context": context, "qas": [qa]}]}]}


def test_records_of_all_sets_are_written_without_those_that_overlap_with_the_evaluation_set(tmp_path):
    dev = "Ilse Kant was born in Marn in 1881 and she built the nine bridges there."
    names = [name for files in TRAIN_SETS.values() for name in files]
    contents = {name: squad(f"Otter {number} lives in lake Tor.", "lake Tor") for number, name in enumerate(names)}
    contents["squad/train_subset_b_flat.json"] = [
        {"context": "Hens sleep at night.", "question": "Who sleeps?", "answer": "Hens"},
        {"context": f"We read that {dev}", "question": "Who was born in Marn?", "answer": "Ilse Kant"},
    ]
    for name, content in {
        **{f"train/{n}": c for n, c in contents.items()},
        f"eval/{DEV_SET}": squad(dev, "1881"),
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content), "utf-8")
    counts = prepare(tmp_path, tmp_path / "out")
    train, held = (read_records(tmp_path / "out" / f"{name}.jsonl.gz") for name in ("train", "squad_dev"))
    # Seven sets of one passage each, of which the flat one has a second that quotes the evaluation set.
    assert counts == {
        "train_passages": 7,
        "train_questions": 7,
        "train_atoms": 7,
        "dropped_overlapping": 1,
        "dev_passages": 1,
    }
    assert [r.context for r in held] == [dev] and all(dev not in r.context for r in train)
    assert all(q.gold_atom_ids for r in (*train, *held) for q in r.qa_pairs)
    manifest = DataManifest.from_dict(json.loads((tmp_path / "out" / "manifest.json").read_text()))
    assert [(m.name, m.num_contexts, m.num_questions, m.dropped) for m in manifest.sources] == [
        ("squad", 3, 3, {"overlap": 1}),
        ("squad_v2", 1, 1, {"overlap": 0}),
        ("squadshifts", 3, 3, {"overlap": 0}),
    ]
    assert [manifest.in_domain(name) for name in ("squad", "ropes")] == ["in-domain", "zero-shot"]
