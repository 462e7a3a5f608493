"""The memory composer: from routed atoms and their weights to one adapter for one question.

Paper, Method, "Memory Composer and Injection", equation 1: `A_c = sum_i w_i A_i`, `B_c = sum_i w_i B_i`, times
the gate `g = sigmoid(sum_i w_i m_i)`. The mode `concat` gives `sum_i w_i B_i A_i` exactly, at rank K * r.
"""

from __future__ import annotations

from functools import partial

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
    dtype: torch.dtype = torch.float32,
) -> ComposedAdapter:
    """Compose routed atoms into one adapter a question.

    Args:
        weight_BK: Routing weights; 0 removes an atom.
        log_weight_BK: Their logs, -inf where 0.
        latent_BKZ: The atoms' latents; or
        factors: their materialised factors, with leading dimensions `[B, K]`.
        slots: Micro-KV of distinct atoms; `slot_rows_BK` says which row belongs to which routed atom.
        mode: `linear` or `concat`; None takes the memory's own.
        dtype: Of the update's factors; that of the base spares a conversion at every site.

    Returns:
        An adapter whose updates carry gate and alpha / r; a LoRA that the atoms share broadcasts over the questions.
    """
    prefix = {} if slots is None else compose_prefix(slots, slot_rows_BK, log_weight_BK, scale=compiler.spec.kv.scale)
    if compiler.shared is not None:
        return ComposedAdapter(lora=compiler.shared.update(dtype), prefix=prefix)
    mode = mode or compiler.spec.composition
    if latent_BKZ is not None and mode == "linear":
        summed = compiler.factors((weight_BK[..., None] * latent_BKZ).sum(1), weight_BK.sum(1))
    else:
        factors = factors or compiler.factors(latent_BKZ)
        summed = _combine(factors, weight_BK, mode)
    return ComposedAdapter(lora=_gated(compiler, summed, dtype), prefix=prefix)


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
    key_BKMHSF, value_BKMHSF = slots.key_UMHSF[rows_BK], slots.value_UMHSF[rows_BK]
    if scale == "values":
        value_BKMHSF = value_BKMHSF * log_weight_BK.exp()[..., None, None, None, None].to(value_BKMHSF.dtype)
    by_layer = zip(slots.layers, _joined(key_BKMHSF), _joined(value_BKMHSF), strict=True)
    return {layer: LayerPrefix(key_BHSF=key, value_BHSF=value, bias_BS=bias_BS) for layer, key, value in by_layer}


def _joined(x_BKMHSF: Tensor) -> tuple[Tensor, ...]:
    """Put the atoms' slots one after the other, `[B, H, K * S, F]` a memory layer."""
    return x_BKMHSF.permute(2, 0, 3, 1, 4, 5).flatten(3, 4).unbind(0)


def _combine(factors: LoraFactors, weight_BK: Tensor, mode: str) -> LoraFactors:
    """Weigh materialised factors and sum them, or stack them along the rank."""
    w = weight_BK[..., None, None]
    mask_logits = (w * factors.mask_logits).sum(1)
    if mode == "linear":
        a, b = (x.map(lambda _, stack: (w * stack).sum(2)) for x in (factors.a, factors.b))
        return LoraFactors(a=a, b=b, mask_logits=mask_logits)
    return LoraFactors(
        a=factors.a.map(lambda _, stack: stack.flatten(2, 3)),
        b=factors.b.map(lambda _, stack: (w * stack).transpose(2, 3).flatten(3, 4)),
        mask_logits=mask_logits,
    )


def _gated(compiler: MemoryCompiler, factors: LoraFactors, dtype: torch.dtype) -> dict[Site, tuple[Tensor, Tensor]]:
    spec = compiler.spec
    gate_GB11 = torch.sigmoid(factors.mask_logits).flatten(-2).T[..., None, None]
    place = {site: index for index, site in enumerate(compiler.sites)}

    def scaled(sites: tuple[Site, ...], stack: Tensor, scale: float = 1.0) -> Tensor:
        return (stack * (gate_GB11[[place[s] for s in sites]] * scale)).to(dtype)

    a = factors.a.map(scaled if spec.gate == "factors" else lambda _, stack: stack.to(dtype))
    b = factors.b.map(partial(scaled, scale=spec.alpha / spec.rank))
    return {site: (a[site], b[site]) for site in compiler.sites}
