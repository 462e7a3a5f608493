"""Tiny random Llama, Gemma 2 and Qwen 3 models with a tokenizer, for proofs that need exact arithmetic.

Six layers, grouped heads and float32. Gemma 2 soft-caps and slides over 8 tokens on every other layer; Qwen 3
normalises queries and keys. Weights are large enough that a wrong mask or position moves the logits visibly.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from models.base import FrozenBase
from models.encoder import pad
from models.network import MemoryNetwork
from models.presets import KVSpec, MemorySpec, RouterSpec

FAMILIES = ("llama", "gemma2", "qwen3")
RECIPES = ("paper", "d2a")
NUM_LAYERS = 6
NUM_MEMORY_LAYERS = 2
WINDOW = 8  # tokens that a sliding layer of the tiny Gemma 2 sees
SPECIAL = ["<pad>", "<unk>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "<bos>{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHAT_TEMPLATE
)

_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "initializer_range": 0.15,
}


@functools.cache
def tiny_tokenizer(*, system_role: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a character, so that a text's length is its number of tokens."""
    alphabet = [chr(c) for c in range(32, 127)] + ["\n"]
    vocabulary = {token: number for number, token in enumerate(SPECIAL + alphabet)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE if system_role else NO_SYSTEM_TEMPLATE
    return tokenizer


def tiny_config(family: str) -> PretrainedConfig:
    """Return the configuration of a tiny model of `family`."""
    shape = {**_SHAPE, "vocab_size": len(tiny_tokenizer())}
    if family == "llama":
        return LlamaConfig(**shape)
    if family == "qwen3":
        return Qwen3Config(**shape)
    kinds = ["sliding_attention", "full_attention"] * (NUM_LAYERS // 2)
    return Gemma2Config(
        **shape,
        sliding_window=WINDOW,
        layer_types=kinds,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=8.0,
    )


def tiny_model(family: str, *, seed: int = 0) -> PreTrainedModel:
    """Return a random float32 model of `family`; its norms differ from one another."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def tiny_base(family: str, *, seed: int = 0, attention: str | None = None) -> FrozenBase:
    """Return a tiny model as a frozen base; Gemma 2 gets eager attention, the others sdpa."""
    attention = attention or ("eager" if family == "gemma2" else "sdpa")
    tokenizer = tiny_tokenizer(system_role=family != "gemma2")
    return FrozenBase(tiny_model(family, seed=seed), tokenizer, attention=attention)


def tiny_spec(
    recipe: str = "d2a", *, kv: dict | None = None, router: dict | None = None, **changes: object
) -> MemorySpec:
    """Return a narrow memory of two layers under `recipe`; `kv`, `router` and `changes` replace single fields."""
    d2a = recipe == "d2a"
    spec = MemorySpec(
        recipe=recipe,
        num_memory_layers=NUM_MEMORY_LAYERS,
        num_encoder_layers=3,
        d_embed=24,
        d_key=12,
        d_latent=6 if d2a else 24,
        rank=4,
        alpha=8.0,
        gate="update" if d2a else "factors",
        max_atom_tokens=24,
        kv=KVSpec(source="tokens", num_slots=24, scale="logits") if d2a else KVSpec(num_slots=3),
        router=RouterSpec(lexical=d2a, null_slot=d2a),
    )
    return replace(spec, kv=replace(spec.kv, **(kv or {})), router=replace(spec.router, **(router or {})), **changes)


def tiny_network(base: FrozenBase, spec: MemorySpec | None = None, *, seed: int = 1) -> MemoryNetwork:
    """Return a memory for `base` whose B and mask heads are no longer at their starting values."""
    torch.manual_seed(seed)
    network = MemoryNetwork(spec or tiny_spec(), base)
    with torch.no_grad():
        compiler = network.compiler
        if compiler.shared is not None:
            for parameter in compiler.shared.parameters():
                parameter.normal_(std=0.3)
        else:
            for parameter in (*compiler.b_heads.parameters(), *compiler.a_heads.parameters()):
                parameter.normal_(std=0.3)
            compiler.mask_head.weight.normal_(std=0.5)
            compiler.mask_head.bias.normal_(std=0.5)
        network.router.metadata.normal_()
    return network.eval()


def random_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return token ids of printable characters."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL), len(tiny_tokenizer()), shape, generator=generator)


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of prompts that end together, as transformers wants them."""
    ids_BL, mask_BL = pad([prompt[::-1] for prompt in prompts], "cpu")
    return ids_BL.flip(1), mask_BL.flip(1)


def whole_logits(base: FrozenBase, ids_BL: torch.Tensor, mask_BL: torch.Tensor | None = None) -> torch.Tensor:
    """Return the model's own logits, positions counted over real tokens."""
    mask_BL = torch.ones_like(ids_BL, dtype=torch.bool) if mask_BL is None else mask_BL
    positions_BL = (mask_BL.long().cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        return base.model(ids_BL, attention_mask=mask_BL, position_ids=positions_BL, use_cache=False).logits
