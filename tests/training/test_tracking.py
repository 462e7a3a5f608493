"""Trackers: which numbers of a run they get, and what is said where their package is missing."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from models.errors import ConfigError
from training.tracking import figures, open_tracker

STEP = {"event": "step", "step": 50, "lm": 2.5, "stage": 1, "note": "text", "flag": True}
EVALUATION = {"event": "eval", "step": 50, "loss": 1.5}
OTHER = {"event": "cache", "done": "atoms", "seconds": 3.0}


def test_numbers_of_steps_and_evaluations_count_and_nothing_else():
    assert figures(STEP) == {"step/lm": 2.5, "step/stage": 1}
    assert figures(EVALUATION) == {"eval/loss": 1.5}
    assert figures(OTHER) == {}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted_trackers_get_config_and_numbers_and_are_closed(monkeypatch, tmp_path, name):
    calls = []
    module = ModuleType(name)
    module.init = lambda **options: calls.append(("init", options))
    module.log = lambda found, step: calls.append(("log", found, step))
    module.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(KeyboardInterrupt), open_tracker(name, tmp_path / "first", {"seed": 1}) as tracker:
        for event in (STEP, OTHER, EVALUATION):
            tracker.log(event)
        raise KeyboardInterrupt
    assert calls == [
        ("init", {"project": "d2a", "name": "first", "config": {"seed": 1}}),
        ("log", {"step/lm": 2.5, "step/stage": 1}, 50),
        ("log", {"eval/loss": 1.5}, 50),
        ("finish",),
    ]


def test_tensorboard_gets_scalars_in_the_runs_folder(monkeypatch, tmp_path):
    found = []
    writer = SimpleNamespace(add_scalar=lambda *args: found.append(args), close=lambda: found.append("closed"))
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda folder: found.append(folder) or writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with open_tracker("tensorboard", tmp_path, {}) as tracker:
        tracker.log(EVALUATION)
    assert found == [str(tmp_path / "tensorboard"), ("eval/loss", 1.5, 50), "closed"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_named_with_its_command(monkeypatch, tmp_path, name):
    for module in ("torch.utils.tensorboard", "wandb", "trackio"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"tracker {name} is not installed.*pip install {name}"):
        open_tracker(name, tmp_path, {}).__enter__()


def test_unknown_trackers_are_refused_and_none_takes_everything(tmp_path):
    with pytest.raises(ConfigError, match="tracker must be one of tensorboard, wandb, trackio, got 'paper'"):
        open_tracker("paper", tmp_path, {}).__enter__()
    with open_tracker(None, tmp_path, {}) as tracker:
        tracker.log(STEP)
    assert list(tmp_path.iterdir()) == []
