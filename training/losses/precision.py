"""What every loss does with half precision: it computes above it."""

from __future__ import annotations

import torch
from torch import Tensor


def full(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 where it already is."""
    return x if x.dtype == torch.float64 else x.float()


def count(number: int, like: Tensor) -> Tensor:
    """Return a count as a tensor beside `like`, so that it can be reduced over processes."""
    return torch.tensor(number, device=like.device)
