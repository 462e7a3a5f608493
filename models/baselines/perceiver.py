"""A Perceiver: learned latents read a sequence, learned queries read the latents.

N sequences, T their tokens, D the Perceiver's width, Q latents or queries, H heads, K heads of keys and values, G the
queries of one of these, F a head's features.
Source: Doc-to-LoRA (Charakorn et al., 2026), whose aggregator this describes; it has no positions of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm in the dtype of its input, whatever that of its weight; mixed, torch has no fast form."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, d_in: int, d_inner: int, d_out: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_in, d_inner, bias=False)
        self.up = nn.Linear(d_in, d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class CrossAttention(nn.Module):
    """Attention from queries to a context, with fewer key-value heads than query heads."""

    def __init__(self, width: int, *, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.query = nn.Linear(width, num_heads * head_dim, bias=False)
        self.key = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.value = nn.Linear(width, num_kv_heads * head_dim, bias=False)
        self.out = nn.Linear(num_heads * head_dim, width, bias=False)

    def forward(self, x_NQD: Tensor, context_NTD: Tensor, mask_NT: Tensor | None) -> Tensor:
        """Return what the queries read, `[N, Q, D]`; `mask_NT` is True at real tokens."""
        query_NHQF = self._heads(self.query(x_NQD))
        key_NKTF, value_NKTF = self._heads(self.key(context_NTD)), self._heads(self.value(context_NTD))
        mask = None if mask_NT is None else mask_NT[:, None, None, :]
        # Query heads that share a key head become more queries of it: nothing is causal, and so fast kernels accept
        # a mask.
        query_NKGF = query_NHQF.unflatten(1, (key_NKTF.shape[1], -1)).flatten(2, 3)
        read_NKGF = F.scaled_dot_product_attention(query_NKGF, key_NKTF, value_NKTF, attn_mask=mask)
        read_NHQF = read_NKGF.reshape(query_NHQF.shape)
        return self.out(read_NHQF.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class CrossAttentionBlock(nn.Module):
    """Cross-attention and a gated MLP, each between two norms and beside a residual."""

    def __init__(self, width: int, *, num_heads: int, num_kv_heads: int, head_dim: int, expansion: int) -> None:
        super().__init__()
        self.query_norm, self.context_norm = RMSNorm(width), RMSNorm(width)
        self.attention = CrossAttention(width, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self.attended_norm, self.mlp_norm, self.out_norm = (RMSNorm(width) for _ in range(3))
        self.mlp = GatedMLP(width, expansion * width, width)

    def forward(self, x_NQD: Tensor, context_NTD: Tensor, mask_NT: Tensor | None = None) -> Tensor:
        """Return the queries after reading, `[N, Q, D]`."""
        read_NQD = self.attention(self.query_norm(x_NQD), self.context_norm(context_NTD), mask_NT)
        x_NQD = x_NQD + self.attended_norm(read_NQD)
        return x_NQD + self.out_norm(self.mlp(self.mlp_norm(x_NQD)))


class Perceiver(nn.Module):
    """Latents read the sequence in several blocks; output queries read the latents in one.

    Args:
        num_latents: Latents, which start at N(0, 1).
        num_queries: Output vectors a sequence.
        num_encoder_blocks: Blocks, with weights of their own, in which the latents read the sequence.
        norms_output: The output is normed once more.
    """

    def __init__(
        self,
        width: int,
        *,
        num_latents: int,
        num_queries: int,
        num_encoder_blocks: int,
        norms_output: bool = False,
        **block: int,
    ) -> None:
        super().__init__()
        self.latents_QD = nn.Parameter(torch.randn(num_latents, width))
        self.queries_QD = nn.Parameter(torch.randn(num_queries, width))
        self.encoder = nn.ModuleList(CrossAttentionBlock(width, **block) for _ in range(num_encoder_blocks))
        self.encoder_norm = RMSNorm(width)
        self.decoder = CrossAttentionBlock(width, **block)
        self.decoder_norm = RMSNorm(width) if norms_output else nn.Identity()

    def forward(self, context_NTD: Tensor, mask_NT: Tensor) -> Tensor:
        """Return `[N, num_queries, D]`; padding of the context has no part in it."""
        number = len(context_NTD)
        x_NQD = self.latents_QD.expand(number, -1, -1)
        for block in self.encoder:
            x_NQD = block(x_NQD, context_NTD, mask_NT)
        return self.decoder_norm(self.decoder(self.queries_QD.expand(number, -1, -1), self.encoder_norm(x_NQD)))
