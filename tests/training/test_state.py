"""Training states: whole or not there, rotated, and refused where they do not belong."""

import shutil
from pathlib import Path

import pytest
import torch

from models.errors import CheckpointError
from training.state import (
    TrainingState,
    complete_states,
    copied,
    find_state,
    load_optimiser,
    load_state,
    optimiser_tensors,
    random_states,
    restore_random,
    save_state,
)


def state_at(step: int, **changes) -> TrainingState:
    fields = {
        "identity": "run",
        "step": step,
        "seconds": 1.5 * step,
        "weights": {"w": torch.arange(6.0).view(2, 3) + step},
        "optimiser": {"0.exp_avg": torch.full((2,), 0.25)},
        "best": {"loss": 0.5, "step": 1},
        "best_weights": {"w": torch.zeros(2, 3)},
        "strikes": 2,
        "random": {"cpu": torch.get_rng_state()},
    }
    return TrainingState(**{**fields, **changes})


def test_a_state_reads_back_as_it_was(tmp_path):
    state = state_at(7)
    back = load_state(save_state(tmp_path, state, keep=2), identity="run")
    assert (back.step, back.seconds, back.best, back.strikes) == (7, 10.5, {"loss": 0.5, "step": 1}, 2)
    for name, tensors in state.tensors().items():
        assert back.tensors()[name].keys() == tensors.keys()
        assert all(torch.equal(back.tensors()[name][k], v) for k, v in tensors.items())


def test_only_the_newest_are_kept(tmp_path):
    for step in (100, 20, 300, 1000):
        save_state(tmp_path, state_at(step), keep=2)
    assert [p.name for p in complete_states(tmp_path)] == ["step-00000300", "step-00001000"]
    assert find_state(tmp_path, "auto") == tmp_path / "step-00001000"


def test_what_a_kill_leaves_behind_is_no_state(tmp_path, monkeypatch):
    whole = save_state(tmp_path, state_at(1), keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_state(tmp_path, state_at(2), keep=2)
    (tmp_path / "step-00000009").mkdir()  # and an unmarked folder, as a copy that was cut short leaves
    assert find_state(tmp_path, "auto") == whole
    save_state(tmp_path, state_at(3), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003", "step-00000009"]


def test_a_state_is_found_by_its_own_path_its_folder_or_its_run(tmp_path):
    path = save_state(tmp_path / "states", state_at(4), keep=1)
    for given in (path, tmp_path / "states", tmp_path):
        assert find_state(Path("nowhere"), str(given)) == path
    assert find_state(tmp_path / "states", "never") is None
    assert find_state(tmp_path / "new run", "auto") is None
    with pytest.raises(CheckpointError, match=r"nowhere holds no complete training state.*--resume never"):
        find_state(tmp_path, "nowhere")


def test_broken_or_foreign_states_are_refused_in_one_line(tmp_path):
    path = save_state(tmp_path, state_at(4), keep=1)
    with pytest.raises(CheckpointError, match=r"another configuration or other data.*--out"):
        load_state(path, identity="another run")
    for name in ("weights.safetensors", "state.json"):
        copy = tmp_path / f"broken {name}"
        shutil.copytree(path, copy)
        (copy / name).write_bytes((copy / name).read_bytes()[:20])
        with pytest.raises(CheckpointError, match=r"broken training state.*--resume never"):
            load_state(copy, identity="run")
    text = (path / "state.json").read_text()
    for version, hint in ((1, "--resume never"), (3, "Update d2a")):
        (path / "state.json").write_text(text.replace('"format_version": 2', f'"format_version": {version}'))
        with pytest.raises(CheckpointError, match=f"has format {version}, this d2a reads 2.*{hint}"):
            load_state(path, identity="run")


def test_an_optimiser_goes_on_as_if_nothing_had_happened():
    def optimised(weight, optimiser, steps):
        for step in steps:
            optimiser.zero_grad()
            (weight * torch.tensor([1.0, -2.0, 0.5 * step])).sum().square().backward()
            optimiser.step()

    def adam(weight):
        return torch.optim.AdamW([weight, torch.nn.Parameter(torch.ones(1))], lr=0.1)  # the second one is never used

    straight = torch.nn.Parameter(torch.ones(3))
    optimised(straight, adam(straight), range(6))
    first = torch.nn.Parameter(torch.ones(3))
    optimiser = adam(first)
    optimised(first, optimiser, range(3))
    tensors = {k: v.clone() for k, v in optimiser_tensors(optimiser).items()}
    assert set(tensors) == {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    second = torch.nn.Parameter(first.detach().clone())
    optimiser = adam(second)
    load_optimiser(optimiser, tensors)
    optimised(second, optimiser, range(3, 6))
    assert torch.equal(straight, second)


def test_random_numbers_go_on_where_they_were():
    states = random_states()
    expected = torch.rand(3)
    restore_random(states)
    assert torch.equal(torch.rand(3), expected)


def test_a_copy_is_not_changed_by_later_steps():
    layer = torch.nn.Linear(2, 1)
    copy = copied(layer.state_dict())
    before = layer.weight.detach().clone()
    torch.nn.init.constant_(layer.weight, 9.0)
    assert torch.equal(copy["weight"], before)
