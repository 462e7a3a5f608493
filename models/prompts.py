"""The one prompt of training, evaluation and use: the question, with or without text beside the memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerBase

INSTRUCTION = "Answer the question with a short phrase. Reply unanswerable if you do not know the answer."
REFUSAL = "unanswerable"
Key = TypeVar("Key", bound=Hashable)


def prompt_ids(tokenizer: PreTrainedTokenizerBase, question: str, context: str | None = None) -> list[int]:
    """Return the token ids of the chat prompt, ready for the answer.

    The instruction moves into the user's turn where the template has no system role (Gemma 2).
    """
    return all_prompt_ids(tokenizer, [question], [context])[0]


def all_prompt_ids(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], contexts: Sequence[str | None] | None = None
) -> list[list[int]]:
    """Return `prompt_ids` of many questions in one call, which a tokenizer shares out among its threads."""
    if not questions:
        return []
    pairs = zip(questions, contexts or [None] * len(questions), strict=True)
    texts = [
        f"Context: {context}\n\nQuestion: {asked}" if context else f"Question: {asked}" for asked, context in pairs
    ]
    if _has_system_role(tokenizer):
        turns = [[{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}] for text in texts]
    else:
        turns = [[{"role": "user", "content": f"{INSTRUCTION}\n\n{text}"}] for text in texts]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)


class KeptPrompts(Generic[Key]):
    """Token ids of prompts by what they are made of: each is rendered once, and all new ones in one call."""

    def __init__(self) -> None:
        self._ids: dict[Key, np.ndarray] = {}

    def ids(self, keys: Sequence[Key], render: Callable[[list[Key]], list[list[int]]]) -> list[np.ndarray]:
        """Return the ids, one `[L]` a key; `render` makes those of keys that are new."""
        new = [key for key in dict.fromkeys(keys) if key not in self._ids]
        self._ids.update((key, np.array(ids, dtype=np.int32)) for key, ids in zip(new, render(new), strict=True))
        return [self._ids[key] for key in keys]


def question_lengths(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str]) -> list[int]:
    """Return how many tokens each question has in its prompt, at least 1; `num_behind` follow them."""
    found = tokenizer([f" {question}" for question in questions], add_special_tokens=False)["input_ids"]
    return [max(1, len(ids)) for ids in found]


@lru_cache(maxsize=4)
def num_behind(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens end every prompt, behind its question."""
    one, other = (ids[::-1] for ids in all_prompt_ids(tokenizer, ["Who?", "7"]))
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def refusal_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the token ids of a refusal as the model would begin its answer."""
    return tokenizer(REFUSAL, add_special_tokens=False)["input_ids"]


def end_ids(tokenizer: PreTrainedTokenizerBase, model_eos: int | list[int] | None) -> set[int]:
    """Return every token that ends an answer: the tokenizer's, the model's, and the chat template's."""
    eos = model_eos if isinstance(model_eos, list) else [model_eos]
    turn_ends = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<end_of_turn>", "<|eot_id|>"))
    return {i for i in (*eos, tokenizer.eos_token_id, *turn_ends) if i is not None and i != tokenizer.unk_token_id}


def _has_system_role(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Templates without one refuse such a turn, each in its own words, or drop it."""
    turns = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": "-"}]
    try:
        return INSTRUCTION in tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:  # the template engine's own; any other fault shows again when the prompt is rendered
        return False
