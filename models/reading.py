"""Reading: what the model itself makes of each candidate, before some of them are composed.

A memory that was taught to refuse knows what its atoms do not say: log P(refusal) under one atom alone tells an atom
that answers from one that only shares its words. It costs one pass over the prompt through the lower layers, and one a
candidate through the memory layers, in a batch; nothing is generated. The paper's second stage has a cross-encoder in
this place, which reads texts; this reads memories.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import FrozenBase, gpu_memory
from models.compiler import LoraFactors, MemoryCompiler
from models.composer import compose
from models.encoder import pad
from models.generation import prefill
from models.injection import attached
from models.microkv import AtomSlots
from models.network import MemoryNetwork
from models.prompts import all_prompt_ids, refusal_ids

# Questions with an atom each that are read at once, and the share of a GPU's memory that more of them may take.
READ_PAIRS, READ_SHARE = 256, 0.15


@torch.no_grad()
def refusal_of_each(
    base: FrozenBase,
    compiler: MemoryCompiler,
    prompts: Sequence[Sequence[int]],
    *,
    latent_PZ: Tensor | None = None,
    factors: LoraFactors | None = None,
    slots: AtomSlots | None = None,
    slot_rows_P: Tensor | None = None,
) -> Tensor:
    """Return log P that the answer begins with the refusal, nats `[P]`, for pairs of a prompt and a single atom.

    Args:
        prompts: Token ids, one a pair.
        latent_PZ: The pairs' atoms' latents; or
        factors: their materialised factors, with leading dimension `[P]`.
        slots: Micro-KV of distinct atoms; `slot_rows_P` says which row belongs to which pair.
    """
    one_P1 = torch.ones(len(prompts), 1, device=base.device)
    adapter = compose(
        compiler,
        one_P1,
        torch.zeros_like(one_P1),
        latent_BKZ=None if latent_PZ is None else latent_PZ[:, None],
        factors=None if factors is None else _alone(factors),
        slots=slots,
        slot_rows_BK=None if slot_rows_P is None else slot_rows_P[:, None],
        dtype=base.dtype,
    )
    # Below the memory layers a prompt is the same under every atom.
    first_layer, refusal = base.num_layers - compiler.spec.num_memory_layers, refusal_ids(base.tokenizer)
    distinct = {tuple(prompt): place for place, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    prompt_P = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=base.device)
    ids_QL, _ = pad([[*prompt, *refusal[:-1]] for prompt in distinct], base.device)
    entering_QLD = base.run_layers(base.embed(ids_QL), start=0, stop=first_layer)
    with attached(base, adapter):
        out_PLD = base.run_layers(entering_QLD[prompt_P], start=first_layer, stop=base.num_layers)
    begin_P1 = torch.tensor([[len(prompt) - 1] for prompt in prompts], device=base.device)
    refusal_R = torch.tensor(refusal, device=base.device)
    before_PR = begin_P1 + torch.arange(len(refusal), device=base.device)
    state_PRD = out_PLD[torch.arange(len(prompts), device=base.device)[:, None], before_PR]
    logprob_PRV = base.logits(state_PRD).float().log_softmax(-1)
    return logprob_PRV.gather(-1, refusal_R.expand(len(prompts), -1)[..., None]).squeeze(-1).sum(-1)


def bare_logprobs(base: FrozenBase, questions: Sequence[str]) -> Tensor:
    """Return log P of the questions' tokens under the base alone, nats `[B, Q]`: what a memory is held against."""
    prompts = all_prompt_ids(base.tokenizer, questions)
    return prefill(base, prompts, refusal_ids(base.tokenizer), questions=questions).question_logprob_BQ.cpu()


def gain(logprob_BQ: Tensor, bare: Sequence[Tensor]) -> Tensor:
    """Return what a memory adds to the log-probabilities of questions' tokens, `[B]` nats on the CPU.

    Tokens that it makes less likely do not count: a memory of the right passage does so too, and as much.

    Args:
        logprob_BQ: Of each token under the memory, nats, right-aligned behind zeros.
        bare: Of each token under the base alone, `[Q]` a question, aligned alike behind any number of zeros.
    """
    width = logprob_BQ.shape[1]
    added_BQ = logprob_BQ.cpu() - torch.stack([F.pad(row, (width - len(row), 0)) for row in bare])
    return added_BQ.clamp(min=0.0).sum(1)


def _alone(factors: LoraFactors) -> LoraFactors:
    """Let every atom be a question's only one: leading dimensions `[P, 1]`."""
    return LoraFactors(
        a=factors.a.map(lambda _, stack: stack[:, :, None]),
        b=factors.b.map(lambda _, stack: stack[:, :, None]),
        mask_logits=factors.mask_logits[:, None],
    )


def pairs_at_once(base: FrozenBase, network: MemoryNetwork | None) -> int:
    """Return how many pairs of a question and an atom are read at once: on a large GPU what keeps it busy."""
    if base.device.type != "cuda" or network is None:
        return READ_PAIRS
    spec = network.spec
    # A pair's states, slots and LoRA, with what comes and goes in making them, take about eight times its states.
    states = spec.num_memory_layers * spec.max_atom_tokens * base.hidden_size * base.dtype.itemsize
    return max(READ_PAIRS, int(READ_SHARE * gpu_memory(base.device) / (8 * states)))
