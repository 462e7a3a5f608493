"""One of two processes that take a few steps through DeepSpeed's ZeRO-2, as `training.world` drives it, and alone."""

import os
from types import SimpleNamespace

import deepspeed
import torch
from torch import nn

from training.world import World

PARTS, MAX_NORM, RATE = 2, 0.5, 0.1


class Engine:
    """Stands in for accelerate, which refuses DeepSpeed on CPUs: the same settings, handed to the same engine."""

    state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(deepspeed_config={"zero_optimization": {"stage": 2}}))

    def prepare(self, module: nn.Module, optimiser: torch.optim.Optimizer) -> tuple:
        config = {**self.state.deepspeed_plugin.deepspeed_config, "zero_allow_untested_optimizer": True}
        return deepspeed.initialize(model=module, optimizer=optimiser, config=config, dist_init_required=False)[:2]


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


if __name__ == "__main__":
    deepspeed.init_distributed(dist_backend="gloo")
    world = World.__new__(World)
    world.device, world.uses_deepspeed, world._accelerator = "cpu", True, Engine()
    world.rank, world.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ours, alone = layers(), layers()
    adam = torch.optim.AdamW(alone.parameters(), lr=RATE)
    module, optimiser = world.prepare(
        ours, torch.optim.AdamW(ours.parameters(), lr=RATE), num_parts=PARTS, max_grad_norm=MAX_NORM
    )
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        x = torch.randn(16, 3, generator=generator)
        optimiser.param_groups[0]["lr"] = adam.param_groups[0]["lr"] = RATE / (step + 1)
        adam.zero_grad()
        (3 * alone(x).sum() / len(x)).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), MAX_NORM)
        adam.step()
        for index in range(PARTS):
            part = x[world.rank + world.size * index :: world.size * PARTS]
            with world.part(module, is_last=index == PARTS - 1):
                world.backward(module, 3 * module(part).sum() / len(x), num_parts=PARTS)
        world.step(optimiser, ours.parameters(), max_grad_norm=MAX_NORM)
    for one, other in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    print("same weights")
