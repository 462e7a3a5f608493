"""The memory compiler: from an atom's embedding to its provenance key, micro-LoRA, sparse mask and micro-KV.

Paper, Method, "Atom-Level Memory Compiler". The micro-LoRA and mask heads are affine in the trunk latent,
so weighted sums of their outputs can be formed in latent space: `sum_i w_i (W z_i + b) = W z + (sum_i w_i) b`
with `z = sum_i w_i z_i`. Composition itself is in `models.composer`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import FrozenBase, Site
from models.presets import MemorySpec

INIT_STD = 0.02
INIT_MASK_LOGIT = 2.0  # gates start open, at sigmoid(2) = 0.88


@dataclass(frozen=True, kw_only=True)
class LoraFactors:
    """Micro-LoRA of some atoms, before gate and alpha / r.

    Args:
        a, b: One `[..., R, I]` and one `[..., O, R]` a site.
        mask_logits: `[..., n_L, n_M]`; the gate is their weighted sum through a sigmoid.
    """

    a: dict[Site, Tensor]
    b: dict[Site, Tensor]
    mask_logits: Tensor


class MemoryCompiler(nn.Module):
    """Trunk and parallel heads; `B` starts at zero, so an untrained memory leaves the base untouched."""

    def __init__(self, spec: MemorySpec, base: FrozenBase) -> None:
        super().__init__()
        self.spec = spec
        self.sites = base.sites(spec)
        self.memory_layers = range(base.num_layers - spec.num_memory_layers, base.num_layers)
        width = spec.d_embed
        self.trunk = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.to_latent = nn.Identity() if spec.d_latent == width else nn.Linear(width, spec.d_latent)
        self.key_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, spec.d_key))
        self.a_heads = nn.ModuleList(nn.Linear(spec.d_latent, spec.rank * s.in_features) for s in self.sites)
        self.b_heads = nn.ModuleList(nn.Linear(spec.d_latent, spec.rank * s.out_features) for s in self.sites)
        self.mask_head = nn.Linear(spec.d_latent, len(self.sites))
        self._init_heads()
        self.kv_heads = nn.ModuleDict()
        if spec.kv.source != "none":
            self.kv_heads.update({str(layer): _kv_head(spec, base, layer) for layer in self.memory_layers})

    def _init_heads(self) -> None:
        for head in self.a_heads:
            nn.init.normal_(head.weight, std=INIT_STD)
            nn.init.normal_(head.bias, std=INIT_STD)
        for head in self.b_heads:
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        nn.init.zeros_(self.mask_head.weight)
        nn.init.constant_(self.mask_head.bias, INIT_MASK_LOGIT)

    def forward(self, embed_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return provenance keys `[N, E]`, of unit length, and latents `[N, Z]`."""
        trunk_ND = self.trunk(embed_ND)
        return F.normalize(self.key_head(trunk_ND), dim=-1), self.to_latent(trunk_ND)

    def factors(self, latent_XZ: Tensor, total_X: Tensor | None = None) -> LoraFactors:
        """Apply the affine heads.

        Args:
            latent_XZ: Latents of atoms, or their weighted sum, with any leading dimensions.
            total_X: Sum of the weights behind each latent; None for single atoms, where it is 1.

        Returns:
            Factors that equal the weighted sum of the atoms' own factors.
        """
        shape, rank = latent_XZ.shape[:-1], self.spec.rank
        if self.spec.lora == "static":
            latent_XZ = torch.zeros_like(latent_XZ)

        def apply(head: nn.Linear) -> Tensor:
            bias = head.bias if total_X is None else total_X[..., None] * head.bias
            return F.linear(latent_XZ, head.weight) + bias

        places = list(zip(self.sites, self.a_heads, self.b_heads, strict=True))
        return LoraFactors(
            a={s: apply(a).view(*shape, rank, s.in_features) for s, a, _ in places},
            b={s: apply(b).view(*shape, s.out_features, rank) for s, _, b in places},
            mask_logits=apply(self.mask_head).view(*shape, self.spec.num_memory_layers, len(self.spec.target_modules)),
        )


class TokenKVHead(nn.Module):
    """Keys and values from an atom's token states, by projections that start as the layer's own."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.key = _trainable_copy(attention.k_proj)
        self.value = _trainable_copy(attention.v_proj)


class LatentKVHead(nn.Module):
    """Keys and values from the trunk latent, `num_slots` of each an atom, as published."""

    def __init__(self, spec: MemorySpec, attention: nn.Module) -> None:
        super().__init__()
        width = spec.kv.num_slots * attention.k_proj.out_features
        self.key = nn.Linear(spec.d_latent, width)
        self.value = nn.Linear(spec.d_latent, width)


def _kv_head(spec: MemorySpec, base: FrozenBase, layer: int) -> nn.Module:
    attention = base.attention_module(layer)
    return TokenKVHead(attention) if spec.kv.source == "tokens" else LatentKVHead(spec, attention)


def _trainable_copy(linear: nn.Linear) -> nn.Linear:
    copy = nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    with torch.no_grad():
        copy.weight.copy_(linear.weight.float())
        if linear.bias is not None:
            copy.bias.copy_(linear.bias.float())
    return copy
