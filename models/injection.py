"""Writing a composed adapter into a frozen base, and taking it out again.

Micro-LoRA goes in through forward hooks on the target modules. Micro-KV goes in through one attention
function, registered with transformers, that puts the prepared slots in front of the layer's own keys and
values and extends the mask; `generate()` and cached decoding then work unchanged. With nothing attached
the base computes exactly what it computed before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

if TYPE_CHECKING:
    from models.base import FrozenBase, Site

_PREFIX = "d2a_prefix"
NO_WEIGHT = -1000.0  # nats, for a slot that is removed; every dtype holds it


@dataclass(frozen=True, kw_only=True)
class LayerPrefix:
    """Micro-KV slots of one memory layer, normed and rotated, ready for attention.

    Args:
        key_BHSF, value_BHSF: Keys and values.
        bias_BS: Added to the slots' attention logits; the dtype's minimum removes a slot.
    """

    key_BHSF: Tensor
    value_BHSF: Tensor
    bias_BS: Tensor


@dataclass(frozen=True, kw_only=True)
class ComposedAdapter:
    """What a question's atoms write: an update B A a site, and a prefix a memory layer.

    `lora` holds `(A [B, R, I], B [B, O, R])` with gate and alpha / r folded in, so the update is `B A x`.
    A leading 1 broadcasts over a batch.
    """

    lora: dict[Site, tuple[Tensor, Tensor]] = field(default_factory=dict)
    prefix: dict[int, LayerPrefix] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """What is written to the attention of one memory layer; the masks are those of all layers."""

    prefix: LayerPrefix
    masks: _Masks


@contextmanager
def attached(base: FrozenBase, adapter: ComposedAdapter | None) -> Iterator[None]:
    """Write `adapter` into `base` for the length of the block; None writes nothing.

    Everything is turned into the base's dtype here, once and not at every token.
    """
    adapter, masks, dtype = adapter or ComposedAdapter(), _Masks(), base.dtype
    with ExitStack() as undo:
        for site, (a_BRI, b_BOR) in adapter.lora.items():
            hook = _lora_hook(a_BRI.to(dtype).transpose(1, 2), b_BOR.to(dtype).transpose(1, 2))
            undo.callback(base.module(site).register_forward_hook(hook).remove)
        for layer, prefix in adapter.prefix.items():
            module = base.attention_module(layer)
            prefix = replace(prefix, key_BHSF=prefix.key_BHSF.to(dtype), value_BHSF=prefix.value_BHSF.to(dtype))
            setattr(module, _PREFIX, _Written(prefix=prefix, masks=masks))
            undo.callback(delattr, module, _PREFIX)
        yield


def _lora_hook(a_BIR: Tensor, b_BRO: Tensor) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
    # In place, since nobody else holds what the layer has just made: two kernels a site instead of three.
    def add_own(_module: nn.Module, args: tuple[Tensor], out_BLO: Tensor) -> Tensor:
        return out_BLO.baddbmm_(torch.bmm(args[0], a_BIR), b_BRO)

    def add_shared(_module: nn.Module, args: tuple[Tensor], out_BLO: Tensor) -> Tensor:
        out_BLO.view(-1, out_BLO.shape[-1]).addmm_(args[0].flatten(0, 1) @ a_BIR[0], b_BRO[0])
        return out_BLO

    return add_shared if len(a_BIR) == 1 else add_own


def register_attention(inner: str) -> str:
    """Register the memory's attention around `inner` with transformers and return its name.

    FlashAttention keeps its name: transformers loads the kernels by it. Without slots nothing changes for others.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    name = inner if inner == "flash_attention_2" else f"d2a_{inner}"
    AttentionInterface.register(name, _memory_attention(inner))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[inner])
    return name


