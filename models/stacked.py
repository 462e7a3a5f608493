"""Many small tensors of equal shape as few large ones: a product for all sites or layers instead of one each.

A small base has more sites than work at each of them; what costs is the number of operations. Holds no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from models.base import Site


class StackedLinear(nn.Module):
    """G affine maps of equal shape, applied in one product; they start as `nn.Linear` does."""

    def __init__(self, num: int, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        bound = in_features**-0.5
        self.weight = nn.Parameter(torch.empty(num, out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num, out_features).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, total_N: Tensor | None = None) -> Tensor:
        """Apply all maps, in the type of what is given.

        Args:
            x: One input for all maps, `[N, I]`, or one each, `[G, N, I]`.
            total_N: What the bias is multiplied by, the sum of weights behind each row; None for 1.

        Returns:
            `[G, N, O]`.
        """
        weight_GOI = self.weight.to(x.dtype)
        x_GNI = x.expand(len(weight_GOI), -1, -1)
        if self.bias is None:
            return torch.bmm(x_GNI, weight_GOI.mT)
        bias_GNO = self.bias.to(x.dtype)[:, None]
        if total_N is not None:
            bias_GNO = total_N[:, None] * bias_GNO
        return torch.baddbmm(bias_GNO, x_GNI, weight_GOI.mT)


class BySite(Mapping[Site, Tensor]):
    """A tensor a site; those of equal shape lie in one stack.

    Args:
        stacks: Sites, in order, to their tensors `[G, ...]`.
    """

    def __init__(self, stacks: Mapping[tuple[Site, ...], Tensor]) -> None:
        self.stacks = stacks
        self._each = {
            site: x for sites, stack in stacks.items() for site, x in zip(sites, stack.unbind(0), strict=True)
        }

    @classmethod
    def of(cls, tensors: Mapping[Site, Tensor]) -> BySite:
        """Stack separate tensors."""
        return cls({sites: torch.stack([tensors[s] for s in sites]) for sites in alike(tensors)})

    def map(self, change: Callable[[tuple[Site, ...], Tensor], Tensor]) -> BySite:
        """Return what `change` makes of every stack and its sites."""
        return BySite({sites: change(sites, stack) for sites, stack in self.stacks.items()})

    def __getitem__(self, site: Site) -> Tensor:
        return self._each[site]

    def __iter__(self) -> Iterator[Site]:
        return iter(self._each)

    def __len__(self) -> int:
        return len(self._each)


def alike(tensors: Mapping[Site, Tensor]) -> list[tuple[Site, ...]]:
    """Group sites whose tensors have equal shapes."""
    groups: dict[torch.Size, list[Site]] = {}
    for site, tensor in tensors.items():
        groups.setdefault(tensor.shape, []).append(site)
    return [tuple(sites) for sites in groups.values()]
