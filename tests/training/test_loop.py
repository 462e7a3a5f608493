"""The loop: its schedule, that it learns and repeats itself, and that early stopping leaves the best weights."""

import math

import pytest
import torch

import training.loop
from models.errors import ConfigError
from tests.models.tiny import tiny_network
from tests.training.samples import colours
from tests.training.worlds import SPECS, base_of, step_of
from training.config import TrainConfig
from training.loop import evaluate_held_out, learning_rate, train_loop
from training.step import TrainStep

RECORDS = colours(12)
SMALL = {"batch_lm": 8, "batch_route": 12, "warmup_steps": 5, "learning_rate": 3e-3, "max_minutes": 60.0}


@pytest.fixture(scope="module")
def setting():
    """Return a base, the cache of the records and everything but the network, which each run makes anew."""
    base = base_of("llama")
    step, sampler = step_of(base, tiny_network(base, SPECS["d2a"]), RECORDS)
    return step, sampler


def run(setting, *, config, evaluations=None, monkeypatch=None):
    """Train a fresh seeded memory; `evaluations` replaces the held-out losses. Return network, best and events."""
    step, sampler = setting
    network = tiny_network(step.base, SPECS["d2a"]).train()
    train = TrainStep(step.base, network, step.cache, step.metadata_NM)
    if evaluations is not None:
        losses = iter(evaluations)
        monkeypatch.setattr(training.loop, "evaluate_held_out", lambda *_: {"loss": next(losses)})
    events = []
    best = train_loop(train, sampler, train, sampler, config, events.append)
    return network, best, events


def test_the_rate_warms_up_and_falls_along_a_cosine_to_two_percent():
    config = TrainConfig(learning_rate=1e-3, warmup_steps=200)
    # Half of the warm-up at the start of the run; no warm-up left at its middle: 0.02 + 0.98 / 2 = 0.51.
    assert learning_rate(config, 99, 0.0) == pytest.approx(0.5e-3)
    assert learning_rate(config, 199, 0.0) == pytest.approx(1e-3)
    assert learning_rate(config, 2000, 0.5) == pytest.approx(0.51e-3)
    assert learning_rate(config, 4000, 1.0) == pytest.approx(0.02e-3)


def test_thirty_steps_lower_the_held_out_loss_of_both_banks(setting):
    step, sampler = setting
    before = evaluate_held_out(step, sampler)
    _, best, _ = run(setting, config=TrainConfig(**SMALL, max_steps=30, eval_every=30))
    assert best["step"] == 30
    assert best["lm_passage"] < before["lm_passage"] - 0.5
    assert best["lm_library"] < before["lm_library"] - 0.5


def test_a_run_repeats_itself_at_a_fixed_seed_and_not_at_another(setting):
    weights = []
    for seed in (0, 0, 1):
        network, best, _ = run(setting, config=TrainConfig(**SMALL, max_steps=4, eval_every=4, seed=seed))
        weights.append((torch.cat([p.flatten() for p in network.parameters()]), best["loss"]))
    assert torch.equal(weights[0][0], weights[1][0]) and weights[0][1] == weights[1][1]
    assert not torch.equal(weights[0][0], weights[2][0])


def test_patience_ends_the_run_and_the_best_weights_come_back(setting, monkeypatch):
    config = TrainConfig(**SMALL, max_steps=20, eval_every=2, patience=2)
    network, best, events = run(setting, config=config, evaluations=[5.0, 3.0, 4.0, 4.0], monkeypatch=monkeypatch)
    assert (best["loss"], best["step"]) == (3.0, 4)
    assert [e["step"] for e in events if e["event"] == "eval"] == [2, 4, 6, 8]
    # The same run, stopped at its best step by patience alone: the schedule must not differ, so max_steps stays.
    monkeypatch.undo()
    stopped, _, _ = run(
        setting,
        config=TrainConfig(**SMALL, max_steps=20, eval_every=4, patience=1),
        evaluations=[1.0, 2.0],
        monkeypatch=monkeypatch,
    )
    for (name, ours), theirs in zip(network.state_dict().items(), stopped.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_the_last_step_is_evaluated_even_between_evaluations(setting, monkeypatch):
    _, best, events = run(
        setting, config=TrainConfig(**SMALL, max_steps=3, eval_every=50), evaluations=[1.0], monkeypatch=monkeypatch
    )
    assert best["step"] == 3
    assert [e["event"] for e in events] == ["eval"]


def test_minutes_end_a_run_too(setting, monkeypatch):
    config = TrainConfig(**{**SMALL, "max_minutes": 1e-6}, max_steps=1000, eval_every=50)
    _, best, _ = run(setting, config=config, evaluations=[1.0], monkeypatch=monkeypatch)
    assert best["step"] == 1


def test_steps_report_mean_losses_rate_and_k(setting, monkeypatch):
    monkeypatch.setattr(training.loop, "LOG_EVERY", 2)
    config = TrainConfig(**SMALL, max_steps=4, eval_every=4, top_k=((0.0, 2), (0.5, 3)))
    _, _, events = run(setting, config=config, evaluations=[1.0], monkeypatch=monkeypatch)
    steps = [e for e in events if e["event"] == "step"]
    assert [(e["step"], e["top_k"]) for e in steps] == [(2, 3), (4, 3)]
    assert steps[0]["lr"] == pytest.approx(learning_rate(config, 1, 0.25))
    assert all(math.isfinite(steps[0][name]) for name in ("lm", "route", "null_slot", "contrastive", "irrelevant"))


def test_a_run_that_diverges_says_so(setting, monkeypatch):
    config = TrainConfig(**SMALL, max_steps=1, eval_every=1)
    with pytest.raises(ConfigError, match=r"not finite after 1 steps.*learning_rate"):
        run(setting, config=config, evaluations=[math.nan], monkeypatch=monkeypatch)


def test_held_out_figures_are_exact_where_routing_is_forced(setting):
    step, sampler = setting
    network = tiny_network(step.base, SPECS["d2a"])
    with torch.no_grad():
        network.router.log_scale.fill_(-20.0)
        network.router.metadata.zero_()
        network.router.lexical.fill_(100.0)
    figures = evaluate_held_out(TrainStep(step.base, network, step.cache, step.metadata_NM), sampler)
    # Words alone decide, and each question names its place, which one atom of all holds.
    assert (figures["top1_passage"], figures["top1_library"]) == (1.0, 1.0)
    assert figures["lm_passage"] == pytest.approx(figures["lm_gold"], abs=0.05)
    assert figures["loss"] == pytest.approx((figures["lm_passage"] + figures["lm_library"]) / 2)
