"""Greedy generation with a KV cache, streamed, for one question or a left-padded batch.

What is attached to the base when these functions run is the caller's business (`models.injection`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerBase

from models.base import FrozenBase
from models.encoder import pad
from models.prompts import REFUSAL, end_ids, num_behind, question_lengths

HEAD_LOGITS = 2**26  # that are scored at once: 256 MiB each of logits and log-probabilities in float32


@dataclass(frozen=True, kw_only=True)
class Prefill:
    """A prompt that the model has read, ready to be continued.

    Args:
        cache: Keys and values of the prompt.
        next_logits_BV: Logits of the first answer token.
        refusal_logprob_B: Log-probability that the answer begins with the refusal, summed over its tokens.
        refuses_B: Whether the greedy answer begins with the refusal.
        question_logprob_BQ: Log-probability of each of the question's own tokens in the prompt, where it was asked for;
            0 before the first of a shorter question.
    """

    cache: DynamicCache
    mask_BL: Tensor
    next_logits_BV: Tensor
    refusal_logprob_B: Tensor
    refuses_B: Tensor
    question_logprob_BQ: Tensor | None = None

    def answering(self, tokenizer: PreTrainedTokenizerBase) -> Prefill:
        """Return the same prompts; what would be refused begins with the best token that cannot begin a refusal."""
        if not self.refuses_B.any():
            return self
        logits_BV = self.next_logits_BV.clone()
        logits_BV[self.refuses_B.nonzero(), list(refusal_beginnings(tokenizer))] = -torch.inf
        return replace(self, next_logits_BV=logits_BV)


@torch.no_grad()
def prefill(
    base: FrozenBase,
    prompts: Sequence[Sequence[int]],
    refusal: Sequence[int],
    *,
    questions: Sequence[str] | None = None,
) -> Prefill:
    """Read the prompts, and score `refusal` as the beginning of their answers in the same pass.

    Args:
        questions: What the prompts ask, to score that too.
    """
    probe = torch.tensor(list(refusal), device=base.device)
    # Padding on the right: no real token sees it, so no mask is needed, and the fast attention kernels take it.
    ids_BL, real_BL = pad([[*prompt, *refusal] for prompt in prompts], base.device)
    cache = DynamicCache(config=base.model.config)
    cache.activate_past_recording()  # else sliding layers past their window cannot drop the probe again
    state_BLD = base.decoder(input_ids=ids_BL, cache=cache, use_cache=True).last_hidden_state
    if len(set(map(len, prompts))) > 1:
        place_BL = _right_aligned(real_BL)
        state_BLD = _taken(state_BLD, place_BL)
        ids_BL, real_BL = (x.gather(1, place_BL) for x in (ids_BL, real_BL))
        for layer in cache.layers:
            layer.keys, layer.values = (_taken(x, place_BL[:, None]) for x in (layer.keys, layer.values))
    # Contiguous, since a product with a slice copies the whole head; `logits_to_keep` of transformers does.
    logits = base.head(state_BLD[:, -len(probe) - 1 :].contiguous())
    logprob_BPV = logits[:, :-1].float().log_softmax(-1)
    cache.crop(-len(probe))
    probe_BP, before = probe.expand(len(prompts), -1), slice(None, -len(probe))
    return Prefill(
        cache=cache,
        mask_BL=real_BL[:, before],
        next_logits_BV=logits[:, 0].float(),
        refusal_logprob_B=logprob_BPV.gather(-1, probe_BP[..., None]).squeeze(-1).sum(-1),
        refuses_B=(logprob_BPV.argmax(-1) == probe_BP).all(-1),
        question_logprob_BQ=questions and _question_logprob(base, state_BLD, ids_BL[:, before], questions),
    )


@torch.no_grad()
def continue_greedily(
    base: FrozenBase, start: Prefill, *, max_new_tokens: int, on_token: Callable[[list[int]], None] | None = None
) -> list[list[int]]:
    """Continue greedily until every answer has ended.

    Args:
        on_token: Called with the token ids so far of the first answer, after each token.

    Returns:
        Token ids of each answer, without its end token.
    """
    ends = end_ids(base.tokenizer, base.model.generation_config.eos_token_id)
    answers: list[list[int]] = [[] for _ in start.mask_BL]
    done = [False] * len(answers)
    mask_BL, next_B = start.mask_BL, start.next_logits_BV.argmax(-1)
    for step in range(max_new_tokens):
        for row, token in enumerate(next_B.tolist()):
            done[row] = done[row] or token in ends
            if not done[row]:
                answers[row].append(token)
        if on_token and not done[0]:
            on_token(answers[0])
        if all(done) or step + 1 == max_new_tokens:
            break
        mask_BL = torch.cat([mask_BL, torch.ones_like(mask_BL[:, :1])], dim=1)
        out = base.model(
            input_ids=next_B[:, None],
            attention_mask=mask_BL,
            position_ids=_positions(mask_BL)[:, -1:],
            cache=start.cache,
            use_cache=True,
        )
        next_B = out.logits[:, -1].argmax(-1)
    return answers


@lru_cache(maxsize=4)
def refusal_beginnings(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens with which an answer that refuses can begin, in any case, or ends at once.

    A model that is kept from the refusal's own first token alone writes it with a capital, or behind a quote: so tokens
    without a letter or digit are among these too.
    """

    def begins(text: str) -> bool:
        return REFUSAL.startswith("".join(filter(str.isalnum, text)).casefold())

    # Their ASCII characters, which stand for themselves in every vocabulary, rule out most tokens; decoding is slow.
    ids = [i for token, i in tokenizer.get_vocab().items() if begins(token.encode("ascii", "ignore").decode())]
    texts = tokenizer.batch_decode([[i] for i in ids], skip_special_tokens=True)
    found = {i for i, text in zip(ids, texts, strict=True) if begins(text)}
    return tuple(sorted(found | set(tokenizer.all_special_ids)))


