"""The memory compiler: from an atom's embedding to its provenance key, micro-LoRA, sparse mask and micro-KV.

Paper, Method, "Atom-Level Memory Compiler". The micro-LoRA and mask heads are affine in the trunk latent,
so weighted sums of their outputs can be formed in latent space: `sum_i w_i (W z_i + b) = W z + (sum_i w_i) b`
with `z = sum_i w_i z_i`. Composition itself is in `models.composer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import FrozenBase, Site
from models.presets import MemorySpec
from models.stacked import BySite, StackedLinear
from models.static_lora import INIT_STD, StaticLora

INIT_MASK_LOGIT = 2.0  # gates start open, at sigmoid(2) = 0.88


@dataclass(frozen=True, kw_only=True)
class LoraFactors:
    """Micro-LoRA of some atoms, before gate and alpha / r.

    Args:
        a, b: One `[..., R, I]` and one `[..., O, R]` a site.
        mask_logits: `[..., n_L, n_M]`; the gate is their weighted sum through a sigmoid.
    """

    a: BySite
    b: BySite
    mask_logits: Tensor


class MemoryCompiler(nn.Module):
    """Trunk and parallel heads; `B` starts at zero, so an untrained memory leaves the base untouched.

    With `lora = "static"` one LoRA, `shared`, stands for the heads of micro-LoRA and mask, and latents may be empty.
    """

    def __init__(self, spec: MemorySpec, base: FrozenBase) -> None:
        super().__init__()
        self.spec = spec
        self.sites = base.sites(spec)
        self.memory_layers = range(base.num_layers - spec.num_memory_layers, base.num_layers)
        width = spec.d_embed
        self.trunk = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        if spec.latent_size:
            self.to_latent = nn.Identity() if spec.latent_size == width else nn.Linear(width, spec.latent_size)
        self.key_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, spec.d_key))
        self.shared = StaticLora(spec, base) if spec.lora == "static" else None
        if self.shared is None:
            self.a_heads = SiteHeads(spec.d_latent, {s: (spec.rank, s.in_features) for s in self.sites})
            self.b_heads = SiteHeads(spec.d_latent, {s: (s.out_features, spec.rank) for s in self.sites})
            self.mask_head = nn.Linear(spec.d_latent, len(self.sites))
            self._init_heads()
        if spec.kv.source != "none":
            attention = [base.attention_module(layer) for layer in self.memory_layers]
            self.kv_heads = TokenKVHeads(attention) if spec.kv.source == "tokens" else LatentKVHeads(spec, attention)

    def _init_heads(self) -> None:
        for parameter in self.a_heads.parameters():
            nn.init.normal_(parameter, std=INIT_STD)
        for parameter in self.b_heads.parameters():
            nn.init.zeros_(parameter)
        nn.init.zeros_(self.mask_head.weight)
        nn.init.constant_(self.mask_head.bias, INIT_MASK_LOGIT)

    def forward(self, embed_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return provenance keys `[N, E]`, of unit length, and latents `[N, Z]`."""
        trunk_ND = self.trunk(embed_ND)
        latent_NZ = self.to_latent(trunk_ND) if self.spec.latent_size else trunk_ND[:, :0]
        return F.normalize(self.key_head(trunk_ND), dim=-1), latent_NZ

    def factors(self, latent_XZ: Tensor, total_X: Tensor | None = None) -> LoraFactors:
        """Apply the affine heads.

        Args:
            latent_XZ: Latents of atoms, or their weighted sum, with any leading dimensions.
            total_X: Sum of the weights behind each latent; None for single atoms, where it is 1.

        Returns:
            Factors that equal the weighted sum of the atoms' own factors.
        """
        shape = latent_XZ.shape[:-1]
        mask_bias = self.mask_head.bias if total_X is None else total_X[..., None] * self.mask_head.bias
        mask_logits = F.linear(latent_XZ, self.mask_head.weight) + mask_bias
        return LoraFactors(
            a=self.a_heads(latent_XZ, total_X),
            b=self.b_heads(latent_XZ, total_X),
            mask_logits=mask_logits.view(*shape, self.spec.num_memory_layers, len(self.spec.target_modules)),
        )


class SiteHeads(nn.Module):
    """An affine head a site, from the latent to a matrix; sites of equal matrices share a product.

    Args:
        shapes: Rows and columns of each site's matrix.
    """

    def __init__(self, d_latent: int, shapes: Mapping[Site, tuple[int, int]]) -> None:
        super().__init__()
        self.shapes = list(dict.fromkeys(shapes.values()))
        self.sites = [tuple(s for s in shapes if shapes[s] == shape) for shape in self.shapes]
        self.heads = nn.ModuleList(
            StackedLinear(len(sites), d_latent, rows * columns)
            for sites, (rows, columns) in zip(self.sites, self.shapes, strict=True)
        )

    def forward(self, latent_XZ: Tensor, total_X: Tensor | None = None) -> BySite:
        """Return a matrix a site and latent; the arguments are those of `MemoryCompiler.factors`."""
        latent_NZ = latent_XZ.reshape(-1, latent_XZ.shape[-1])
        total_N = None if total_X is None else total_X.reshape(-1)
        return BySite(
            {
                sites: head(latent_NZ, total_N).view(len(sites), *latent_XZ.shape[:-1], *shape)
                for sites, shape, head in zip(self.sites, self.shapes, self.heads, strict=True)
            }
        )


class TokenKVHeads(nn.Module):
    """Keys and values of every memory layer from token states, by projections that start as the layers' own."""

    def __init__(self, attention: Sequence[nn.Module]) -> None:
        super().__init__()
        self.key = _trainable_copies([a.k_proj for a in attention])
        self.value = _trainable_copies([a.v_proj for a in attention])


class LatentKVHeads(nn.Module):
    """Keys and values of every memory layer from the trunk latent, `num_slots` of each an atom, as published."""

    def __init__(self, spec: MemorySpec, attention: Sequence[nn.Module]) -> None:
        super().__init__()
        width = spec.kv.num_slots * attention[0].k_proj.out_features
        self.key = StackedLinear(len(attention), spec.d_latent, width)
        self.value = StackedLinear(len(attention), spec.d_latent, width)


def _trainable_copies(layers: Sequence[nn.Linear]) -> StackedLinear:
    first = layers[0]
    copy = StackedLinear(len(layers), first.in_features, first.out_features, bias=first.bias is not None)
    with torch.no_grad():
        copy.weight.copy_(torch.stack([layer.weight.float() for layer in layers]))
        if copy.bias is not None:
            copy.bias.copy_(torch.stack([layer.bias.float() for layer in layers]))
    return copy
