"""Doc-to-LoRA: a hypernetwork that turns a document's hidden states into one LoRA for all questions.

Re-implemented from its description. Holds the hypernetwork, its cutting of documents into chunks, and the assembly
of chunks into an adapter; its objective is `training.systems.d2l`. Layer l of the LoRA is made of the states that
enter decoder layer l, so layers may be taken all at once (fast) or one by one (small).

N chunks, M documents, C chunks a document, L decoder layers, T tokens of a chunk, D the base's or the Perceiver's
width, R rank, I and O features of the target module, S = (C + 1) R ranks of a document.
Source: Doc-to-LoRA (Charakorn et al., 2026). Here a document stands in a user turn of the base's own template, whose
default system turn stays, where the authors empty it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.baselines.perceiver import GatedMLP, Perceiver
from models.encoder import length_batches, pad
from models.errors import ConfigError
from models.injection import ComposedAdapter
from models.presets import MemorySpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from models.base import FrozenBase, Site

PUBLISHED_HIDDEN_SIZE = 2304  # of Gemma-2-2B, for which the defaults below were published
BATCH_TOKENS = 16_384  # of chunks that are read together, padding included
_DOCUMENT = "<<document>>"


@dataclass(frozen=True, kw_only=True)
class D2LConfig:
    """Shape of the hypernetwork; the defaults are the published ones.

    Args:
        width: Of the Perceiver and of what the heads read.
        num_latents: Latents that read a chunk.
        num_encoder_blocks: Blocks that read it. 8 give the published 309 M parameters on Gemma-2-2B; the authors'
            released configuration has 9, which make 315 M.
        expansion: Inner width of every MLP over its outer one.
        rank: Of a chunk's LoRA, and of the document-independent one.
        max_chunk_tokens: Longer documents are cut into equal chunks.
        target_module: Linear layer of every decoder layer that carries the LoRA.
        as_released: With what the authors' code has beyond their description: biases in the heads' MLPs and a norm of
            the Perceiver's output. Their weights need both.
    """

    width: int = 512
    num_latents: int = 8
    num_encoder_blocks: int = 8
    num_heads: int = 16
    num_kv_heads: int = 4
    head_dim: int = 128
    expansion: int = 4
    rank: int = 8
    max_chunk_tokens: int = 512
    target_module: str = "down_proj"
    as_released: bool = False

    def __post_init__(self) -> None:
        for f in (f for f in fields(self) if f.type == "int"):
            value = getattr(self, f.name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"d2l: {f.name} must be a whole number of at least 1, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"d2l: num_heads must be a multiple of {self.num_kv_heads}, got {self.num_heads}")

    @classmethod
    def for_base(cls, base: FrozenBase) -> D2LConfig:
        """Return the published shape, its width in proportion where the base is narrower than Gemma-2-2B.

        SmolLM2-135M (hidden size 576) gets a width of 128 and heads of 32: 18.8 M parameters, 14 % of the base's,
        where the published ones are 12 % of Gemma's.
        """
        published = cls()
        narrowed = 16 * round(published.width * base.hidden_size / PUBLISHED_HIDDEN_SIZE / 16)
        width = min(published.width, max(16, narrowed))
        return cls(width=width, head_dim=width // published.num_kv_heads)

    @property
    def scale(self) -> float:
        """Factor of the update, `2 r^1.5`; it is not divided by the rank."""
        return 2 * self.rank**1.5

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, the constructor's arguments."""
        return asdict(self)


class LayerHeads(nn.Module):
    """For each decoder layer a residual MLP and a linear map, from a slot to a row of A and a column of B."""

    def __init__(self, config: D2LConfig, num_layers: int, d_out: int) -> None:
        super().__init__()
        width, inner = config.width, config.expansion * config.width

        def weight(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.randn(num_layers, *shape) * std)

        self.up_LDE = weight(width, inner, std=width**-0.5)
        self.down_LED = weight(inner, width, std=inner**-0.5)
        for name, size in (("up_bias_LE", inner), ("down_bias_LD", width)):
            zeros = torch.zeros(num_layers, size)
            if config.as_released:
                self.register_parameter(name, nn.Parameter(zeros))
            else:
                self.register_buffer(name, zeros, persistent=False)
        self.norms_2LD = nn.Parameter(torch.ones(2, num_layers, width))
        self.shifts_2LD = nn.Parameter(torch.zeros(2, num_layers, width))
        self.out_LDF = weight(width, d_out, std=0.5 / math.sqrt(width + config.rank * d_out))

    def forward(self, x_NLRD: Tensor, layers: slice) -> Tensor:
        """Return `[N, L, R, I + O]` for the decoder layers `layers`, which the input's second dimension holds."""
        up_NLRE = torch.einsum("nlrd,lde->nlre", self._norm(0, x_NLRD, layers), self.up_LDE[layers])
        inner_NLRE = F.silu(up_NLRE + self.up_bias_LE[layers, None])
        update = torch.einsum("nlre,led->nlrd", inner_NLRE, self.down_LED[layers]) + self.down_bias_LD[layers, None]
        direction_NLRD = F.normalize(x_NLRD + self._norm(1, update, layers), dim=-1)
        return torch.einsum("nlrd,ldf->nlrf", direction_NLRD, self.out_LDF[layers])

    def _norm(self, index: int, x_NLRD: Tensor, layers: slice) -> Tensor:
        normed = F.layer_norm(x_NLRD, x_NLRD.shape[-1:])
        return normed * self.norms_2LD[index, layers, None] + self.shifts_2LD[index, layers, None]


