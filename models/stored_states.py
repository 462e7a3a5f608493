"""How a bank keeps an atom's token states: bfloat16, or whole numbers of 8 or 6 bits with a scale a block of channels.

Holds the two directions and nothing of files: names of tensors are those of a shard (`models.shards`). A few
channels of the residual stream are far larger than the rest (on SmolLM2 up to 39 times the median one). One scale a
token would leave the rest few levels, so each block of 64 channels has its own.
Dimension key: T tokens of all atoms, D channels, B blocks, C channels of a block, Y bytes of a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

STATES, SCALE = "entry", "entry.scale"
BLOCK = 64
BITS = {"int8": 8, "int6": 6}


def quantise(x_TD: Tensor, bits: int = 8) -> tuple[Tensor, Tensor]:
    """Round states to whole multiples of their block's scale, which is its largest magnitude / (2^(bits - 1) - 1).

    Args:
        x_TD: Finite states of magnitudes below 2e6, where a scale fits float16; the last block may be shorter.

    Returns:
        Codes, int8 `[T, D]`, from -127 to 127 at 8 bits and from -31 to 31 at 6, and the scales, float16 `[T, B]` with
        B = ceil(D / 64). No value is off by more than half of its block's scale. In blocks below 0.008, where float16
        has fewer digits, 4e-6 may come on top.
    """
    top = 2 ** (bits - 1) - 1
    x_TBC = _blocks(x_TD.float())
    scale_TB = (x_TBC.abs().amax(-1) / top).half()
    step_TB1 = scale_TB.float()[..., None]
    code_TBC = torch.where(step_TB1 > 0, x_TBC / step_TB1, 0.0).round().clamp(-top, top)
    return code_TBC.flatten(-2)[..., : x_TD.shape[-1]].to(torch.int8), scale_TB


def dequantise(code_TD: Tensor, scale_TB: Tensor) -> Tensor:
    """Return the states that `quantise` made codes and scales of, float32 `[T, D]`."""
    x_TBC = _blocks(code_TD.float()) * scale_TB.float()[..., None]
    return x_TBC.flatten(-2)[..., : code_TD.shape[-1]]


def pack(code_TD: Tensor) -> Tensor:
    """Put each four codes of 6 bits into three bytes, uint8 `[T, Y]` with Y = 3 D / 4; D must be a multiple of 4."""
    a, b, c, d = (code_TD.int() + 32).unflatten(-1, (-1, 4)).unbind(-1)
    word = a | b << 6 | c << 12 | d << 18
    return torch.stack([word & 255, word >> 8 & 255, word >> 16], dim=-1).flatten(-2).to(torch.uint8)


def unpack(packed_TY: Tensor) -> Tensor:
    """Return the codes that `pack` was given, int8 `[T, D]`."""
    low, middle, high = packed_TY.int().unflatten(-1, (-1, 3)).unbind(-1)
    word = low | middle << 8 | high << 16
    return (torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], dim=-1).flatten(-2) - 32).to(torch.int8)


def store_states(x_TD: Tensor, store: str) -> dict[str, Tensor]:
    """Return token states as a shard keeps them.

    Args:
        store: `bfloat16`, `int8` or `int6`, as `KVSpec.store` says.

    Returns:
        `entry`, and for whole numbers `entry.scale`, with one row a token each. Those of 6 bits are packed.
    """
    if store == "bfloat16":
        return {STATES: x_TD.to(torch.bfloat16)}
    code_TD, scale_TB = quantise(x_TD, BITS[store])
    return {STATES: pack(code_TD) if store == "int6" else code_TD, SCALE: scale_TB}


def load_states(tensors: Mapping[str, Sequence[Tensor]]) -> list[Tensor]:
    """Return atoms' states `[S_i, D]` from their shard tensors, one an atom by name; other names are left alone."""
    states = list(tensors[STATES])
    if SCALE not in tensors:
        return states
    code = torch.cat(states)
    x_TD = dequantise(unpack(code) if code.dtype == torch.uint8 else code, torch.cat(list(tensors[SCALE])))
    return list(x_TD.split([len(s) for s in states]))


def as_stored(states: Sequence[Tensor], store: str) -> list[Tensor]:
    """Return atoms' states `[S_i, D]` as a bank would give them back, in their own dtype.

    Evaluation has no bank, and measures through this what the product reads from one.
    """
    if not states:
        return []
    lengths = [len(s) for s in states]
    kept = store_states(torch.cat(list(states)), store)
    loaded = load_states({name: tensor.split(lengths) for name, tensor in kept.items()})
    return [after.to(before.dtype) for before, after in zip(states, loaded, strict=True)]


def _blocks(x_TD: Tensor) -> Tensor:
    """Split channels into blocks, the last one filled up with zeros, `[T, B, C]`."""
    return F.pad(x_TD, (0, -x_TD.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
