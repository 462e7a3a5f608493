"""What every loss is tested with: double precision, a gradient check, and sums over parts of a batch."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

Loss = Callable[..., tuple[Tensor, Tensor]]


def tensor(*rows: object) -> Tensor:
    """Return rows in double precision."""
    return torch.tensor(rows, dtype=torch.float64)


def flags(*rows: object) -> Tensor:
    """Return rows as booleans."""
    return torch.tensor(rows, dtype=torch.bool)


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in double precision."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients_match(loss: Loss, *inputs: Tensor) -> bool:
    """Compare gradients with central differences."""
    return torch.autograd.gradcheck(lambda *x: loss(*x)[0], [x.clone().requires_grad_(True) for x in inputs])


def assert_parts_add_up(loss: Loss, *inputs: Tensor, sizes: Sequence[int]) -> None:
    """Assert that the sums and counts of parts of a batch are those of the whole, and not nothing."""
    total, count = loss(*inputs)
    parts = [loss(*part) for part in zip(*(x.split(list(sizes)) for x in inputs), strict=True)]
    assert sum(part[0].item() for part in parts) == pytest.approx(total.item(), rel=1e-9)
    assert sum(part[1].item() for part in parts) == count.item()
    assert total.item() != 0.0


def assert_nothing(loss: Loss, x: Tensor) -> None:
    """Assert a sum and count of 0, and a gradient of zeros."""
    x = x.clone().requires_grad_(True)
    total, count = loss(x)
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert bool((x.grad == 0).all())
