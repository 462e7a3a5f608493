"""Writing a composed adapter into a frozen base, and taking it out again.

Micro-LoRA goes in through forward hooks on the target modules. Micro-KV goes in through one attention
function, registered with transformers, that puts the prepared slots in front of the layer's own keys and
values and extends the mask; `generate()` and cached decoding then work unchanged. With nothing attached
the base computes exactly what it computed before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from models.base import FrozenBase, Site

_PREFIX = "d2a_prefix"


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


@contextmanager
def attached(base: FrozenBase, adapter: ComposedAdapter | None) -> Iterator[None]:
    """Write `adapter` into `base` for the length of the block; None writes nothing."""
    adapter = adapter or ComposedAdapter()
    with ExitStack() as undo:
        for site, (a_BRI, b_BOR) in adapter.lora.items():
            undo.callback(base.module(site).register_forward_hook(_lora_hook(a_BRI, b_BOR)).remove)
        for layer, prefix in adapter.prefix.items():
            module = base.attention_module(layer)
            setattr(module, _PREFIX, prefix)
            undo.callback(delattr, module, _PREFIX)
        yield


def _lora_hook(a_BRI: Tensor, b_BOR: Tensor) -> Callable[[nn.Module, tuple[Tensor], Tensor], Tensor]:
    def add_update(_module: nn.Module, args: tuple[Tensor], out_BLO: Tensor) -> Tensor:
        x_BLI = args[0]
        a, b = a_BRI.to(x_BLI.dtype), b_BOR.to(x_BLI.dtype)
        return out_BLO + (x_BLI @ a.transpose(1, 2)) @ b.transpose(1, 2)

    return add_update


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
        prefix: LayerPrefix | None = getattr(module, _PREFIX, None)
        if prefix is None:
            return _function(inner, module)(module, query, key, value, attention_mask, **kwargs)
        batch = query.shape[0]
        mask = _extended_mask(prefix.bias_BS, attention_mask, query, key, window=kwargs.pop("sliding_window", None))
        key = torch.cat([prefix.key_BHSF.to(key.dtype).expand(batch, -1, -1, -1), key], dim=2)
        value = torch.cat([prefix.value_BHSF.to(value.dtype).expand(batch, -1, -1, -1), value], dim=2)
        usable = inner
        if inner == "flash_attention_2":  # it takes no additive mask, and sdpa takes no soft cap
            usable = "sdpa" if kwargs.get("softcap") is None else "eager"
        return _function(usable, module)(module, query, key, value, mask, **kwargs)

    return forward


def _function(name: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Transformers' attention called `name`; each modelling file brings its own eager one."""
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name == "flash_attention_2":
        return flash_attention_forward
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def _extended_mask(bias_BS: Tensor, mask: Tensor | None, query: Tensor, key: Tensor, *, window: int | None) -> Tensor:
    """Return the additive mask `[B, 1, L, S + T]` over slots and tokens.

    `mask` is what the attention got: None (causal), padding `[B, T]`, or `[B, 1, L, T]`, boolean or additive, which
    has the sliding window already. The window spares the slots.
    """
    batch, num_queries, num_keys = query.shape[0], query.shape[2], key.shape[2]
    blocked = torch.finfo(query.dtype).min
    if mask is None or mask.dim() == 2:
        q, k = torch.arange(num_queries, device=key.device), torch.arange(num_keys, device=key.device)
        distance = q[:, None] + num_keys - num_queries - k[None, :]
        allowed = ((distance >= 0) & (distance < (window or num_keys)))[None, None]
        mask = allowed if mask is None else allowed & mask[:, None, None, -num_keys:].bool()
    mask = mask[..., :num_keys]
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill(~mask, blocked)
    tokens = mask.to(query.dtype).expand(batch, 1, num_queries, num_keys)
    slots = bias_BS.to(query.dtype).clamp(min=blocked)[:, None, None, :].expand(batch, 1, num_queries, -1)
    return torch.cat([slots, tokens], dim=-1)
