"""A dry run: what it counts is what a run has, it trains nothing, and it fails where a run would."""

from pathlib import Path

import pytest
import torch

import models.base
from models.base import load_base
from models.errors import BaseModelError, ConfigError
from models.presets import load_preset
from tests.models.tiny import FAMILIES
from tests.training.samples import river_and_town
from tests.training.test_run import request_for
from training.batches import Sampler
from training.build import Builder, Material
from training.dry_run import dry_run, planned_steps, schedule_warnings
from training.records import DataError
from training.run import train
from training.sources import load_data, split_records


@pytest.fixture(autouse=True)
def exact_arithmetic(monkeypatch):
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: torch.float32)


@pytest.mark.parametrize("recipe", ["d2a", "paper"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_counted_is_what_a_run_has(tmp_path, family, recipe, monkeypatch):
    request = request_for(tmp_path, family, recipe, overrides={"micro_batch": 2})
    with monkeypatch.context() as patch:
        patch.setattr(models.base.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights"))
        patch.setattr("training.build.find_reranker", lambda *_: pytest.fail("reranker"))
        found = dry_run(request)
    assert not request.out.exists()
    config = request.resolved()
    base = load_base(load_preset(config.model), base_path=request.base_path, device="cpu")
    _, kept = split_records(load_data(request.data, config, lambda _: None)[0], config)
    builder = Builder(
        system="doc2atom", reads="atoms", base=base, spec=config.memory_spec(), config=config, emit=lambda _: None
    )
    module, material = builder.module(), Material.of(kept, seed=config.seed)
    trained = sum(p.numel() for p in module.parameters())
    memory = found["memory"]
    assert memory["base_bytes"] == 4 * sum(p.numel() for p in base.model.parameters())
    assert memory["trained_bytes"] == 16 * trained
    assert memory["features_bytes"] == builder.over(module, material).features.num_bytes
    assert memory["sum_bytes"] == sum(v for k, v in memory.items() if k != "sum_bytes")
    assert found["data"] == {"files": 1, "passages": 6, "held_out": 2, "atoms": 18, "questions": 6, "samples": 6}
    assert (found["schedule"]["steps"], found["schedule"]["parts_per_step"]) == (2, 2)
    assert found["time"]["hours_estimate"] == pytest.approx(found["time"]["step_seconds_estimate"] * 2 / 3600)


@pytest.mark.parametrize(("system", "keeps"), [("d2l", False), ("reader", False), ("blind", True)])
def test_only_systems_over_a_cache_are_said_to_keep_features(tmp_path, system, keeps):
    memory = dry_run(request_for(tmp_path, "llama", "paper", system=system))["memory"]
    assert (memory["features_bytes"] > 0) == keeps


def test_steps_end_with_the_horizon_or_the_epochs_and_late_stages_are_told(tmp_path):
    request = request_for(tmp_path, "llama", "paper", overrides={"max_steps": 12000, "max_epochs": 50})
    config = request.resolved()
    material = Material.of(split_records(load_data(request.data, config, lambda _: None)[0], config)[1], seed=0)
    # Six samples, four a step: 50 epochs are 300 samples, 75 steps.
    assert planned_steps(config, Sampler(material.episodes, config, "cpu")) == 75
    assert schedule_warnings(config, 75) == [
        "stage 2 begins at step 2000, after the end",
        "stage 3 begins at step 6000, after the end",
        "stage 4 begins at step 9000, after the end",
    ]
    assert schedule_warnings(config, 12000) == []


def test_it_says_from_which_state_a_run_would_go_on(tmp_path):
    request = request_for(tmp_path, "llama", "paper")
    assert dry_run(request)["resume"] == "from the start"
    train(request, on_event=lambda _: None)
    assert dry_run(request)["resume"].endswith("step-00000002")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"records": river_and_town()}, DataError, "4 passages are too few"),
        ({"overrides": {"max_steps": 0}}, ConfigError, "max_steps must be at least 1"),
        ({"base_path": Path("nowhere")}, BaseModelError, "holds no model"),
    ],
)
def test_it_fails_where_a_run_would(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        dry_run(request_for(tmp_path, "llama", "d2a", **changes))
