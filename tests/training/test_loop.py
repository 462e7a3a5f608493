"""The loop: its schedule, that it learns and repeats itself, early stopping, parts of a batch, and going on."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from models.errors import CheckpointError, ConfigError
from tests.models.tiny import tiny_network
from tests.training.samples import colours
from tests.training.worlds import SPECS, articles_of, base_of, over, step_of
from training.batches import Sampler
from training.config import TrainConfig
from training.curriculum import Stage
from training.held_out import HeldOut, UnusedMemoryError
from training.loop import StateFiles, Trainer, learning_rate, num_parts
from training.state import complete_states
from training.world import World

RECORDS = colours(12)
SMALL = TrainConfig(
    global_batch=8, batch_route=12, warmup_steps=5, learning_rate=3e-3, max_epochs=1000, probe_from_step=10**6
)


@pytest.fixture(scope="module")
def setting():
    """Return the features of the records and all but the network, which each run makes anew."""
    base = base_of("llama")
    return step_of(base, tiny_network(base, SPECS["d2a"]), RECORDS, SMALL, teacher=True)


def trainer(setting, *, evaluations=None, states=None, **config):
    """Return a trainer of a fresh seeded memory; `evaluations` replaces the held-out losses."""
    step, sampler = setting
    config = replace(SMALL, **config)
    system = over(step, tiny_network(step.base, SPECS["d2a"]).train(), **vars(config))
    sampler = Sampler(sampler.host, config, "cpu")
    held_out = HeldOut(system=system, sampler=sampler, article_N=articles_of(RECORDS), router=system)
    if evaluations is not None:
        held_out.evaluate = partial(next, ({"loss": loss} for loss in evaluations))
    events = []
    made = Trainer(system, sampler, held_out, World("cpu"), events.append, states=states)
    made.events = events
    return made


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.system.parameters()])


def test_the_rate_warms_up_and_falls_along_a_cosine_to_its_floor():
    config = TrainConfig(learning_rate=1e-3, warmup_steps=200)
    # Half of the warm-up at the start of the run; no warm-up left at its middle: 0.02 + 0.98 / 2 = 0.51.
    assert learning_rate(config, 99, 0.0) == pytest.approx(0.5e-3)
    assert learning_rate(config, 199, 0.0) == pytest.approx(1e-3)
    assert learning_rate(config, 2000, 0.5) == pytest.approx(0.51e-3)
    assert learning_rate(config, 4000, 1.0) == pytest.approx(0.02e-3)
    assert learning_rate(replace(config, final_rate_share=0.0), 4000, 1.0) == pytest.approx(0.0)


def test_thirty_steps_lower_the_held_out_loss_of_both_banks(setting):
    made = trainer(setting, max_steps=30, eval_every=30)
    before = made.held_out.evaluate()
    best = made.run()
    assert best["step"] == 30
    assert best["lm_passage"] < before["lm_passage"] - 0.5
    assert best["lm_library"] < before["lm_library"] - 0.5


def test_a_run_repeats_itself_at_a_fixed_seed_and_not_at_another(setting):
    found = []
    for seed in (0, 0, 1):
        made = trainer(setting, max_steps=3, evaluations=[1.0], seed=seed)
        made.run()
        found.append(weights(made))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_patience_ends_the_run_and_the_best_weights_come_back(setting):
    made = trainer(setting, max_steps=20, eval_every=2, patience=2, evaluations=[5.0, 3.0, 4.0, 4.0])
    best = made.run()
    assert (best["loss"], best["step"]) == (3.0, 4)
    assert [e["step"] for e in made.events if e["event"] == "eval"] == [2, 4, 6, 8]
    # The same run, stopped at its best step by patience alone: the schedule must not differ, so max_steps stays.
    stopped = trainer(setting, max_steps=20, eval_every=4, patience=1, evaluations=[1.0, 2.0])
    stopped.run()
    assert torch.equal(weights(made), weights(stopped))


def test_early_stopping_is_armed_in_the_last_stage(setting):
    stages = (Stage(top_k=1, until_step=6, losses=("lm",)), Stage(top_k=2, losses=("lm",)))
    made = trainer(setting, max_steps=20, eval_every=2, patience=1, stages=stages, evaluations=[1.0, 2.0, 2.0, 2.0])
    assert made.run()["step"] == 2
    # Steps 2 to 6 end in stage 1, whose strikes do not count; step 8 is the first that does.
    assert [e["step"] for e in made.events if e["event"] == "eval"] == [2, 4, 6, 8]


def test_the_last_step_is_evaluated_even_between_evaluations(setting):
    made = trainer(setting, max_steps=3, eval_every=50, evaluations=[1.0])
    assert made.run()["step"] == 3
    assert [e["event"] for e in made.events] == ["eval"]


@pytest.mark.parametrize("limit", [{"max_minutes": 1e-6}, {"max_epochs": 1, "global_batch": 36}])
def test_minutes_and_epochs_end_a_run_too(setting, limit):
    # 36 questions; a tenth of the language model's are near misses, so an epoch takes two steps.
    made = trainer(setting, max_steps=1000, eval_every=50, evaluations=[1.0], share_sibling=0.1, **limit)
    assert made.run()["step"] == (1 if "max_minutes" in limit else 2)


def test_steps_report_losses_figures_rate_and_stage(setting):
    stages = (Stage(top_k=2, until_share=0.5, losses=("lm", "route")), Stage(top_k=3))
    made = trainer(setting, max_steps=4, log_every=2, stages=stages, evaluations=[1.0])
    made.run()
    first, second = [e for e in made.events if e["event"] == "step"]
    assert [(e["step"], e["stage"], e["top_k"]) for e in (first, second)] == [(2, 1, 2), (4, 2, 3)]
    assert first["lr"] == pytest.approx(learning_rate(SMALL, 1, 0.25))
    assert {"lm", "route", "top1"} <= first.keys() and "irrelevant" not in first
    assert all(math.isfinite(second[name]) for name in ("lm", "route", "null_slot", "contrastive", "irrelevant"))
    assert 0.0 <= first["top1"] <= 1.0 and first["tokens_per_s"] > 0 and first["eta_seconds"] >= 0
    with torch.no_grad():
        system, sampler = trainer(setting, max_steps=4, stages=stages, log_every=1).system, setting[1]
        batch = Sampler(sampler.host, SMALL, "cpu")
        batch = batch.collate(batch.plan(0), system.nearest)
        total, count = system(batch, replace(SMALL, stages=stages, max_steps=4).phase_at(0, 0.0))["route"]
    one = trainer(setting, max_steps=4, stages=stages, log_every=1, evaluations=[1.0])
    one.run()
    assert one.events[0]["route"] == pytest.approx(float(total / count), abs=1e-4)


def test_a_run_that_diverges_says_so(setting):
    with pytest.raises(ConfigError, match=r"not finite after 1 steps.*learning_rate"):
        trainer(setting, max_steps=1, evaluations=[math.nan]).run()


def test_a_run_that_diverges_later_ends_there_with_its_best_weights(setting):
    made = trainer(setting, max_steps=20, eval_every=2, patience=9, evaluations=[2.0, math.nan])
    assert made.run() == {"loss": 2.0, "step": 2}
    assert made.step == 4


@pytest.mark.parametrize("recipe", ["d2a", "paper"])
def test_parts_of_a_batch_give_the_weights_of_the_whole(setting, recipe):
    losses = {"loss": replace(SMALL.loss, distill=0.5, protect=1e-3, sparse=0.1, composition=0.1, confidence=0.1)}
    if recipe == "paper":
        losses |= {"questions_per_document": 2, "batch_route": 0, "share_library": 0.0, "share_absent": 0.0}
        losses |= {"share_sibling": 0.0, "rescue_gold": False, "gold_forcing": 0.0}
        losses["loss"] = replace(losses["loss"], contrastive=0.0)
    found = []
    for size in (None, 3):
        made = trainer(setting, max_steps=3, micro_batch=size, evaluations=[1.0], **losses)
        assert made.num_parts == (1 if size is None else 3)  # 8 samples, 3 at once
        made.run()
        found.append(weights(made))
    torch.testing.assert_close(found[0], found[1], atol=2e-5, rtol=1e-3)


def test_parts_follow_from_batch_processes_and_micro_batch():
    config = TrainConfig(global_batch=128)
    assert [num_parts(config, n) for n in (1, 8)] == [1, 1]
    assert [num_parts(replace(config, micro_batch=4), n) for n in (1, 8, 3)] == [32, 4, 11]  # 43 samples, 4 at once
    with pytest.raises(ConfigError, match="global_batch must be at least the 200 processes, got 128"):
        num_parts(config, 200)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(setting, tmp_path):
    losses = [3.0, 2.0, 2.5, 2.4]
    whole = trainer(setting, max_steps=8, eval_every=2, evaluations=losses)
    expected = whole.run()
    files = StateFiles(folder=tmp_path, identity="a run")
    cut = trainer(setting, max_steps=8, eval_every=2, save_every=5, evaluations=losses, states=files)
    cut._log = None  # nothing is logged before step 50
    cut._evaluate = stop_at(cut, 6)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    [state] = complete_states(tmp_path)
    again = trainer(
        setting,
        max_steps=8,
        eval_every=2,
        evaluations=losses[2:],
        states=replace(files, start=state),
    )
    assert (again.step, again.best.figures) == (5, {"loss": 2.0, "step": 4})
    assert again.run() == expected == {"loss": 2.0, "step": 4}
    assert torch.equal(weights(again), weights(whole))
    assert again.events[0] == {"event": "resume", "step": 5, "from": str(state)}
    with pytest.raises(CheckpointError, match="another configuration"):
        trainer(setting, states=StateFiles(folder=tmp_path, identity="another", start=state))


def stop_at(made, step):
    """Return an evaluation that breaks the run off at `step`."""
    evaluate = made._evaluate

    def broken(phase):
        if made.step == step:
            raise KeyboardInterrupt
        evaluate(phase)

    return broken


def test_a_blind_memory_is_caught_by_the_probe(setting):
    made = trainer(setting, max_steps=2, eval_every=2, probe_from_step=2)
    with torch.no_grad():
        made.system.network.router.bias.fill_(-1e3)  # the null slot takes all weight
    with pytest.raises(UnusedMemoryError, match=r"at step 2 .* 0\.000 nats"):
        made.run()
