"""Bases with random weights at their published size, and invented documents: what speed and memory need, and no more.

Nothing is downloaded. A base is made on its device from a configuration; its tokenizer gives a token a word, so that
texts of a given number of tokens can be written. What such a model answers means nothing; what it costs is real.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from models.atoms import AnnotationRecord, Atom, Question
from models.base import FrozenBase, pick_attention, pick_dtype
from models.errors import ConfigError

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_WORDS = 20_000  # of the documents; the vocabulary may have more
QUESTION_WORDS = 12

# As published with the weights: google/gemma-2-2b-it, Qwen/Qwen3-4B-Instruct-2507, HuggingFaceTB/SmolLM2-135M-Instruct.
PUBLISHED: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "gemma": (
        Gemma2Config,
        {
            "vocab_size": 256_000,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 8192,
        },
    ),
    "qwen": (
        Qwen3Config,
        {
            "vocab_size": 151_936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262_144,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5_000_000.0},
        },
    ),
    "smollm2": (
        LlamaConfig,
        {
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
        },
    ),
}
TINY = {
    "vocab_size": 512,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
# A memory that fits the tiny bases, as overrides of a training configuration.
TINY_MEMORY = {
    "memory.num_memory_layers": 2,
    "memory.num_encoder_layers": 3,
    "memory.d_embed": 24,
    "memory.d_key": 12,
    "memory.d_latent": 8,
    "memory.rank": 4,
}


def base_config(model: str, *, tiny: bool = False) -> PretrainedConfig:
    """Return the configuration of a base at its published size, or of a tiny one of its family."""
    kind, shape = PUBLISHED[model]
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return kind(**{**shape, **(TINY if tiny else {}), **ids, "tie_word_embeddings": True})


def random_base(
    model: str, device: str, *, tokenizer: Path | None = None, tiny: bool = False, seed: int = 0
) -> FrozenBase:
    """Return a base with random weights, made on its device in the type and with the attention of a real one.

    Args:
        tokenizer: Folder of one to use instead of a token a word; its vocabulary must not exceed the base's.
        seed: Of the weights, which are the same in every process on the same kind of device.

    Raises:
        ConfigError: A tokenizer that knows more tokens than the base.
    """
    torch.manual_seed(seed)
    config = base_config(model, tiny=tiny)
    words = word_tokenizer(config.vocab_size) if tokenizer is None else AutoTokenizer.from_pretrained(tokenizer)
    if len(words) > config.vocab_size:
        raise ConfigError(f"tokenizer: must have at most the base's {config.vocab_size} tokens, got {len(words)}")
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(config, dtype=pick_dtype(device))
    return FrozenBase(network.to(device), words, attention=pick_attention("auto", device, config.model_type))


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer with one token a word; all but `w0`, `w1`, ... are unknown to it."""
    tokens = [*SPECIAL, *(f"w{number}" for number in range(vocab_size - len(SPECIAL)))]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class DocumentShape:
    """What an invented document has.

    Args:
        atom_tokens: Of the longest atom; lengths are even between a quarter of it and all.
        questions: One of them cannot be answered.
        answer_tokens: Of the longest answer; lengths are even between 1 and that.
        longest: Give every atom and answer its greatest length.
    """

    atoms: int = 64
    atom_tokens: int = 96
    questions: int = 8
    answer_tokens: int = 128
    longest: bool = False


def documents(count: int, shape: DocumentShape, *, num_words: int = NUM_WORDS, seed: int = 0) -> list[AnnotationRecord]:
    """Return invented documents, two an article, whose context is all their atoms one after the other."""
    rng = random.Random(seed)
    return [_document(number, shape, rng, num_words) for number in range(count)]


def _document(number: int, shape: DocumentShape, rng: random.Random, num_words: int) -> AnnotationRecord:
    def words(least: int, most: int) -> str:
        length = most if shape.longest else rng.randint(least, most)
        return " ".join(f"w{rng.randrange(num_words)}" for _ in range(length))

    contents = [words(max(1, shape.atom_tokens // 4), shape.atom_tokens) for _ in range(shape.atoms)]
    atoms, begin = [], 0
    for place, content in enumerate(contents):
        atoms.append(
            Atom(
                atom_id=f"atom_{place}",
                semantic_type="fact_claim",
                content=content,
                source_span=content,
                retrieval_text="",
                conflict_group="same" if place < 2 else None,
                confidence=round(rng.uniform(0.2, 1.0), 2),
                char_start=begin,
                char_end=begin + len(content),
            )
        )
        begin += len(content) + 1
    questions = [
        _question(place, contents, words(1, shape.answer_tokens), is_irrelevant=place == shape.questions - 1)
        for place in range(shape.questions)
    ]
    return AnnotationRecord(
        context=" ".join(contents), title=f"Article {number // 2}", atoms=tuple(atoms), qa_pairs=tuple(questions)
    )


def _question(place: int, contents: list[str], answer: str, *, is_irrelevant: bool) -> Question:
    """Ask with an atom's first words; it and the next one are gold, the third is a distractor."""
    gold, second, distractor = (f"atom_{(place + i) % len(contents)}" for i in range(3))
    first_words = contents[place % len(contents)].split()[:QUESTION_WORDS]
    return Question(
        question_id=f"q{place}",
        question=" ".join(first_words),
        answers=() if is_irrelevant else (answer,),
        gold_atom_ids=() if is_irrelevant else (gold, second),
        distractor_atom_ids=(distractor,),
        is_irrelevant=is_irrelevant,
        question_type="irrelevant" if is_irrelevant else "multi_hop",
    )


class NotAsked:
    """Stands where a run's held-out passages are, and says that all is well."""

    def evaluate(self) -> dict[str, float]:
        """Return a loss of nothing."""
        return {"loss": 0.0}
