"""The shared text encoder: the base's first layers, mean-pooled, and a learned projection head.

Paper, Method, "Shared Text Encoder". One run of the base's lower layers gives both what the encoder pools
and, where micro-KV reads token states, the states that enter the memory layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.base import FrozenBase
from models.presets import MemorySpec

CPU_BATCH_TOKENS, BATCH_TOKENS = 1024, 4096  # a CPU's caches hold the states of fewer


class ProjectionHead(nn.Sequential):
    """LayerNorm, Linear, GELU, Linear: pooled states `[..., D]` to embeddings `[..., d_embed]`."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(nn.LayerNorm(d_in), nn.Linear(d_in, d_out), nn.GELU(), nn.Linear(d_out, d_out))


@dataclass(frozen=True, kw_only=True)
class TextFeatures:
    """What the frozen base says of some texts; nothing here is learned.

    Args:
        pooled_ND: Mean state after `num_encoder_layers` layers, float32.
        entry: States that enter the first memory layer, one `[S_i, D]` a text, in the base's dtype; empty
            where they were not asked for.
    """

    pooled_ND: Tensor
    entry: list[Tensor]


@torch.no_grad()
def text_features(
    base: FrozenBase,
    spec: MemorySpec,
    texts: Sequence[str],
    *,
    with_entry: bool,
    batch_tokens: int | None = None,
) -> TextFeatures:
    """Encode `texts` behind the shared prefix, whose own positions are dropped.

    Texts are cut at `spec.max_atom_tokens` tokens. Batches are built from texts of similar length.

    Args:
        batch_tokens: Of a batch at most, padding included; None takes what suits the device.

    Returns:
        Features in the order of `texts`.
    """
    cut = {"truncation": True, "max_length": spec.max_atom_tokens}
    found = base.tokenizer(list(texts), add_special_tokens=False, **cut)["input_ids"] if texts else []
    ids = [tokens or [base.prefix_ids[-1]] for tokens in found]
    pooled = torch.zeros(len(ids), base.hidden_size, device=base.device)
    entry: list[Tensor] = [torch.empty(0)] * (len(ids) if with_entry else 0)
    boundary = base.num_layers - spec.num_memory_layers
    skip = len(base.prefix_ids)
    if batch_tokens is None:
        batch_tokens = CPU_BATCH_TOKENS if base.device.type == "cpu" else BATCH_TOKENS
    for rows in length_batches([len(i) for i in ids], batch_tokens):
        ids_BL, mask_BL = pad([base.prefix_ids + ids[r] for r in rows], base.device)
        states = base.run_layers(base.embed(ids_BL), start=0, stop=min(spec.num_encoder_layers, boundary))
        entering = (
            base.run_layers(states, start=min(spec.num_encoder_layers, boundary), stop=boundary)
            if with_entry
            else states
        )
        encoded = (
            base.run_layers(states, start=boundary, stop=spec.num_encoder_layers)
            if spec.num_encoder_layers > boundary
            else states
        )
        body_BL1 = mask_BL[:, skip:, None]
        pooled[rows] = (encoded[:, skip:] * body_BL1).float().sum(1) / body_BL1.sum(1)
        for row, states_LD in zip(rows, entering, strict=True):
            if with_entry:
                entry[row] = states_LD[skip : skip + len(ids[row])]
    return TextFeatures(pooled_ND=pooled, entry=entry)


def pad(sequences: Sequence[Sequence[int]], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Pad token ids on the right with zeros to one length; return ids `[B, L]` and a mask, True at real tokens."""
    length = max(map(len, sequences))
    ids = torch.zeros(len(sequences), length, dtype=torch.long)
    mask = torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = True
    return ids.to(device), mask.to(device)


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield batches of places, short ones first, of at most `batch_tokens` tokens each, padding included."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and lengths[row] * (len(rows) + 1) > batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows
