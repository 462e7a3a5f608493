"""Protocols: how many tokens a system may read and write, and the prompts that LongBench prescribes.

`paper` asks every system the same way, by `models.prompts`. `official` takes LongBench's own prompts, limits and
truncation for its subsets; the other sets prescribe metrics alone, so that under both protocols they are asked alike.
Neither holds the metric: both scores are in every row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.errors import ConfigError
from training.bench.samples import Suite

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROTOCOLS = ("paper", "official")
# Paper, appendix, "Implementation details"; which end of a longer context goes is not said.
MAX_NEW_TOKENS, MAX_CONTEXT_TOKENS = 128, 8192
# The longest prompt among LongBench's own models, which go up to 32k positions.
MAX_LONGBENCH_TOKENS = 31_500

_BRIEF = "Only give me the answer and do not output any other words."
_STORY = "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
_PAPER = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.\n\n'
)
_PASSAGES = (
    f"Answer the question based on the given passages. {_BRIEF}\n\n"
    "The following are given passages.\n{context}\n\n"
    f"Answer the question based on the given passages. {_BRIEF}\n\n"
    "Question: {input}\nAnswer:"
)


@dataclass(frozen=True, kw_only=True)
class OfficialPrompt:
    """A prompt of LongBench, as published with its slips ("asconcisely", a blank before "Answer the question").

    Args:
        template: With `{context}` and `{input}`, the question.
        in_chat: The prompt is a user's turn; a few-shot prompt is plain text to go on with.
    """

    template: str
    in_chat: bool = True

    def ids(
        self, tokenizer: PreTrainedTokenizerBase, question: str, context: str | None, *, num_positions: int
    ) -> list[int]:
        """Return the prompt's token ids; of a prompt that is too long the middle is left out.

        Args:
            context: Whole. None leaves out all that comes before the text's end, a form that LongBench does not have.
            num_positions: Of the base; tells how long a prompt may be.
        """
        if context is None:
            text = self.template.partition("{context}")[2].lstrip().format(input=question)
        else:
            text = self.template.format(context=context, input=question)
        text = _without_middle(tokenizer, text, max_prompt_tokens(num_positions))
        if not self.in_chat:
            return tokenizer(text)["input_ids"]
        turn = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=False)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a suite is asked.

    Args:
        max_context_tokens: Of the text in the prompt of `models.prompts`.
        official: The prompt of systems that were not trained with that of `models.prompts`; None for the same one.
    """

    name: str
    max_new_tokens: int = MAX_NEW_TOKENS
    max_context_tokens: int = MAX_CONTEXT_TOKENS
    official: OfficialPrompt | None = None


# Prompts and answers' tokens of the question answering subsets (LongBench v1, dataset2prompt and dataset2maxlen).
_LONGBENCH = {
    "narrativeqa": (
        OfficialPrompt(
            template="You are given a story, which can be either a novel or a movie script, and a question. "
            f"Answer the question {_STORY}"
            "Story: {context}\n\n"
            f"Now, answer the question based on the story {_STORY}"
            "Question: {input}\n\nAnswer:"
        ),
        128,
    ),
    "qasper": (
        OfficialPrompt(
            template=f"You are given a scientific article and a question. Answer the question {_PAPER}"
            "Article: {context}\n\n "
            f"Answer the question based on the above article {_PAPER}"
            "Question: {input}\n\nAnswer:"
        ),
        128,
    ),
    "multifieldqa_en": (
        OfficialPrompt(
            template="Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question "
            "based on the above text, only give me the answer and do not output any other words.\n\n"
            "Question: {input}\nAnswer:"
        ),
        64,
    ),
    "multifieldqa_zh": (
        OfficialPrompt(
            template="阅读以下文字并用中文简短回答：\n\n{context}\n\n"
            "现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n问题：{input}\n回答："
        ),
        64,
    ),
    "hotpotqa": (OfficialPrompt(template=_PASSAGES), 32),
    "2wikimqa": (OfficialPrompt(template=_PASSAGES), 32),
    "musique": (OfficialPrompt(template=_PASSAGES), 32),
    "triviaqa": (
        OfficialPrompt(
            template=f"Answer the question based on the given passage. {_BRIEF} The following are some examples.\n\n"
            "{context}\n\n{input}",
            in_chat=False,
        ),
        32,
    ),
}


def protocol_for(name: str, suite: Suite) -> Protocol:
    """Return how to ask a suite.

    Args:
        name: One of `PROTOCOLS`.

    Raises:
        ConfigError: Another name.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")
    subset = suite.dataset.removeprefix("longbench/")
    if name == "paper" or subset == suite.dataset:
        return Protocol(name=name)
    official, max_new_tokens = _LONGBENCH[subset]
    return Protocol(name=name, max_new_tokens=max_new_tokens, official=official)


def max_prompt_tokens(num_positions: int) -> int:
    """Return LongBench's limit for a base: 3,500 for 4k positions, 7,500 for 8k, and so on up to 32k.

    Bases with fewer than 2k positions, which it does not have, may fill half of them.
    """
    return min(MAX_LONGBENCH_TOKENS, max(1000 * (num_positions // 1024) - 500, num_positions // 2))


def _without_middle(tokenizer: PreTrainedTokenizerBase, text: str, max_tokens: int) -> str:
    """Keep the first and the last half of the tokens that a prompt may have."""
    ids, half = tokenizer(text)["input_ids"], max_tokens // 2
    if len(ids) <= max_tokens:
        return text
    return "".join(tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:]))
