"""Invented documents and questions of a given number of tokens; what they say means nothing.

Words come as often as in a language: the n-th most frequent one with a probability near 1 / n, so that word indices
have postings of a real shape.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from models.atoms import Atom

NUM_WORDS = 20_000
QUESTION_WORDS = 12


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A document as both systems read it: atoms for Doc2Atom, the text for Doc-to-LoRA."""

    atoms: tuple[str, ...]
    text: str

    @classmethod
    def of(cls, atoms: Sequence[str]) -> Passage:
        """Return a document whose text is its atoms, a line each."""
        return cls(atoms=tuple(atoms), text="\n".join(atoms))

    @property
    def question(self) -> str:
        """A question made of the first atom's first words."""
        return " ".join(self.atoms[0].split()[:QUESTION_WORDS])


def words(count: int, rng: random.Random) -> str:
    """Return so many words, the frequent ones often."""
    return " ".join(f"w{int(NUM_WORDS ** rng.random())}" for _ in range(count))


def text_of(tokenizer: PreTrainedTokenizerBase, num_tokens: int, rng: random.Random) -> str:
    """Return words that take `num_tokens` tokens; a few less where a cut word is split in another way."""
    text = words(num_tokens, rng)  # at least one token each
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return text[: offsets[num_tokens - 1][1]]


def invented(tokenizer: PreTrainedTokenizerBase, *, num_atoms: int, num_tokens: int, seed: int) -> Passage:
    """Return a document of `num_tokens` tokens whose atoms are equal parts of it."""
    rng = random.Random(seed)
    return Passage.of([text_of(tokenizer, max(1, num_tokens // num_atoms), rng) for _ in range(num_atoms)])


def as_atoms(texts: Sequence[str]) -> list[Atom]:
    """Return atoms with these contents."""
    return [
        Atom(
            atom_id=f"atom_{number}",
            semantic_type="fact_claim",
            content=text,
            source_span=text,
            retrieval_text="",
            char_start=0,
            char_end=len(text),
        )
        for number, text in enumerate(texts)
    ]
