"""A LoRA that knows no document: all that the reader and the blind control have, and what a memory's atoms may share.

It has the micro-LoRA's places, rank and alpha, so that these differ in what they read alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.injection import ComposedAdapter
from models.presets import MemorySpec

if TYPE_CHECKING:
    from models.base import FrozenBase, Site

INIT_STD = 0.02


class StaticLora(nn.Module):
    """One trained update a site; B starts at zero, so an untrained one leaves the base untouched."""

    def __init__(self, spec: MemorySpec, base: FrozenBase) -> None:
        super().__init__()
        self.spec = spec
        self.sites = base.sites(spec)
        self.a_1RI = nn.ParameterList(torch.randn(1, spec.rank, s.in_features) * INIT_STD for s in self.sites)
        self.b_1OR = nn.ParameterList(torch.zeros(1, s.out_features, spec.rank) for s in self.sites)
        self.to(base.device)

    @property
    def first_layer(self) -> int:
        """The lowest decoder layer that it writes into; states below do not depend on it."""
        return min(site.layer for site in self.sites)

    def update(self, dtype: torch.dtype = torch.float32) -> dict[Site, tuple[Tensor, Tensor]]:
        """Return A `[1, R, I]` and B `[1, O, R]` of every site, alpha / r folded in; they broadcast over a batch."""
        scale = self.spec.alpha / self.spec.rank
        places = zip(self.sites, self.a_1RI, self.b_1OR, strict=True)
        return {site: (a.to(dtype), (scale * b).to(dtype)) for site, a, b in places}

    def adapter(self) -> ComposedAdapter:
        """Return the update on its own."""
        return ComposedAdapter(lora=self.update())