def _question_logprob(base: FrozenBase, state_BLD: Tensor, ids_BL: Tensor, questions: Sequence[str]) -> Tensor:
    """Return the log-probability of each of the questions' tokens `[B, Q]`, nats, right-aligned behind zeros.

    Args:
        state_BLD: Last states of the left-padded prompts `ids_BL`, and maybe of more behind them.
    """
    lengths = question_lengths(base.tokenizer, questions)
    end = ids_BL.shape[1] - num_behind(base.tokenizer)
    begin = max(1, end - max(lengths))
    length_B1 = torch.tensor(lengths, device=ids_BL.device)[:, None]
    asked_BQ = torch.arange(begin, end, device=ids_BL.device) >= end - length_B1
    state_TD, target_T = state_BLD[:, begin - 1 : end - 1][asked_BQ], ids_BL[:, begin:end][asked_BQ]
    at_once = max(1, HEAD_LOGITS // base.model.config.vocab_size)
    parts = zip(state_TD.split(at_once), target_T.split(at_once), strict=True)
    logprob_BQ = torch.zeros(asked_BQ.shape, device=ids_BL.device)
    logprob_BQ[asked_BQ] = torch.cat(
        [-F.cross_entropy(base.head(state).float(), target, reduction="none") for state, target in parts]
    )
    return logprob_BQ


def _right_aligned(real_BL: Tensor) -> Tensor:
    """Return where each column of rows that were padded on the right comes from once the padding is on the left."""
    length = real_BL.shape[1]
    column_L = torch.arange(length, device=real_BL.device)
    return (column_L + real_BL.sum(-1, keepdim=True)) % length


def _taken(x: Tensor, place_BL: Tensor) -> Tensor:
    """Take columns of `[..., L, F]`, a choice of its own for each row of `place_BL`, which broadcasts."""
    return x.gather(-2, place_BL[..., None].expand_as(x))


def _positions(mask_BL: Tensor) -> Tensor:
    return (mask_BL.long().cumsum(-1) - 1).clamp(min=0)
