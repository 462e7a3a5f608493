"""Where records come from: raw sets made into records once, shares of sources, and what training leaves out."""

import json
import shutil
from collections import Counter
from dataclasses import replace

import pytest

import models.base
from models.base import load_base
from models.checkpoint import load_network
from models.errors import ConfigError
from models.presets import load_preset
from tests.training.samples import colours, make_record, river_and_town
from tests.training.test_run import request_for
from training.config import TrainConfig
from training.datasets.manifest import NOTHING_HELD_OUT
from training.dry_run import dry_run
from training.records import DataError, write_records
from training.run import train
from training.sources import data_facts, load_data, mixed, record_files, split_records

PLACES = ("Marn", "Tor", "Brenn", "Oland", "Kest", "Ulm", "Vara", "Wend", "Ystr", "Zell", "Aken", "Born")


def valid(records):
    """Return records as a file gives them back: what is derived is derived."""
    return [record.validated() for record in records]


def write_squad(path, places, *, year=1900):
    """Write paragraphs of two sentences with a question each, in SQuAD's format."""
    paragraphs = []
    for number, place in enumerate(places):
        answer = str(year + number)
        context = f"The town of {place} got its first bridge in {answer}. Fishermen of {place} sell eels and pike."
        qa = {"id": f"{place}-{year}", "question": f"When did {place} get a bridge?", "is_impossible": False}
        qa["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
        paragraphs.append({"context": context, "qas": [qa]})
    articles = [{"title": f"Towns {i}", "paragraphs": paragraphs[i::3]} for i in range(3)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "1.1", "data": articles}), "utf-8")


@pytest.fixture
def raw(tmp_path):
    """Return a folder with a training set and an evaluation set that shares its last paragraph."""
    write_squad(tmp_path / "raw" / "train" / "squad" / "train-v1.1.json", PLACES)
    write_squad(tmp_path / "raw" / "eval" / "squad" / "dev-v1.1.json", PLACES[-1:], year=1911)
    return tmp_path / "raw"


@pytest.fixture
def out(tmp_path):
    """Return the folder of a run."""
    return tmp_path / "run"


def test_raw_sets_become_records_once_without_evaluation_text(raw, out):
    told = []
    before = sorted(raw.rglob("*"))
    records, files = load_data(raw, TrainConfig(), told.append, out=out)
    assert sorted(raw.rglob("*")) == before  # a user's folder of sets is only read
    assert len(records) == 11 and not any("Born" in r.context for r in records)
    assert all(r.qa_pairs[0].gold_atom_ids for r in records)
    assert any(q.is_irrelevant for r in records for q in r.qa_pairs)  # probes
    assert files == [out / "records" / "squad" / "shard-00000.jsonl"]
    assert len(told) == 1  # an event for many contexts, not for each
    assert told[-1] == {"event": "annotate", "source": "squad", "done": 11, "total": 11}
    manifest = json.loads((out / "records" / "manifest.json").read_text())
    assert manifest["sources"][0]["num_contexts"] == 11 and manifest["sources"][0]["overlaps"] == {"squad": 1}
    told.clear()
    assert load_data(raw, TrainConfig(), told.append, out=out)[0] == records and told == []


def test_making_records_goes_on_after_a_kill(raw, out, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("training.datasets.manifest.DataManifest.to_dict", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            load_data(raw, TrainConfig(), lambda _: None, out=out)
    assert not (out / "records" / "manifest.json").exists()
    told = []
    records, _ = load_data(raw, TrainConfig(), told.append, out=out)
    assert len(records) == 11 and [e["done"] for e in told][-1] == 11


def test_a_run_over_raw_sets_carries_their_manifest(tmp_path, raw, monkeypatch):
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: models.base.torch.float32)
    request = replace(request_for(tmp_path, "llama", "paper"), data=raw)
    base = load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path, device="cpu")
    _, meta = load_network(train(request, on_event=lambda _: None), base)
    manifest = meta.training["data"]["manifest"]
    assert manifest["held_out"] == {"squad": 1} and manifest["warnings"] == []
    assert meta.training["data"]["passages"] == 9  # of 11, two are held out


def test_without_data_the_sources_come_from_the_hub_under_the_runs_folder(tmp_path, monkeypatch):
    asked = []

    def make(data, out, *, names, emit, annotation):
        asked.append((data, out, names))
        write_records(out / "squad" / "shard-00000.jsonl", colours(3))

    monkeypatch.setattr("training.corpus.make_records", make)
    records, _ = load_data(None, TrainConfig(), lambda _: None, out=tmp_path)
    load_data(None, TrainConfig(mixture={"squad": 1.0}), lambda _: None, out=tmp_path)
    assert asked == [(None, tmp_path / "records", None), (None, tmp_path / "records", ("squad",))]
    assert records == valid(colours(3))


