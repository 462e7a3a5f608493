"""Bases with random weights at their published size, made where they run; nothing is downloaded.

What such a model answers means nothing; what it costs is real. Its tokenizer gives a token a word, so that texts of a
given number of tokens can be written.
"""

from __future__ import annotations

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

from models.base import FrozenBase, pick_attention, pick_dtype
from models.errors import ConfigError

SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

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
# A memory that fits the tiny bases.
TINY_SPEC = {"num_memory_layers": 2, "num_encoder_layers": 3, "d_embed": 24, "d_key": 12, "d_latent": 8, "rank": 4}


def base_config(model: str, *, tiny: bool = False) -> PretrainedConfig:
    """Return the configuration of a base at its published size, or of a tiny one of its family.

    Raises:
        ConfigError: A model whose published shape is not known here.
    """
    if model not in PUBLISHED:
        raise ConfigError(f"size: only {', '.join(PUBLISHED)} have a published shape here, got {model!r}")
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
        ConfigError: An unknown model, or a tokenizer that knows more tokens than the base.
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
