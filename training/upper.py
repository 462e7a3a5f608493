"""The layers that memory is written into, over prompts with answers: operation by operation, or as CUDA graphs.

A step over a small base is bound by the processor, which launches thousands of kernels one after the other; a graph
launches them at once. It holds for one shape: lengths are rounded up, and a shape gets its graph when it comes again.
B rows, L tokens, T answer tokens of all rows, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import FrozenBase
from models.injection import ComposedAdapter, LayerPrefix, attached
from training.features import Targets

logger = logging.getLogger(__name__)

LENGTH_STEP = 32
SEEN_BEFORE = 2  # times that a shape runs without a graph; making one takes as long as several steps
MAX_GRAPHS = 16

Function = Callable[..., Tensor]
# From a function of tensors and an example of its arguments to one that replays it; the example's memory is its own.
Capture = Callable[[Function, tuple[Tensor, ...]], Function]
Joined = Callable[[Sequence[Tensor]], ComposedAdapter]


@dataclass(frozen=True, kw_only=True)
class AnswerLogits:
    """Logits at the answers' tokens, row after row.

    Args:
        target_T: The tokens.
        row_T: The row of each, in rising order.
    """

    logits_TV: Tensor
    target_T: Tensor
    row_T: Tensor

    def where(self, keep_T: Tensor) -> AnswerLogits:
        """Return only some of the tokens."""
        return AnswerLogits(logits_TV=self.logits_TV[keep_T], target_T=self.target_T[keep_T], row_T=self.row_T[keep_T])


def cuda_graphs() -> Capture:
    """Return what captures forward and backward pass as CUDA graphs, which share the memory of their activations."""
    pool = torch.cuda.graph_pool_handle()

    def capture(function: Function, args: tuple[Tensor, ...]) -> Function:
        graphed = torch.cuda.make_graphed_callables(function, args, allow_unused_input=True, pool=pool)
        torch.cuda.empty_cache()  # of what the trial runs on a stream of their own have left
        return graphed

    return capture


class UpperLayers:
    """The decoder from `first_layer` on, with an adapter written in; it holds nothing that is trained.

    Args:
        capture: None runs operation by operation. Graphs are for one backward pass a forward pass: a second forward
            pass before it, and passes without a gradient, run without them.
    """

    def __init__(self, base: FrozenBase, first_layer: int, *, capture: Capture | None = None) -> None:
        self.base, self.first_layer, self.capture = base, first_layer, capture
        self._graphs: dict[Hashable, Function] = {}
        self._seen: Counter[Hashable] = Counter()
        self._awaits_backward = False

    @property
    def length_step(self) -> int:
        """What lengths are worth rounding up to a multiple of."""
        return 1 if self.capture is None else LENGTH_STEP

    def answers(self, adapter: ComposedAdapter | None, targets: Targets) -> AnswerLogits:
        """Return the logits at the answers of prompts, whose states at the first layer `targets` holds."""
        out_BLD = self.states(adapter, targets.state_BLD, targets.mask_BL)
        row_T, step_T = targets.answer_BL.nonzero(as_tuple=True)
        return AnswerLogits(
            logits_TV=self.base.logits(out_BLD[row_T, step_T - 1]),
            target_T=targets.token_BL[row_T, step_T],
            row_T=row_T,
        )

    def states(self, adapter: ComposedAdapter | None, state_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        """Return the states that leave the last layer, `[B, L, D]`, before the final norm."""
        tensors, joined = taken_apart(adapter or ComposedAdapter())
        is_trained = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if self.capture is None or self._awaits_backward or not is_trained:
            return self._run(adapter, state_BLD, mask_BL)
        # A gradient that comes out of a graph is overwritten by the next one: a leaf would keep that very memory.
        tensors = [x * 1 if x.is_leaf and x.requires_grad else x for x in tensors]
        args = (rounded_up(state_BLD, 1, LENGTH_STEP), rounded_up(mask_BL, 1, LENGTH_STEP), *tensors)
        graph = self._graph(args, joined)
        if graph is None:
            return self._run(adapter, state_BLD, mask_BL)
        out_BLD = graph(*args)
        self._awaits_backward = True
        out_BLD.register_hook(self._backward_began)
        return out_BLD[:, : state_BLD.shape[1]]

    def _run(self, adapter: ComposedAdapter | None, state_BLD: Tensor, mask_BL: Tensor) -> Tensor:
        with attached(self.base, adapter):
            return self.base.run_layers(state_BLD, mask_BL, start=self.first_layer, stop=self.base.num_layers)

    def _backward_began(self, _gradient: Tensor) -> None:
        self._awaits_backward = False

    def _graph(self, args: tuple[Tensor, ...], joined: Joined) -> Function | None:
        """Return the graph of these shapes; None where it is not worth making, or cannot be made."""
        key = tuple((x.shape, x.dtype, x.requires_grad) for x in args)
        self._seen[key] += 1
        if key in self._graphs or self._seen[key] <= SEEN_BEFORE or len(self._graphs) == MAX_GRAPHS:
            return self._graphs.get(key)
        own = tuple(_copied(x) for x in args)
        try:
            self._graphs[key] = self.capture(partial(self._run_apart, joined), own)
        except RuntimeError as error:  # out of memory, or an operation that waits for the device
            logger.warning("no CUDA graphs: %s", str(error).splitlines()[0])
            self.capture = None
        return self._graphs.get(key)

    def _run_apart(self, joined: Joined, state_BLD: Tensor, mask_BL: Tensor, *tensors: Tensor) -> Tensor:
        return self._run(joined(tensors), state_BLD, mask_BL)


def _copied(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format).requires_grad_(x.requires_grad)


def taken_apart(adapter: ComposedAdapter) -> tuple[list[Tensor], Joined]:
    """Return an adapter's tensors, each once, and the function that makes an adapter of their like."""
    place: dict[int, int] = {}
    tensors: list[Tensor] = []

    def index(tensor: Tensor) -> int:
        if id(tensor) not in place:
            place[id(tensor)] = len(tensors)
            tensors.append(tensor)
        return place[id(tensor)]

    lora = {site: (index(a), index(b)) for site, (a, b) in adapter.lora.items()}
    prefix = {layer: (index(p.key_BHSF), index(p.value_BHSF), index(p.bias_BS)) for layer, p in adapter.prefix.items()}

    def joined(x: Sequence[Tensor]) -> ComposedAdapter:
        return ComposedAdapter(
            lora={site: (x[a], x[b]) for site, (a, b) in lora.items()},
            prefix={
                layer: LayerPrefix(key_BHSF=x[key], value_BHSF=x[value], bias_BS=x[bias])
                for layer, (key, value, bias) in prefix.items()
            },
        )

    return tensors, joined


def rounded_up(tensor: Tensor, dim: int, step: int) -> Tensor:
    """Pad with zeros at the end of `dim` to a multiple of `step`."""
    missing = -tensor.shape[dim] % step
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1 - dim) + [0, missing]) if missing else tensor
