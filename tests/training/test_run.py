"""`train` whole: from records to a checkpoint with which the product ingests and answers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import models.base
import training.build
from models.base import load_base
from models.baselines.checkpoint import load_baseline
from models.checkpoint import find_checkpoint, load_network, read_meta
from models.config import MemoryConfig
from models.errors import BaseModelError, CheckpointError, ConfigError
from models.memory import DocumentMemory
from models.presets import load_preset
from models.router import GAIN
from tests.models.tiny import FAMILIES, tiny_network
from tests.models.worlds import SPECS, TOWN, base_folder, write_preset
from tests.training.samples import colours, river_and_town
from training.episodes import Episodes
from training.records import DataError, write_records
from training.run import TrainRequest, train

STEPS = """global_batch = 4
batch_route = 6
max_steps = 2
eval_every = 2
max_minutes = 60
warmup_steps = 2
max_epochs = 1000
"""


@pytest.fixture(autouse=True)
def exact_arithmetic(monkeypatch):
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: torch.float32)


def passages(count: int) -> list:
    """Return small passages with one question each, so that a run takes a second."""
    return [replace(r, qa_pairs=r.qa_pairs[:1]) for r in colours(count)]


def request_for(folder: Path, family: str, recipe: str, *, records: list | None = None, **changes) -> TrainRequest:
    """Write preset, configuration and records into a folder; return what trains on them."""
    spec = SPECS[recipe]
    preset = write_preset(folder, family, {spec.recipe: spec})
    config = folder / "tiny_train.toml"
    config.write_text(f'model = "{preset}"\nrecipe = "{spec.recipe}"\nrecords = "r.jsonl.gz"\n{STEPS}', "utf-8")
    write_records(folder / "data" / "r.jsonl.gz", passages(8) if records is None else records)
    settings = {"config": str(config), "data": folder / "data", "out": folder / "run", "base_path": base_folder(family)}
    return TrainRequest(**{**settings, "device": "cpu", **changes})


def memory_over(folder: Path, request: TrainRequest, **changes) -> DocumentMemory:
    settings = {
        "preset": str(folder / "tiny.toml"),
        "base_path": request.base_path,
        "device": "cpu",
        "max_new_tokens": 4,
    }
    return DocumentMemory(MemoryConfig(bank=folder / "bank", **{**settings, **changes}))


@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        *((f, r) for f in FAMILIES for r in ("d2a", "paper")),
        ("llama", "d2a with one LoRA"),
        ("llama", "paper with latent micro-KV"),
    ],
)
def test_a_trained_checkpoint_serves_the_product(tmp_path, family, recipe):
    request, events = request_for(tmp_path, family, recipe), []
    checkpoint = train(request, on_event=events.append)
    assert checkpoint == tmp_path / "run" / "checkpoint"

    base = load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path, device="cpu")
    network, meta = load_network(checkpoint, base)
    assert (meta.preset, meta.spec, meta.base_fingerprint) == ("tiny", SPECS[recipe], base.fingerprint())
    assert meta.training["data"] == {"records": "r.jsonl.gz", "passages": 6, "questions": 6}
    assert meta.training["held_out"]["step"] == 2
    # B starts at zero: a memory that was trained has left it.
    compiler = network.compiler
    factors = compiler.shared.b_1OR if compiler.shared else [x for head in compiler.b_heads.heads for x in head.weight]
    assert all((b != 0).any() for b in factors)

    memory = memory_over(tmp_path, request, checkpoint=checkpoint, threshold=0.0)
    (tmp_path / "town.txt").write_text(TOWN, "utf-8")
    assert [i.outcome for i in memory.ingest([str(tmp_path / "town.txt")]).items] == ["added"]
    answer = memory.ask("Who was born in Marn?")
    assert answer.recipe == SPECS[recipe].recipe and answer.refused_by in (None, "model")
    assert 0.0 <= answer.answerability <= 1.0 and len(answer.atoms) == 3


def test_events_tell_the_run_and_lie_in_its_folder_beside_the_configuration(tmp_path):
    events = []
    request = request_for(tmp_path, "llama", "d2a", max_steps=3, seed=5, overrides={"loss.lm": 0.5})
    train(request, on_event=events.append)
    kinds = [e["event"] for e in events]
    assert kinds[0] == "start" and kinds[-4:] == ["state", "gate", "report", "done"] and "eval" in kinds
    start = events[0]
    assert (start["passages"], start["held_out"], start["device"]) == (6, 2, "cpu")
    network = tiny_network(
        load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path), SPECS["d2a"]
    )
    assert start["parameters"] == sum(p.numel() for p in network.parameters())
    written = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert written == json.loads(json.dumps(events))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["max_steps"], config["seed"], config["loss"]["lm"]) == (3, 5, 0.5)


def test_the_gate_in_the_checkpoint_is_the_fitted_one(tmp_path):
    events = []
    meta = read_meta(train(request_for(tmp_path, "qwen3", "d2a"), on_event=events.append))
    fitted = next(e for e in events if e["event"] == "gate")
    assert meta.gate["threshold"] == fitted["threshold"] and len(meta.gate["coefficients"]) == GAIN + 1
    assert meta.training["gate"]["questions"] == 2  # one in each held-out passage


def test_a_run_repeats_itself_and_other_seeds_do_not(tmp_path):
    fingerprints = []
    for number, seed in enumerate((0, 0, 1)):
        request = request_for(tmp_path, "llama", "d2a", seed=seed, out=tmp_path / f"run{number}")
        fingerprints.append(read_meta(train(request, on_event=lambda _: None)).fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_episodes_are_kept_for_the_same_records_and_made_anew_for_others(tmp_path, monkeypatch):
    built, build = [], training.build.build_episodes
    monkeypatch.setattr("training.build.build_episodes", lambda r, **k: built.append(len(r)) or build(r, **k))
    request = request_for(tmp_path, "llama", "paper", resume="never")
    train(request, on_event=lambda _: None)
    assert built == [6, 2]  # the kept passages and the held-out ones
    train(request, on_event=lambda _: None)
    assert built == [6, 2, 2]
    # Another seed holds other passages out, and other records are other passages.
    train(replace(request, seed=1), on_event=lambda _: None)
    assert built == [6, 2, 2, 6, 2]
    train(request_for(tmp_path, "llama", "paper", resume="never", records=passages(12)), on_event=lambda _: None)
    assert built == [6, 2, 2, 6, 2, 9, 3]
    files = list((tmp_path / "data").glob("r.jsonl.gz.*.episodes.npz"))
    assert sorted(len(Episodes.load(f).atom_start) - 1 for f in files) == [6, 6, 9]


def test_overrides_reshape_the_memory(tmp_path):
    request = request_for(tmp_path, "llama", "d2a", overrides={"memory.rank": 2, "memory.kv.source": "none"})
    meta = read_meta(train(request, on_event=lambda _: None))
    assert meta.spec == replace(SPECS["d2a"], rank=2, kv=replace(SPECS["d2a"].kv, source="none"))


def test_a_registered_checkpoint_is_found_without_being_named(tmp_path):
    request = request_for(tmp_path, "llama", "d2a")
    preset = load_preset(str(tmp_path / "tiny.toml"))
    train(request, on_event=lambda _: None)
    with pytest.raises(CheckpointError, match="no trained memory"):
        find_checkpoint(preset)
    again = []
    train(replace(request, register=True), on_event=again.append)
    # The run was over: it goes on from its last state, and takes no step.
    assert [e["event"] for e in again if e["event"] in ("resume", "eval")] == ["resume"]
    assert read_meta(find_checkpoint(preset)) == read_meta(tmp_path / "run" / "checkpoint")
    assert memory_over(tmp_path, request).status().preset == "tiny"


def test_too_few_passages_are_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(models.base, "load_base", lambda *_, **__: pytest.fail("the model was loaded"))
    request = request_for(tmp_path, "llama", "d2a", records=river_and_town())
    with pytest.raises(DataError, match=r"4 passages are too few.*at least 8 passages"):
        train(request, on_event=lambda _: None)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"config": "nonesuch"}, ConfigError, "no training configuration"),
        ({"overrides": {"memory.rnak": 2}}, ConfigError, "memory: unknown key 'rnak'"),
        ({"data": Path("nowhere")}, DataError, r"does not exist.*d2a annotate"),
        ({"base_path": Path("nowhere")}, BaseModelError, "holds no model"),
        ({"model": "nonesuch"}, ConfigError, "model: must be one of"),
    ],
)
def test_what_is_missing_or_misspelt_is_told_in_one_line(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        train(request_for(tmp_path, "llama", "d2a", **changes), on_event=lambda _: None)


@pytest.mark.parametrize(
    ("system", "reads", "recipe"),
    [
        ("d2l", "raw", "d2a"),
        ("d2l", "atoms", "paper"),
        ("reader", "atoms", "d2a"),
        ("reader", "document", "paper"),
        ("blind", None, "d2a"),
    ],
)
def test_what_the_memory_is_measured_against_trains_in_the_same_loop(tmp_path, system, reads, recipe):
    events = []
    request = request_for(tmp_path, "llama", recipe, system=system, reads=reads, overrides={"probe_from_step": 9})
    checkpoint = train(request, on_event=events.append)
    base = load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path, device="cpu")
    module, meta = load_baseline(checkpoint, base)
    assert (meta.system, meta.reads, meta.preset) == (system, reads or "", "tiny")
    assert meta.training["held_out"]["step"] == 2 and meta.training["data"]["passages"] == 6
    evaluation = next(e for e in events if e["event"] == "eval")
    assert ("shuffled" in evaluation) == (system != "blind")
    assert system != "reader" or evaluation["correct"] != evaluation["shuffled"]
    assert not {"gate", "auroc"} & {*evaluation, *(e["event"] for e in events)}
    assert any(p.abs().sum() > 0 for p in module.parameters())


@pytest.mark.parametrize(
    ("system", "reads", "message"),
    [
        ("d3l", None, "system must be one of doc2atom, d2l, reader, blind, got 'd3l'"),
        ("d2l", "document", "system d2l reads raw or atoms, got 'document'"),
        ("blind", "raw", "system blind reads nothing, got 'raw'"),
    ],
)
def test_unknown_systems_are_refused(tmp_path, system, reads, message):
    with pytest.raises(ConfigError, match=message):
        train(request_for(tmp_path, "llama", "d2a", system=system, reads=reads), on_event=lambda _: None)


def test_records_may_lie_in_shards_or_one_file_and_bring_a_manifest(tmp_path):
    request = request_for(tmp_path, "llama", "paper", records=passages(8))
    folder = tmp_path / "sharded"
    write_records(folder / "a-00000.jsonl", passages(8)[:5])
    write_records(folder / "a-00001.jsonl.gz", passages(8)[5:])
    (folder / "manifest.json").write_text('{"sources": [], "held_out": {}}')
    one_file = request.data / "r.jsonl.gz"
    fingerprints = []
    for number, data in enumerate((request.data, folder, one_file)):
        meta = read_meta(train(replace(request, data=data, out=tmp_path / f"{number}"), on_event=lambda _: None))
        fingerprints.append(meta.fingerprint)
        assert meta.training["data"].get("manifest") == ({"sources": [], "held_out": {}} if data is folder else None)
    assert len(set(fingerprints)) == 1


def test_the_null_space_form_of_protection_trains(tmp_path):
    overrides = {"protect_form": "null_space", "protect_size": 4, "loss.protect": 0.1}
    plain = train(request_for(tmp_path, "qwen3", "paper", overrides={"loss.protect": 0.1}), on_event=lambda _: None)
    plain = read_meta(plain).fingerprint
    request = request_for(tmp_path, "qwen3", "paper", overrides=overrides, resume="never")
    assert read_meta(train(request, on_event=lambda _: None)).fingerprint != plain


def test_features_may_be_computed_in_every_step_and_give_the_same_memory(tmp_path):
    fingerprints = set()
    for home in ("auto", "live", "disk"):
        request = request_for(tmp_path, "llama", "paper", overrides={"feature_home": home}, out=tmp_path / home)
        network, _ = load_network(
            train(request, on_event=lambda _: None),
            load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path, device="cpu"),
        )
        fingerprints.add(round(sum(p.double().abs().sum().item() for p in network.parameters()), 2))
    assert len(fingerprints) == 1


def test_a_reranker_on_this_machine_takes_part(tmp_path, monkeypatch):
    class Reranker:
        def scores(self, question, texts, max_tokens):
            return np.array([float(any(w in t for w in question.split())) for t in texts], dtype=np.float32)

    states = []
    for found in (None, Reranker()):
        monkeypatch.setattr("training.build.find_reranker", lambda name, device, found=found: found)
        events = []
        request = request_for(tmp_path, "llama", "paper", overrides={"log_every": 1}, resume="never")
        train(request, on_event=events.append)
        states.append(next(e["state"] for e in events if e["event"] == "reranker"))
        assert ("rerank" in next(e for e in events if e["event"] == "step")) == (found is not None)
        base = load_base(load_preset(str(tmp_path / "tiny.toml")), base_path=request.base_path, device="cpu")
        network, _ = load_network(tmp_path / "run" / "checkpoint", base)
        assert network.router.rerank.item() == pytest.approx(1.0 if found else 0.0, abs=0.01)
    assert states == ["off: not on this machine", "on"]