@dataclass(frozen=True, kw_only=True)
class ChunkFactors:
    """LoRA of some chunks, one pair of vectors a rank, before the scale `s` and the document-independent ranks."""

    a_NLRI: Tensor
    b_NLRO: Tensor


class HyperLora(nn.Module):
    """The trained part of Doc-to-LoRA; B starts at zero, so an untrained one leaves the base untouched.

    Args:
        hidden_size: Of the base.
        sites: The target module of every decoder layer, all of one shape.
    """

    def __init__(self, config: D2LConfig, *, hidden_size: int, sites: Sequence[Site]) -> None:
        super().__init__()
        shapes = {(s.in_features, s.out_features) for s in sites}
        if len(shapes) != 1:
            raise ConfigError(f"d2l: target_module must have one shape in all layers, got {sorted(shapes)}")
        ((self.d_in, self.d_out),) = shapes
        self.config, self.sites = config, tuple(sites)
        self.project = GatedMLP(hidden_size, config.expansion * hidden_size, config.width)
        self.perceiver = Perceiver(
            config.width,
            num_latents=config.num_latents,
            num_queries=config.rank,
            num_encoder_blocks=config.num_encoder_blocks,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            expansion=config.expansion,
            norms_output=config.as_released,
        )
        number, rank = len(sites), config.rank
        self.heads = LayerHeads(config, number, self.d_in + self.d_out)
        self.scale_a_LR = nn.Parameter(torch.ones(number, rank))
        self.scale_b_LR = nn.Parameter(torch.zeros(number, rank))
        self.bias_a_LRI = nn.Parameter(torch.randn(number, rank, self.d_in) * 0.2 / math.sqrt(self.d_in * rank))
        self.bias_b_LRO = nn.Parameter(torch.zeros(number, rank, self.d_out))

    @classmethod
    def over(cls, base: FrozenBase, config: D2LConfig | None = None) -> HyperLora:
        """Return an untrained hypernetwork for `base`, on its device; None takes the shape that fits it."""
        config = config or D2LConfig.for_base(base)
        everywhere = MemorySpec(
            recipe="paper",
            num_memory_layers=base.num_layers,
            num_encoder_layers=1,
            target_modules=(config.target_module,),
        )
        return cls(config, hidden_size=base.hidden_size, sites=base.sites(everywhere)).to(base.device)

    def forward(self, states_NLTD: Tensor, mask_NT: Tensor, layers: slice) -> ChunkFactors:
        """Return the LoRA of chunks at the decoder layers `layers`.

        Projection and Perceiver compute in the dtype of the states, the heads in float32.

        Args:
            states_NLTD: What enters each of those layers.
            mask_NT: True at real tokens.
        """
        number, num_layers = states_NLTD.shape[:2]
        half = states_NLTD.dtype != torch.float32
        mask_XT = mask_NT.repeat_interleave(num_layers, 0)
        with torch.autocast(states_NLTD.device.type, dtype=states_NLTD.dtype if half else None, enabled=half):
            # The projection is most of the work and of the memory, so padding takes no part in it.
            real = mask_XT.nonzero(as_tuple=True)
            projected = self.project(states_NLTD.flatten(0, 1)[real])
            read_XTD = projected.new_zeros(*mask_XT.shape, projected.shape[-1]).index_put(real, projected)
            slots_XRD = self.perceiver(read_XTD, mask_XT)
        pairs_NLRF = self.heads(slots_XRD.float().unflatten(0, (number, num_layers)), layers)
        a_NLRI, b_NLRO = pairs_NLRF.split([self.d_in, self.d_out], dim=-1)
        return ChunkFactors(
            a_NLRI=a_NLRI * self.scale_a_LR[layers, :, None], b_NLRO=b_NLRO * self.scale_b_LR[layers, :, None]
        )

    def adapter(self, factors: ChunkFactors, num_chunks: Sequence[int]) -> ComposedAdapter:
        """Concatenate each document's chunks along the rank, then the document-independent LoRA.

        Args:
            num_chunks: Chunks a document, in the order of the factors; shorter documents are padded with zeros.

        Returns:
            An adapter with one row a document.
        """
        device = factors.a_NLRI.device
        count_M = torch.tensor(num_chunks, device=device)
        steps = torch.arange(max(num_chunks), device=device)
        valid_MC = steps < count_M[:, None]
        row_MC = ((count_M.cumsum(0) - count_M)[:, None] + steps).masked_fill(~valid_MC, 0)

        def stacked(x_NRX: Tensor, bias_RX: Tensor) -> Tensor:
            chunks_MCRX = x_NRX[row_MC] * valid_MC[..., None, None]
            return torch.cat([chunks_MCRX.flatten(1, 2), bias_RX.expand(len(num_chunks), -1, -1)], dim=1)

        lora = {}
        for index, site in enumerate(self.sites):
            a_MSI = stacked(factors.a_NLRI[:, index], self.bias_a_LRI[index])
            b_MSO = stacked(factors.b_NLRO[:, index], self.bias_b_LRO[index])
            lora[site] = (a_MSI, self.config.scale * b_MSO.transpose(1, 2))
        return ComposedAdapter(lora=lora)


