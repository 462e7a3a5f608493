"""What frozen features are made of: texts, their token ids, and the key that names exactly these features.

Holds no tensors of the base. Everything that a feature depends on goes into the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from models.base import SHARED_PREFIX, FrozenBase
from models.presets import MemorySpec
from models.prompts import REFUSAL, end_ids, prompt_ids
from training.config import TrainConfig
from training.features.ragged import Ragged

FORMAT_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts of a training set.

    Args:
        answers: One target a question; unanswerable ones give the refusal.
        contexts: The document that the teacher reads, one a question; None for no teacher.
    """

    atoms: Sequence[str]
    questions: Sequence[str]
    answers: Sequence[str]
    contexts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        assert len(self.answers) == len(self.questions), "every question needs a target"
        assert self.contexts is None or len(self.contexts) == len(self.questions), "every question needs a context"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token ids in host memory.

    Args:
        prompt: One a question, without context; the first `head` tokens are the same in all of them.
        reply: R answers, each cut to the limit, with the token that ends it: first one a question, then the
            refusal of every question whose answer is another.
        question_R: Which question each reply belongs to.
        refusal_Q: Which reply is each question's refusal.
        teacher: Prompts with context, one a question; None for no teacher.
    """

    atom: Ragged
    question: Ragged
    prompt: Ragged
    head: int
    reply: Ragged
    question_R: Tensor
    refusal_Q: Tensor
    teacher: Ragged | None

    @property
    def target_length_R(self) -> Tensor:
        """Length of prompt and reply together."""
        return self.prompt.length_N[self.question_R] + self.reply.length_N


def tokenise(base: FrozenBase, spec: MemorySpec, config: TrainConfig, texts: Texts) -> Tokens:
    """Turn all texts into token ids."""
    tokenizer = base.tokenizer
    end = min(end_ids(tokenizer, base.model.generation_config.eos_token_id))
    others = [q for q, answer in enumerate(texts.answers) if answer != REFUSAL]
    refusal_Q = torch.arange(len(texts.questions))
    refusal_Q[others] = torch.arange(len(others)) + len(texts.questions)
    replies = _ids(tokenizer, [*texts.answers, *[REFUSAL] * len(others)])
    prompt = Ragged.of_ids([prompt_ids(tokenizer, q) for q in texts.questions])
    pairs = zip(texts.questions, cut_texts(tokenizer, texts.contexts or (), config.max_context_tokens), strict=False)
    return Tokens(
        atom=Ragged.of_ids(_text_ids(base, spec, texts.atoms)),
        question=Ragged.of_ids(_text_ids(base, spec, texts.questions)),
        prompt=prompt,
        head=_common_head(prompt),
        reply=Ragged.of_ids([[*r[: config.max_answer_tokens], end] for r in replies]),
        question_R=torch.tensor([*range(len(texts.questions)), *others], dtype=torch.long),
        refusal_Q=refusal_Q,
        teacher=None if texts.contexts is None else Ragged.of_ids([prompt_ids(tokenizer, q, c) for q, c in pairs]),
    )


def _ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any) -> list[list[int]]:
    return tokenizer(list(texts), add_special_tokens=False, **options)["input_ids"] if texts else []


def _text_ids(base: FrozenBase, spec: MemorySpec, texts: Sequence[str]) -> list[list[int]]:
    """Ids as `models.encoder.text_features` takes them; an empty text is one token of the shared prefix."""
    ids = _ids(base.tokenizer, texts, truncation=True, max_length=spec.max_atom_tokens)
    return [i or [base.prefix_ids[-1]] for i in ids]


def cut_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int) -> list[str]:
    """Cut texts to a number of tokens, at the end of the last token's text."""
    known: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        spans = tokenizer(
            text, add_special_tokens=False, truncation=True, max_length=max_tokens, return_offsets_mapping=True
        )["offset_mapping"]
        known[text] = text if len(spans) < max_tokens else text[: spans[-1][1]]
    return [known[text] for text in texts]


def _common_head(rows: Ragged) -> int:
    """How many first tokens are the same in all rows; every row keeps at least one of its own."""
    length_N = rows.length_N
    if not len(length_N):
        return 0
    first_NS = rows.flat_TD[rows.offset_N1[:-1, None] + torch.arange(int(length_N.min()) - 1)]
    return int((first_NS == first_NS[0]).all(0).long().cumprod(0).sum())


def cache_key(base: FrozenBase, spec: MemorySpec, config: TrainConfig, texts: Texts) -> tuple[str, dict[str, Any]]:
    """Name the features of some texts.

    Returns:
        32 hex digits, and what they stand for, as plain data. Any change of it is another key.
    """
    tokenizer = base.tokenizer
    prompt = [REFUSAL, SHARED_PREFIX, prompt_ids(tokenizer, "Who?", "A text."), prompt_ids(tokenizer, "?")]
    parts = {
        "format": FORMAT_VERSION,
        "base": base.fingerprint(),
        "dtype": str(base.dtype),
        "tokenizer": _digest([tokenizer.backend_tokenizer.to_str(), str(tokenizer.chat_template)]),
        "prompt": _digest([json.dumps(prompt), str(base.model.generation_config.eos_token_id)]),
        "memory_layers": spec.num_memory_layers,
        "encoder_layers": spec.num_encoder_layers,
        "token_states": spec.kv.source == "tokens",
        "atom_layers": keeps_layers(spec, config),
        "max_atom_tokens": spec.max_atom_tokens,
        "max_answer_tokens": config.max_answer_tokens,
        "data": {name: _digest(getattr(texts, name)) for name in ("atoms", "questions", "answers")},
        "teacher": texts.contexts is not None
        and {
            "contexts": _digest(texts.contexts),
            "max_context_tokens": config.max_context_tokens,
            "top_k": config.distill_top_k,
            "temperature": config.distill_temperature,
        },
    }
    return _digest([json.dumps(parts, sort_keys=True)]), parts


def keeps_layers(spec: MemorySpec, config: TrainConfig) -> bool:
    """Tell whether a cache keeps the atoms' states at every memory layer: where asked, and where they differ."""
    return config.cache_atom_layers and spec.kv.source == "tokens" and spec.kv.depth == "layer"


def _digest(texts: Iterable[str]) -> str:
    """32 hex digits of some texts, their number and their borders."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]
