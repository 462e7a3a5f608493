"""The memory composer: from routed atoms and their weights to one adapter for one question.

Paper, Method, "Memory Composer and Injection", equation 1: `A_c = sum_i w_i A_i`, `B_c = sum_i w_i B_i`, times
the gate `g = sigmoid(sum_i w_i m_i)`. The mode `concat` gives `sum_i w_i B_i A_i` exactly, at rank K * r.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.base import Site
from models.compiler import LoraFactors, MemoryCompiler
from models.injection import ComposedAdapter, LayerPrefix
from models.microkv import AtomSlots


def compose(
    compiler: MemoryCompiler,
    weight_BK: Tensor,
    log_weight_BK: Tensor,
    *,
    latent_BKZ: Tensor | None = None,
    factors: LoraFactors | None = None,
    slots: AtomSlots | None = None,
    slot_rows_BK: Tensor | None = None,
    mode: str | None = None,
) -> ComposedAdapter:
    """Compose routed atoms into one adapter a question.

    Args:
        weight_BK: Routing weights; 0 removes an atom.
        log_weight_BK: Their logs, -inf where 0.
        latent_BKZ: The atoms' latents; or
        factors: their materialised factors, with leading dimensions `[B, K]`.
        slots: Micro-KV of distinct atoms; `slot_rows_BK` says which row belongs to which routed atom.
        mode: `linear` or `concat`; None takes the memory's own.

    Returns:
        An adapter whose updates carry gate and alpha / r.
    """
    mode = mode or compiler.spec.composition
    if latent_BKZ is not None and mode == "linear":
        summed = compiler.factors((weight_BK[..., None] * latent_BKZ).sum(1), weight_BK.sum(1))
    else:
        factors = factors or compiler.factors(latent_BKZ)
        summed = _combine(factors, weight_BK, mode)
    prefix = {} if slots is None else compose_prefix(slots, slot_rows_BK, log_weight_BK, scale=compiler.spec.kv.scale)
    return ComposedAdapter(lora=_gated(compiler, summed), prefix=prefix)


def compose_prefix(slots: AtomSlots, rows_BK: Tensor, log_weight_BK: Tensor, *, scale: str) -> dict[int, LayerPrefix]:
    """Concatenate the routed atoms' slots along the sequence, `[B, H, K * S, F]` a memory layer.

    With `scale = "logits"` a weight acts as `+ log w` on its slots' attention logits, so that 0 removes them;
    with `values` it multiplies the values, and a slot of weight 0 still takes attention mass.
    """
    blocked = torch.finfo(torch.float32).min
    mask_BKS = slots.mask_US[rows_BK]
    weighted = log_weight_BK[..., None].expand(mask_BKS.shape)
    bias_BKS = weighted if scale == "logits" else torch.zeros_like(weighted)
    bias_BS = bias_BKS.masked_fill(~mask_BKS, blocked).clamp(min=blocked).flatten(1)
    prefix = {}
    for layer, key_UHSF in slots.key.items():
        value_BKHSF = slots.value[layer][rows_BK]
        if scale == "values":
            value_BKHSF = value_BKHSF * log_weight_BK.exp()[..., None, None, None].to(value_BKHSF.dtype)
        prefix[layer] = LayerPrefix(
            key_BHSF=_concat_slots(key_UHSF[rows_BK]), value_BHSF=_concat_slots(value_BKHSF), bias_BS=bias_BS
        )
    return prefix


def _concat_slots(x_BKHSF: Tensor) -> Tensor:
    return x_BKHSF.transpose(1, 2).flatten(2, 3)


def _combine(factors: LoraFactors, weight_BK: Tensor, mode: str) -> LoraFactors:
    """Weigh materialised factors and sum them, or stack them along the rank."""
    w = weight_BK[..., None, None]
    mask_logits = (w * factors.mask_logits).sum(1)
    if mode == "linear":
        return LoraFactors(
            a={s: (w * a).sum(1) for s, a in factors.a.items()},
            b={s: (w * b).sum(1) for s, b in factors.b.items()},
            mask_logits=mask_logits,
        )
    return LoraFactors(
        a={s: a.flatten(1, 2) for s, a in factors.a.items()},
        b={s: (w * b).transpose(1, 2).flatten(2, 3) for s, b in factors.b.items()},
        mask_logits=mask_logits,
    )


def _gated(compiler: MemoryCompiler, factors: LoraFactors) -> dict[Site, tuple[Tensor, Tensor]]:
    spec = compiler.spec
    gate_BG = torch.sigmoid(factors.mask_logits).flatten(-2)
    lora = {}
    for index, site in enumerate(compiler.sites):
        g = gate_BG[:, index, None, None]
        a = factors.a[site] * g if spec.gate == "factors" else factors.a[site]
        lora[site] = (a, factors.b[site] * g * (spec.alpha / spec.rank))
    return lora
