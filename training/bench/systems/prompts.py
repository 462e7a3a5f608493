"""Prompts of all systems under a protocol, each tokenised once however many systems share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from models.base import FrozenBase
from models.prompts import KeptPrompts, all_prompt_ids
from training.features.texts import cut_texts

if TYPE_CHECKING:
    from training.bench.protocols import Protocol

# Room for the question and the template beside a text that fills all of the base's positions.
RESERVED_TOKENS = 256


class Prompts:
    """Turns questions with text into token ids under a protocol.

    Under our prompt a text is cut at its end to what the protocol allows, and to what the base has positions for.
    """

    def __init__(self, base: FrozenBase, protocol: Protocol) -> None:
        self._tokenizer, self._protocol = base.tokenizer, protocol
        self.max_new_tokens = protocol.max_new_tokens
        self._num_positions = base.model.config.max_position_embeddings
        room = self._num_positions - self.max_new_tokens - RESERVED_TOKENS
        self._max_context_tokens = max(1, min(protocol.max_context_tokens, room))
        self._cut: dict[str, str] = {}
        self._kept = KeptPrompts()

    def facts(self) -> dict[str, Any]:
        """Return what the header says of the prompts."""
        own = self._protocol.official is not None
        return {
            "max_new_tokens": self.max_new_tokens,
            "max_context_tokens": self._max_context_tokens,
            "prompt": "the set's own, but for trained systems theirs" if own else "one for all systems",
        }

    def ids(self, questions: Sequence[str], texts: Sequence[str | None], *, is_trained: bool) -> list[np.ndarray]:
        """Return the prompts' token ids, one `[L]` a question.

        Args:
            is_trained: The system learnt our prompt, and keeps it under every protocol.
        """
        official = None if is_trained else self._protocol.official

        def render(new: Sequence[tuple[str, str | None, bool]]) -> list[list[int]]:
            if official is None:
                return all_prompt_ids(self._tokenizer, [q for q, _, _ in new], [self.cut(text) for _, text, _ in new])
            return [official.ids(self._tokenizer, q, t, num_positions=self._num_positions) for q, t, _ in new]

        keys = [(question, text, official is None) for question, text in zip(questions, texts, strict=True)]
        return self._kept.ids(keys, render)

    def cut(self, text: str | None) -> str | None:
        """Return the text, or as much of it as the prompt may hold."""
        # No token stands for less than a byte.
        if text is None or len(text.encode("utf-8", "surrogatepass")) <= self._max_context_tokens:
            return text
        if text not in self._cut:
            [self._cut[text]] = cut_texts(self._tokenizer, [text], self._max_context_tokens)
        return self._cut[text]
