"""A LoRA that knows no document: what the base can learn to do with text in the prompt, or without any.

It has the micro-LoRA's places, rank and alpha, so that a memory and a reader differ in what they read alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from models.compiler import INIT_STD
from models.injection import ComposedAdapter
from models.presets import MemorySpec

if TYPE_CHECKING:
    from models.base import FrozenBase


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

    def adapter(self) -> ComposedAdapter:
        """Return the update, which broadcasts over a batch of questions."""
        scale = self.spec.alpha / self.spec.rank
        places = zip(self.sites, self.a_1RI, self.b_1OR, strict=True)
        return ComposedAdapter(lora={site: (a, scale * b) for site, a, b in places})