def test_sources_are_mixed_in_the_shares_of_the_configuration(tmp_path):
    write_records(tmp_path / "many" / "shard-00000.jsonl", colours(8))
    write_records(tmp_path / "few" / "shard-00000.jsonl", river_and_town())
    assert [p.parent.name for p in record_files(tmp_path, TrainConfig())] == ["few", "many"]
    every, _ = load_data(tmp_path, TrainConfig(), lambda _: None)
    assert every == valid([*river_and_town(), *colours(8)])
    even, _ = load_data(tmp_path, TrainConfig(mixture={"many": 1.0, "few": 1.0}), lambda _: None)
    # Twelve records in equal shares: six of eight, and four and two more of four.
    assert Counter(r in valid(river_and_town()) for r in even) == {True: 6, False: 6}
    only = mixed({"many": colours(8), "few": river_and_town()}, TrainConfig(mixture={"few": 2.0}))
    assert len(only) == 12 and all(r in river_and_town() for r in only)
    with pytest.raises(ConfigError, match=r"mixture\.weights: none must be one of the sources"):
        mixed({"few": river_and_town()}, TrainConfig(mixture={"none": 1.0}))


def test_no_copy_of_a_passage_that_is_held_out_is_trained_on():
    config = TrainConfig(mixture={"few": 4.0, "many": 1.0}, holdout_passages=2)
    records = mixed({"few": valid(river_and_town()), "many": valid(colours(24))}, config)
    assert len({r.context for r in records}) < len(records)
    for seed in range(5):
        held_out, kept = split_records(records, replace(config, seed=seed))
        assert len({r.context for r in held_out}) == len(held_out) == 2
        assert {r.context for r in held_out}.isdisjoint(r.context for r in kept)


def test_up_to_half_of_what_is_held_out_was_asked_by_people_what_it_does_not_answer():
    def missed(number, by_rule):
        record = make_record(
            "Hens", [f"Hen {number} sleeps."], [("Who sleeps?", f"Hen {number}", [0]), ("Who wakes?", "", [])]
        )
        last = replace(record.qa_pairs[1], is_generated_irrelevant=by_rule)
        return replace(record, qa_pairs=(record.qa_pairs[0], last))

    by_people = [missed(number, False) for number in range(10)]
    records = [*[missed(number, True) for number in range(10, 200)], *by_people]
    for seed in range(3):
        held_out, kept = split_records(records, TrainConfig(holdout_passages=8, seed=seed))
        assert len(held_out) == 8 and len(kept) == 192
        assert 4 <= sum(record in by_people for record in held_out) <= 5  # by chance one more of the ten in 200


def test_atoms_without_a_valid_span_and_questions_with_warnings_are_left_out(tmp_path):
    record = colours(1)[0]
    atoms = (replace(record.atoms[0], span_valid=False), *record.atoms[1:])
    questions = (*record.qa_pairs[:2], replace(record.qa_pairs[2], annotation_warnings=("doubtful",)))
    write_records(tmp_path / "r.jsonl", [replace(record, atoms=atoms, qa_pairs=questions)])
    [kept], _ = load_data(tmp_path / "r.jsonl", TrainConfig(), lambda _: None)
    assert [a.atom_id for a in kept.atoms] == ["atom_1", "atom_2"]
    assert [q.gold_atom_ids for q in kept.qa_pairs] == [("atom_1",)]


def test_a_folder_of_nothing_says_what_to_do_and_leaves_nothing_behind(tmp_path, out):
    (tmp_path / "empty").mkdir()
    for name, message in (
        (
            "empty",
            r"empty holds neither records nor raw sets\. Make records with `d2a annotate`\. Put sets into .*squad",
        ),
        ("nowhere", r"nowhere does not exist\. Pass a folder of raw sets, or of records from `d2a annotate`"),
    ):
        with pytest.raises(DataError, match=message) as found:
            load_data(tmp_path / name, TrainConfig(), lambda _: None, out=out)
        assert "\n" not in str(found.value)
    assert not out.exists()


@pytest.mark.parametrize("part", [".", "train"])
def test_a_collection_and_its_training_folder_give_the_same_records(raw, out, part):
    records, _ = load_data(raw / part, TrainConfig(), lambda _: None, out=out)
    assert len(records) == 11  # the evaluation set beside `train` was found as well


def test_without_an_evaluation_set_there_is_a_warning_that_the_checkpoint_carries(raw, out):
    shutil.rmtree(raw / "eval")
    told = []
    records, files = load_data(raw / "train", TrainConfig(), told.append, out=out)
    assert len(records) == 12
    warning = {"event": "warning", "message": NOTHING_HELD_OUT}
    assert told[0] == warning
    told.clear()
    load_data(raw / "train", TrainConfig(), told.append, out=out)
    assert told == [warning]  # every run that takes them is told
    manifest = data_facts(files, TrainConfig(), records)["manifest"]
    assert manifest["held_out"] == {} and manifest["warnings"] == [NOTHING_HELD_OUT]


def test_records_of_other_sets_are_not_taken_for_these(raw, out):
    load_data(raw, TrainConfig(), lambda _: None, out=out)
    with pytest.raises(DataError, match="records holds the records of other sets"):
        load_data(raw / "train", TrainConfig(), lambda _: None, out=out)
    assert len(load_data(out / "records", TrainConfig(), lambda _: None)[0]) == 11


def test_a_dry_run_counts_the_records_of_raw_sets_and_the_run_finds_them(tmp_path, raw):
    request = replace(request_for(tmp_path, "llama", "paper"), data=raw / "train")
    told = []
    assert dry_run(request, on_event=told.append)["data"]["passages"] == 9  # of 11, two are held out
    assert told[-1]["event"] == "annotate"
    told.clear()
    dry_run(request, on_event=told.append)
    assert told == []
