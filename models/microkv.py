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
from models.encoder import length_batches
from models.presets import MemorySpec
from models.stacked import StackedLinear


@dataclass(frozen=True, kw_only=True)
class AtomSlots:
    """Keys and values of distinct atoms, all M memory layers in one tensor.

    Args:
        layers: The memory layers, in order.
        key_UMHSF, value_UMHSF: Of every atom and layer.
        mask_US: True at slots that hold something.
    """

    layers: Sequence[int]
    key_UMHSF: Tensor
    value_UMHSF: Tensor
    mask_US: Tensor


def pad_entry(base: FrozenBase, entry: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad atoms' states `[S_i, D]` on the right; return `[U, S, D]` on the base's device, and the lengths `[U]`."""
    x_USD = nn.utils.rnn.pad_sequence(list(entry), batch_first=True).to(base.device, base.dtype)
    return x_USD, torch.tensor([len(e) for e in entry], device=base.device)


def token_slots(
    base: FrozenBase, compiler: MemoryCompiler, x_USD: Tensor, lengths_U: Tensor, *, batch_tokens: int | None = None
) -> AtomSlots:
    """Build slots from token states.

    Args:
        x_USD: States of distinct atoms entering the first memory layer, padded on the right.
        lengths_U: Their lengths, at most `kv.num_slots`.
        batch_tokens: Run atoms of similar length together, so many tokens at once, which spares a CPU most of the
            padding; None runs all at once.

    Returns:
        Slots padded like `x_USD`.
    """

    def built(rows: Sequence[int] | slice, length: int) -> AtomSlots:
        inputs_MUSD = layer_inputs(base, compiler.spec, x_USD[rows, :length])
        return slots_from_inputs(base, compiler, inputs_MUSD, lengths_U[rows])

    num_slots = x_USD.shape[1]
    if batch_tokens is None:
        return built(slice(None), num_slots)
    lengths = lengths_U.tolist()
    batches = list(length_batches(lengths, batch_tokens))
    parts = [built(rows, max(lengths[row] for row in rows)) for rows in batches]
    back_U = torch.tensor([row for rows in batches for row in rows], device=x_USD.device).argsort()

    def joined(name: str) -> Tensor:
        padded = (F.pad(getattr(part, name), (0, 0, 0, num_slots - part.mask_US.shape[1])) for part in parts)
        return torch.cat(list(padded))[back_U]

    return AtomSlots(
        layers=compiler.memory_layers,
        key_UMHSF=joined("key_UMHSF"),
        value_UMHSF=joined("value_UMHSF"),
        mask_US=_held(x_USD, lengths_U),
    )


def layer_inputs(base: FrozenBase, spec: MemorySpec, x_USD: Tensor) -> Tensor:
    """Return what enters the attention of every memory layer, normed, at the atoms' own positions, `[M, U, S, D]`.

    It needs nothing that is trained. States are those of `token_slots`.
    """
    layers = range(base.num_layers - spec.num_memory_layers, base.num_layers)
    if spec.kv.depth == "entry":
        return torch.stack([base.layers[layer].input_layernorm(x_USD) for layer in layers])
    shared = _prefix_entry(base, layers[0]).expand(len(x_USD), -1, -1)
    with torch.no_grad(), base.captured_inputs(layers[:-1]) as captured:
        # Of the last layer only what enters its attention is needed.
        entering = base.run_layers(torch.cat([shared, x_USD], dim=1), start=layers[0], stop=layers[-1])
        captured[layers[-1]] = base.layers[layers[-1]].input_layernorm(entering)
    return torch.stack([captured[layer][:, shared.shape[1] :] for layer in layers])


def slots_from_inputs(base: FrozenBase, compiler: MemoryCompiler, x_MUSD: Tensor, lengths_U: Tensor) -> AtomSlots:
    """Build slots from what `layer_inputs` gave: the trained part."""
    layers, heads = compiler.memory_layers, compiler.kv_heads
    num_atoms, num_slots = x_MUSD.shape[1:3]
    attention = base.attention_module(layers[0])

    def project(head: StackedLinear) -> Tensor:
        return head(x_MUSD.flatten(1, 2)).view(len(layers), num_atoms, num_slots, -1, attention.head_dim)

    key_MUSHF = project(heads.key)
    if hasattr(attention, "k_norm"):
        norms = [base.attention_module(layer).k_norm for layer in layers]
        key_MUSHF = torch.stack([norm(key) for norm, key in zip(norms, key_MUSHF.unbind(0), strict=True)])
    steps_S = torch.arange(num_slots, device=base.device)
    positions_US = (steps_S - lengths_U[:, None]).clamp(max=-1)
    cos_USF, sin_USF = base.decoder.rotary_emb(x_MUSD, positions_US)
    key_UMHSF = _rotate(attention, key_MUSHF.permute(1, 0, 3, 2, 4), cos_USF[:, None], sin_USF[:, None])
    return AtomSlots(
        layers=layers,
        key_UMHSF=key_UMHSF,
        value_UMHSF=project(heads.value).permute(1, 0, 3, 2, 4),
        mask_US=_held(x_MUSD[0], lengths_U),
    )


def latent_slots(base: FrozenBase, compiler: MemoryCompiler, latent_UZ: Tensor) -> AtomSlots:
    """Build slots from latents by the published head; keys are taken as already rotated."""
    slots, layers = compiler.spec.kv.num_slots, compiler.memory_layers
    width = base.attention_module(layers[0]).head_dim

    def project(head: StackedLinear) -> Tensor:
        return head(latent_UZ).unflatten(-1, (slots, -1, width)).permute(1, 0, 3, 2, 4)

    return AtomSlots(
        layers=layers,
        key_UMHSF=project(compiler.kv_heads.key),
        value_UMHSF=project(compiler.kv_heads.value),
        mask_US=torch.ones(len(latent_UZ), slots, dtype=torch.bool, device=latent_UZ.device),
    )


def _held(x_USD: Tensor, lengths_U: Tensor) -> Tensor:
    return torch.arange(x_USD.shape[1], device=x_USD.device) < lengths_U[:, None]


@torch.no_grad()
def _prefix_entry(base: FrozenBase, layer: int) -> Tensor:
    """States of the shared prefix entering `layer`, `[1, P, D]`; the same for every atom."""
    if layer not in base.prefix_states:
        ids = torch.tensor([base.prefix_ids], device=base.device)
        base.prefix_states[layer] = base.run_layers(base.embed(ids), start=0, stop=layer)
    return base.prefix_states[layer]


def _rotate(attention: nn.Module, key: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate keys as the base's own modelling file does; it wants queries too and gets none."""
    return sys.modules[type(attention).__module__].apply_rotary_pos_emb(key[:, :0], key, cos, sin)[1]
