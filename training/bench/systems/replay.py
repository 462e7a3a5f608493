"""Steps of decoding whose tensors keep their shape and place, so that no cache is copied to grow by a token.

A GPU replays such a step as one CUDA graph. A step of a small base launches some two thousand kernels, one after the
other, which keeps the processor busy for longer than the GPU: for the last few answers of a batch, ten times as long.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, StaticCache

from models.base import FrozenBase


def can_fix(base: FrozenBase) -> bool:
    """Return whether a base takes such steps: under sdpa's masks, where no layer's cache slides."""
    kinds = getattr(base.model.config, "layer_types", None) or ()
    return base.attention == "sdpa" and all(kind == "full_attention" for kind in kinds)


@lru_cache(maxsize=8)
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that all steps are recorded on, so that they share the memory it keeps."""
    return torch.cuda.Stream(device)


class FixedStep:
    """Finds the next token of every row, again and again; what is attached to the base must stay so.

    Args:
        mask_BL: True at real tokens of what was read.
        cache: Its keys and values, which are taken over and leave it empty.
        next_B: The tokens that come next; after each step those behind them.
        room: Steps at most.
        record: Replay, on a GPU; recording takes as long as about five steps.
    """

    def __init__(
        self, base: FrozenBase, mask_BL: Tensor, cache: DynamicCache, next_B: Tensor, *, room: int, record: bool
    ) -> None:
        self.base, self.length, self.record = base, mask_BL.shape[1], record
        total = 8 * -(-(self.length + room) // 8)  # attention copies a mask of another width
        self.mask_BL = F.pad(mask_BL, (0, total - self.length))
        self.next_B = next_B.clone()
        self.cache = StaticCache(config=base.model.config, max_cache_len=total)
        for fixed, grown in zip(self.cache.layers, cache.layers, strict=True):
            fixed.update(grown.keys, grown.values)
            grown.reset()
        self._column = torch.full((1,), self.length, device=base.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def __call__(self) -> None:
        """Take a step: the first as usual, the others as recorded where they are."""
        self.length += 1
        if self._graph is not None:
            self._graph.replay()
        elif self.record:
            self._record()
        else:
            self._step()

    def kept(self, keep_C: Tensor) -> tuple[Tensor, DynamicCache, Tensor]:
        """Return mask, cache and next tokens of some rows."""
        cache = DynamicCache(config=self.base.model.config)
        for grown, fixed in zip(cache.layers, self.cache.layers, strict=True):
            grown.update(*(x[keep_C, :, : self.length] for x in (fixed.keys, fixed.values)))
        return self.mask_BL[keep_C, : self.length], cache, self.next_B[keep_C]

    def _record(self) -> None:
        """Take a step on a stream of its own, which sets up what cannot be recorded, and record the next."""
        stream = _stream(self.base.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
            self._graph = torch.cuda.CUDAGraph()
            self._graph.capture_begin()
            try:
                self._step()
            except BaseException:  # that of the step is told, for one that is out of memory is taken again by halves
                with suppress(RuntimeError):
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def _step(self) -> None:
        self.mask_BL.index_fill_(1, self._column, True)
        self._column += 1
        out = self.base.model(
            input_ids=self.next_B[:, None],
            attention_mask=self.mask_BL[:, None, None],
            position_ids=self.mask_BL.long().sum(-1, keepdim=True) - 1,
            cache=self.cache,
            use_cache=True,
        )
        self.next_B.copy_(out.logits[:, -1].argmax(-1))
