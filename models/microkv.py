"""Micro-KV: from an atom's stored states, or its latent, to the slots of every memory layer.

Paper, Method, "micro-KV head", and design: with `tokens` an atom's slots are keys and values of its own
tokens, at rotary positions -S .. -1, so that the question's positions never shift. What the bank keeps of an
atom are its states at the entry of the first memory layer; the states of the layers above are run again here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import FrozenBase
from models.compiler import MemoryCompiler


@dataclass(frozen=True, kw_only=True)
class AtomSlots:
    """Keys and values of distinct atoms, by memory layer.

    Args:
        key, value: `[U, H, S, F]` a memory layer.
        mask_US: True at slots that hold something.
    """

    key: dict[int, Tensor]
    value: dict[int, Tensor]
    mask_US: Tensor


def pad_entry(base: FrozenBase, entry: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad atoms' states `[S_i, D]` on the right; return `[U, S, D]` on the base's device, and the lengths `[U]`."""
    x_USD = nn.utils.rnn.pad_sequence(list(entry), batch_first=True).to(base.device, base.dtype)
    return x_USD, torch.tensor([len(e) for e in entry], device=base.device)


def token_slots(base: FrozenBase, compiler: MemoryCompiler, x_USD: Tensor, lengths_U: Tensor) -> AtomSlots:
    """Build slots from token states.

    Args:
        x_USD: States of distinct atoms entering the first memory layer, padded on the right.
        lengths_U: Their lengths, at most `kv.num_slots`.

    Returns:
        Slots padded like `x_USD`.
    """
    steps_S = torch.arange(x_USD.shape[1], device=base.device)
    mask_US = steps_S < lengths_U[:, None]
    positions_US = (steps_S - lengths_U[:, None]).clamp(max=-1)
    cos, sin = base.decoder.rotary_emb(x_USD, positions_US)
    inputs = _layer_inputs(base, compiler, x_USD, mask_US)
    keys, values = {}, {}
    for layer, x in inputs.items():
        head = compiler.kv_heads[str(layer)]
        attention = base.attention_module(layer)
        key = _linear(head.key, x).unflatten(-1, (-1, attention.head_dim))
        if hasattr(attention, "k_norm"):
            key = attention.k_norm(key)
        keys[layer] = _rotate(attention, key.transpose(1, 2), cos, sin)
        values[layer] = _linear(head.value, x).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
    return AtomSlots(key=keys, value=values, mask_US=mask_US)


def latent_slots(base: FrozenBase, compiler: MemoryCompiler, latent_UZ: Tensor) -> AtomSlots:
    """Build slots from latents by the published head; keys are taken as already rotated."""
    slots = compiler.spec.kv.num_slots
    keys, values = {}, {}
    for layer in compiler.memory_layers:
        head, width = compiler.kv_heads[str(layer)], base.attention_module(layer).head_dim
        keys[layer] = head.key(latent_UZ).unflatten(-1, (slots, -1, width)).transpose(1, 2)
        values[layer] = head.value(latent_UZ).unflatten(-1, (slots, -1, width)).transpose(1, 2)
    mask_US = torch.ones(len(latent_UZ), slots, dtype=torch.bool, device=latent_UZ.device)
    return AtomSlots(key=keys, value=values, mask_US=mask_US)


def _layer_inputs(base: FrozenBase, compiler: MemoryCompiler, x_USD: Tensor, mask_US: Tensor) -> dict[int, Tensor]:
    """What enters the attention of every memory layer, normed, at the atoms' own positions."""
    layers = list(compiler.memory_layers)
    if compiler.spec.kv.depth == "entry":
        return {layer: base.layers[layer].input_layernorm(x_USD) for layer in layers}
    shared = _prefix_entry(base, layers[0]).expand(len(x_USD), -1, -1)
    mask = F.pad(mask_US, (shared.shape[1], 0), value=True)
    with torch.no_grad(), base.captured_inputs(layers) as captured:
        # The last layer's output is not needed, only what enters its attention.
        base.run_layers(torch.cat([shared, x_USD], dim=1), mask, start=layers[0], stop=base.num_layers)
    # Contiguous, since a product with a slice copies the whole weight once an atom.
    return {layer: captured[layer][:, shared.shape[1] :].contiguous() for layer in layers}


@torch.no_grad()
def _prefix_entry(base: FrozenBase, layer: int) -> Tensor:
    """States of the shared prefix entering `layer`, `[1, P, D]`; the same for every atom."""
    if layer not in base.prefix_states:
        ids = torch.tensor([base.prefix_ids], device=base.device)
        mask = torch.ones_like(ids, dtype=torch.bool)
        base.prefix_states[layer] = base.run_layers(base.embed(ids), mask, start=0, stop=layer)
    return base.prefix_states[layer]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def _rotate(attention: nn.Module, key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate keys as the base's own modelling file does."""
    return sys.modules[type(attention).__module__].apply_rotary_pos_emb(key, key, cos, sin)[1]
