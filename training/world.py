"""The processes that train together: one alone, or several under `accelerate launch` or `torchrun`.

One process needs no launcher, and nothing here then touches torch.distributed. Several are joined by accelerate, over
DDP or, where its settings say so, DeepSpeed. Holds no loop; every method is called by all processes alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from models.base import pick_device
from models.errors import ConfigError

# Others wait while one process fills the feature cache, which may take longer than the backend's own limit.
TIMEOUT = timedelta(hours=3)


class World:
    """This process among those that train together.

    Args:
        device: `auto`, `cpu`, `cuda` or `mps`; under a launcher each process takes its own.
    """

    def __init__(self, device: str = "auto") -> None:
        self.device = pick_device(device)
        self.uses_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
        is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self._accelerator = _accelerator(self.device) if is_launched or self.uses_deepspeed else None
        self.rank: int = self._accelerator.process_index if self._accelerator else 0
        self.size: int = self._accelerator.num_processes if self._accelerator else 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and tells events."""
        return self.rank == 0

    def prepare(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, *, num_parts: int, max_grad_norm: float
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Wrap what is trained, so that its gradients are averaged over processes.

        Args:
            num_parts: Forward passes a step on this process.
        """
        if self._accelerator is None:
            return module, optimiser
        if self.uses_deepspeed:
            settings = self._accelerator.state.deepspeed_plugin.deepspeed_config
            settings["train_micro_batch_size_per_gpu"] = 1  # it counts calls, and the loop does the division
            settings["gradient_accumulation_steps"] = num_parts
            settings["gradient_clipping"] = max_grad_norm
        return self._accelerator.prepare(module, optimiser)

    def part(self, module: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
        """Enclose one forward and backward pass; gradients are exchanged in the last one of a step."""
        if is_last or self._accelerator is None or self.uses_deepspeed:
            return nullcontext()
        return self._accelerator.no_sync(module)

    def backward(self, module: nn.Module, loss: Tensor, *, num_parts: int) -> None:
        """Add the gradients of this process's share of the loss.

        Averaging over processes and, in DeepSpeed, over the parts of a step is undone: the loss is divided already.
        """
        if self.uses_deepspeed:
            module.backward(loss * self.size * num_parts)
            module.step()  # counts parts, and acts at the last
        else:
            (loss * self.size).backward()

    def step(self, optimiser: torch.optim.Optimizer, parameters: Iterable[Tensor], *, max_grad_norm: float) -> None:
        """Clip and update, where the engine has not done so."""
        if not self.uses_deepspeed:
            nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            optimiser.step()

    def add_up(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums over processes; all of them pass the same names and shapes."""
        if self.size == 1:
            return dict(tensors)
        names = sorted(tensors)
        flat = torch.cat([tensors[name].detach().to(self.device, torch.float64).flatten() for name in names])
        dist.all_reduce(flat)
        parts = flat.split([tensors[name].numel() for name in names])
        return {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}

    def gather(self, values: Sequence[float]) -> list[float]:
        """Return the values of all processes, rank by rank."""
        if self.size == 1:
            return list(values)
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, list(values))
        return [value for part in found for value in part]

    def agree(self, value: float) -> float:
        """Return the first process's value, so that all take the same turn."""
        return value if self.size == 1 else self.gather([value])[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let one process of each machine go through the block before the others, which find what it left."""
        if self._accelerator is None:
            yield
            return
        with self._accelerator.local_main_process_first():
            yield

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the group of processes, which a launcher wants before the end."""
        if self._accelerator is not None:
            self._accelerator.end_training()


def _accelerator(device: str) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

    handlers = [
        DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False),
        InitProcessGroupKwargs(timeout=TIMEOUT),
    ]
    accelerator = Accelerator(cpu=device == "cpu", kwargs_handlers=handlers, mixed_precision="no")
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise ConfigError(
            f"launcher: {wanted} processes were asked for, {accelerator.num_processes} came together",
            hint="On CPUs use: ACCELERATE_USE_CPU=1 torchrun --nproc_per_node N -m training.run …",
        )
    return accelerator