def _memory_attention(inner: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def forward(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        written: _Written | None = getattr(module, _PREFIX, None)
        if inner == "sdpa" and query.shape[2] == 1 and (len(query) > 1 or not query.is_cuda):
            prefix = None if written is None else written.prefix
            return _next_token(query, key, value, attention_mask, prefix, scaling=kwargs["scaling"]), None
        if written is None:
            return _function(inner, module)(module, query, key, value, attention_mask, **kwargs)
        batch, prefix = query.shape[0], written.prefix
        window = kwargs.pop("sliding_window", None)
        usable = inner
        if inner == "flash_attention_2":  # it takes no additive mask, and sdpa takes no soft cap
            usable = "sdpa" if kwargs.get("softcap") is None else "eager"
        is_whole = attention_mask is None and window is None and 1 < query.shape[2] == key.shape[2]
        if is_whole and usable == "sdpa" and query.is_cuda and query.dtype != torch.float32:
            return _causal(query, key, value, prefix, scaling=kwargs["scaling"]), None
        mask = written.masks.extended(prefix.bias_BS, attention_mask, query, key, window=window)
        key = torch.cat([prefix.key_BHSF.expand(batch, -1, -1, -1), key], dim=2)
        value = torch.cat([prefix.value_BHSF.expand(batch, -1, -1, -1), value], dim=2)
        return _function(usable, module)(module, query, key, value, mask, **kwargs)

    return forward


def _next_token(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, prefix: LayerPrefix | None, *, scaling: float
) -> Tensor:
    """Return the attention of single tokens over slots and tokens, `[B, 1, H, F]`, by plain products.

    They read keys and values once, where they lie: query heads that share a key become queries of one head, and slots
    are not copied in front of the tokens. A single question on a GPU waits for launches instead, and these are more.

    Args:
        mask: None, or `[B, 1, 1, T]`, boolean or additive; what is longer than the keys is not read.
    """
    query_BHGF = query.view(len(query), key.shape[1], -1, query.shape[-1]) * scaling
    logits_BHGT = query_BHGF @ key.transpose(2, 3)
    if mask is not None:
        mask = mask[..., : key.shape[2]]
        allows = mask.dtype == torch.bool
        logits_BHGT = logits_BHGT.masked_fill(~mask, -torch.inf) if allows else logits_BHGT + mask
    if prefix is not None:
        slots_BHGS = query_BHGF @ prefix.key_BHSF.transpose(2, 3) + prefix.bias_BS[:, None, None].to(key.dtype)
        logits_BHGT = torch.cat([slots_BHGS, logits_BHGT], dim=-1)
    weight_BHGT = logits_BHGT.softmax(-1, dtype=torch.float32).to(value.dtype)
    out_BHGF = weight_BHGT[..., -key.shape[2] :] @ value
    if prefix is not None:
        out_BHGF = out_BHGF + weight_BHGT[..., : -key.shape[2]] @ prefix.value_BHSF
    return out_BHGF.reshape(len(query), 1, -1, query.shape[-1])


def _causal(query: Tensor, key: Tensor, value: Tensor, prefix: LayerPrefix, *, scaling: float) -> Tensor:
    """Return causal attention over slots and tokens without padding, `[B, L, H, F]`, by torch's fast kernels.

    These take no additive mask that needs a gradient. So a slot's bias is a feature of its key, which queries multiply
    by 1; zeros behind it make the width the multiple of 8 that they want.
    """
    batch, heads, length, width = key.shape
    bias_BS = prefix.bias_BS.clamp(min=NO_WEIGHT) / scaling
    bias_BHSF = F.pad(bias_BS[:, None, :, None], (0, 7)).to(key.dtype).expand(batch, heads, -1, -1)
    slot_BHSF = torch.cat([prefix.key_BHSF.expand(batch, -1, -1, -1), bias_BHSF], dim=-1)
    out_BHLF = F.scaled_dot_product_attention(
        F.pad(F.pad(query, (0, 1), value=1.0), (0, 7)),
        torch.cat([slot_BHSF, F.pad(key, (0, 8))], dim=2),
        F.pad(torch.cat([prefix.value_BHSF.expand(batch, -1, -1, -1), value], dim=2), (0, 8)),
        attn_mask=causal_lower_right(length, slot_BHSF.shape[2] + length),
        scale=scaling,
        enable_gqa=heads != query.shape[1],
    )
    return out_BHLF[..., :width].transpose(1, 2)


def _function(name: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Transformers' attention called `name`; each modelling file brings its own eager one."""
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name == "flash_attention_2":
        return flash_attention_forward
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


class _Masks:
    """The extended masks of the forward pass under way: layers of one kind share theirs.

    A mask is used again only for the very same incoming objects, unchanged, and the same lengths, and with a graph only
    where one was asked for. The objects are kept with it, so that no other can come to have their ids.
    """

    def __init__(self) -> None:
        self._kept: dict[int | None, tuple[Hashable, tuple[Tensor | None, ...], Tensor]] = {}

    def extended(
        self, bias_BS: Tensor, mask: Tensor | None, query: Tensor, key: Tensor, *, window: int | None
    ) -> Tensor:
        """Return `_extended_mask`, made anew where the last one of this window was for something else."""
        if mask is None and bias_BS.requires_grad and torch.is_grad_enabled():
            # A graph belongs to one backward pass, and without a mask of its own no pass is known from the next.
            return _extended_mask(bias_BS, mask, query, key, window=window)
        incoming = (bias_BS, mask)
        versions = tuple((id(x), None if x is None else x._version) for x in incoming)
        asked = (versions, query.shape, key.shape, query.dtype, torch.is_grad_enabled())
        if window not in self._kept or self._kept[window][0] != asked:
            made = _extended_mask(bias_BS, mask, query, key, window=window)
            self._kept[window] = (asked, incoming, made)
        return self._kept[window][2]


def _extended_mask(bias_BS: Tensor, mask: Tensor | None, query: Tensor, key: Tensor, *, window: int | None) -> Tensor:
    """Return the additive mask `[B, 1, L, S + T]` over slots and tokens.

    `mask` is what the attention got: None (causal), padding `[B, T]`, or `[B, 1, L, T]`, boolean or additive, which
    has the sliding window already. The window spares the slots.
    """
    batch, num_queries, num_keys = query.shape[0], query.shape[2], key.shape[2]
    blocked = torch.finfo(query.dtype).min
    if mask is None or mask.dim() == 2:
        past = num_keys - num_queries
        everywhere = torch.full((num_queries, num_keys), blocked, dtype=query.dtype, device=key.device)
        tokens = everywhere.triu(past + 1)
        if window is not None and window < num_keys:
            tokens = tokens + everywhere.tril(past - window)
        if mask is not None:
            tokens = tokens.masked_fill(~mask[:, None, None, -num_keys:].bool(), blocked)
    elif mask.dtype == torch.bool:
        mask = mask[..., :num_keys]
        tokens = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, blocked)
    else:
        tokens = mask[..., :num_keys].to(query.dtype)
    tokens = tokens.expand(batch, 1, num_queries, num_keys)
    slots = bias_BS.to(query.dtype).clamp(min=blocked)[:, None, None, :].expand(batch, 1, num_queries, -1)
    return torch.cat([slots, tokens], dim=-1)
