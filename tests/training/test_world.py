"""One process alone: it needs no launcher, and what is done with others changes nothing. Several: test_distributed."""

from pathlib import Path

import pytest
import torch

from models.errors import BaseModelError, ConfigError
from training.world import World


def test_alone_every_sum_and_agreement_is_ones_own():
    world = World("cpu")
    assert (world.rank, world.size, world.is_main, world.device) == (0, 1, True, "cpu")
    assert world.add_up({"a": torch.tensor([1.0, 2.0])})["a"].tolist() == [1.0, 2.0]
    assert world.gather([1.0, 2.0]) == [1.0, 2.0] and world.agree(0.25) == 0.25
    with world.main_first():
        world.wait()
    world.close()


def test_alone_a_step_is_a_plain_clipped_one():
    world, layer = World("cpu"), torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 1.0)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1.0)
    module, same = world.prepare(layer, optimiser, num_parts=2, max_grad_norm=0.5)
    assert module is layer and same is optimiser
    for is_last in (False, True):
        with world.part(module, is_last=is_last):
            world.backward(module, module(torch.tensor([[3.0]])).sum(), num_parts=2)
    assert layer.weight.grad.item() == 6.0  # 3 a part
    world.step(optimiser, layer.parameters(), max_grad_norm=0.5)
    assert layer.weight.item() == pytest.approx(0.5)  # 1 - 0.5 * 6 / |6|


def test_a_launcher_that_brings_fewer_processes_is_caught(monkeypatch):
    class Alone:
        num_processes, process_index = 1, 0

        def __init__(self, **_):
            pass

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("accelerate.Accelerator", Alone)
    with pytest.raises(ConfigError, match=r"launcher: 2 processes were asked for, 1 came together.*ACCELERATE_USE_CPU"):
        World("cpu")


def test_a_device_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    with pytest.raises(BaseModelError, match="device cuda is not available"):
        World("cuda")


def test_the_settings_for_deepspeed_are_what_accelerate_reads():
    from accelerate.commands.config.config_args import load_config_from_file

    path = Path(__file__).parents[2] / "training" / "configs" / "zero2.yaml"
    settings = load_config_from_file(str(path))
    assert settings.distributed_type == "DEEPSPEED" and settings.mixed_precision == "no"
    assert settings.deepspeed_config["zero_stage"] == 2