def document_chunks(tokenizer: PreTrainedTokenizerBase, text: str, *, max_chunk_tokens: int) -> list[list[int]]:
    """Cut a document into the fewest equal chunks of at most `max_chunk_tokens`, each in a user turn of its own."""
    turn = tokenizer.apply_chat_template(
        [{"role": "user", "content": _DOCUMENT}], add_generation_prompt=True, tokenize=False
    )
    before, _, after = turn.partition(_DOCUMENT)
    head, ids, tail = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (before, text, after))
    size = math.ceil(len(ids) / max(1, math.ceil(len(ids) / max_chunk_tokens)))
    return [head + ids[start : start + size] + tail for start in range(0, max(1, len(ids)), max(1, size))]


def chunk_factors(
    base: FrozenBase, hyper: HyperLora, chunks: Sequence[Sequence[int]], *, layers_at_once: int | None = None
) -> ChunkFactors:
    """Read chunks with the frozen base, those of like length together, and return their LoRA.

    Args:
        layers_at_once: Decoder layers that the hypernetwork sees in one call. None takes all, the batched mode; 1 is
            the iterative mode, which holds the states of one layer. Results are equal.
    """
    batches = list(length_batches([len(chunk) for chunk in chunks], BATCH_TOKENS))
    size = layers_at_once or base.num_layers
    parts = [_factors_of_batch(base, hyper, [chunks[row] for row in rows], size) for rows in batches]
    place_N = torch.tensor([row for rows in batches for row in rows], device=base.device).argsort()
    return ChunkFactors(
        a_NLRI=torch.cat([p.a_NLRI for p in parts])[place_N], b_NLRO=torch.cat([p.b_NLRO for p in parts])[place_N]
    )


def _factors_of_batch(base: FrozenBase, hyper: HyperLora, chunks: Sequence[Sequence[int]], size: int) -> ChunkFactors:
    """Return the LoRA of chunks that are padded to one length, `size` decoder layers at a time."""
    ids_NT, mask_NT = pad(chunks, base.device)
    parts: list[ChunkFactors] = []
    waiting: list[Tensor] = []
    for layer, states_NTD in enumerate(entering_states(base, ids_NT)):
        waiting.append(states_NTD)
        if len(waiting) == size or layer + 1 == base.num_layers:
            parts.append(hyper(torch.stack(waiting, dim=1), mask_NT, slice(layer + 1 - len(waiting), layer + 1)))
            waiting.clear()
    return ChunkFactors(
        a_NLRI=torch.cat([p.a_NLRI for p in parts], dim=1), b_NLRO=torch.cat([p.b_NLRO for p in parts], dim=1)
    )


@torch.no_grad()
def entering_states(base: FrozenBase, ids_NT: Tensor) -> Iterator[Tensor]:
    """Yield what enters decoder layer 0, 1, ..., `[N, T, D]` each, padded on the right; the last layer is not run."""
    x_NTD = base.embed(ids_NT)
    for layer in range(base.num_layers):
        yield x_NTD
        if layer + 1 < base.num_layers:
            x_NTD = base.run_layers(x_NTD, start=layer, stop=layer + 1)


@torch.no_grad()
def internalize(
    base: FrozenBase, hyper: HyperLora, documents: Sequence[str], *, layers_at_once: int | None = None
) -> ComposedAdapter:
    """Return an adapter with one row a document; that of a single document broadcasts over a batch of questions.

    Args:
        layers_at_once: As for `chunk_factors`.
    """
    limit = hyper.config.max_chunk_tokens
    chunks = [document_chunks(base.tokenizer, text, max_chunk_tokens=limit) for text in documents]
    factors = chunk_factors(base, hyper, [c for row in chunks for c in row], layers_at_once=layers_at_once)
    return hyper.adapter(factors, [len(row) for row in chunks])
