"""Protocols: LongBench's prompts to the letter, its truncation, and our own prompt for all else."""

import hashlib

import pytest

from models.errors import ConfigError
from tests.models.tiny import tiny_tokenizer
from training.bench.protocols import OfficialPrompt, max_prompt_tokens, protocol_for
from training.bench.samples import Suite


def suite(dataset: str, name: str = "") -> Suite:
    facts = {"contexts": (), "samples": (), "num_total": 0, "is_complete": True}
    return Suite(name=name or dataset, dataset=dataset, metric="qa_f1", **facts)


# SHA-256 of each template in LongBench's own file, its first 16 digits, and its new tokens.
PUBLISHED = {
    "narrativeqa": ("aada7ed24b06abac", 128),
    "qasper": ("0fbdd123fe7f83d6", 128),
    "multifieldqa_en": ("20b4666a2de8a1f7", 64),
    "multifieldqa_zh": ("344b3a4e557cd547", 64),
    "hotpotqa": ("9ec4ae308865bd0c", 32),
    "2wikimqa": ("9ec4ae308865bd0c", 32),
    "musique": ("9ec4ae308865bd0c", 32),
    "triviaqa": ("00a802e6377e72fc", 32),
}


@pytest.mark.parametrize("subset", PUBLISHED)
def test_prompts_and_limits_of_longbench_are_those_published(subset: str) -> None:
    protocol = protocol_for("official", suite(f"longbench/{subset}"))
    digest = hashlib.sha256(protocol.official.template.encode()).hexdigest()[:16]
    assert (digest, protocol.max_new_tokens) == PUBLISHED[subset]
    assert protocol.official.in_chat == (subset != "triviaqa")


def test_the_papers_protocol_and_sets_without_prompts_of_their_own_take_ours() -> None:
    for protocol in (protocol_for("paper", suite("longbench/hotpotqa")), protocol_for("official", suite("squad"))):
        assert protocol.official is None
        assert (protocol.max_new_tokens, protocol.max_context_tokens) == (128, 8192)


def test_a_suite_of_refusal_is_asked_as_the_set_that_it_is_of() -> None:
    asked = protocol_for("official", suite("longbench/musique", "refusal/longbench/musique"))
    assert asked.max_new_tokens == 32 and "given passages" in asked.official.template


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="protocol must be one of paper, official, got 'ours'"):
        protocol_for("ours", suite("squad"))


def test_an_official_prompt_is_one_turn_of_the_user() -> None:
    tokenizer = tiny_tokenizer()
    prompt = OfficialPrompt(template="Read {context} Question: {input}")
    text = tokenizer.decode(prompt.ids(tokenizer, "Who?", "{The} mill.", num_positions=512))
    assert text == "<bos><|im_start|>user\nRead {The} mill. Question: Who?<|im_end|>\n<|im_start|>assistant\n"


def test_a_few_shot_prompt_is_plain_text_to_go_on_with() -> None:
    tokenizer = tiny_tokenizer()
    prompt = protocol_for("official", suite("longbench/triviaqa")).official
    text = tokenizer.decode(prompt.ids(tokenizer, "Passage: the mill. Answer:", "Passage: x", num_positions=512))
    assert text.startswith("Answer the question based on the given passage.")
    assert text.endswith("examples.\n\nPassage: x\n\nPassage: the mill. Answer:")


def test_without_a_text_the_prompt_begins_behind_it() -> None:
    tokenizer = tiny_tokenizer()
    prompt = protocol_for("official", suite("longbench/multifieldqa_en")).official
    text = tokenizer.decode(prompt.ids(tokenizer, "Who?", None, num_positions=1024))
    assert "user\nNow, answer the following question" in text and "Question: Who?\nAnswer:<|im_end|>" in text


def test_a_long_prompt_loses_its_middle_and_keeps_both_ends() -> None:
    tokenizer = tiny_tokenizer()
    prompt = OfficialPrompt(template="<{context}|{input}>", in_chat=False)
    # 20 positions: 10 tokens, the first 5 and the last 5; a character is a token.
    text = tokenizer.decode(prompt.ids(tokenizer, "why", "abcdefghijklmnopqrstuvwxyz", num_positions=20))
    assert text == "<abcd|why>"
    # "<ab|why>" has 8 tokens, which fit.
    assert tokenizer.decode(prompt.ids(tokenizer, "why", "ab", num_positions=20)) == "<ab|why>"


def test_the_limit_of_a_prompt_is_longbenchs_for_bases_of_its_sizes() -> None:
    sizes = (4096, 8192, 16384, 32768, 262144)
    assert [max_prompt_tokens(size) for size in sizes] == [3500, 7500, 15500, 31500, 31500]
    assert max_prompt_tokens(512) == 256
