"""The prompt: one chat template, the system text folded into the user's turn where there is no such role."""

import copy

import pytest

from models.prompts import INSTRUCTION, end_ids, num_behind, prompt_ids, question_lengths, refusal_ids
from tests.models.tiny import tiny_tokenizer

QUESTION = "Where is the mill?"


def test_the_prompt_is_the_chat_template_over_instruction_and_question() -> None:
    tokenizer = tiny_tokenizer()
    expected = (
        f"<bos><|im_start|>system\n{INSTRUCTION}<|im_end|>\n<|im_start|>user\nQuestion: {QUESTION}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = prompt_ids(tokenizer, QUESTION)
    assert tokenizer.decode(ids) == expected
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_template_without_a_system_role_gets_the_instruction_in_the_users_turn() -> None:
    tokenizer = tiny_tokenizer(system_role=False)
    text = tokenizer.decode(prompt_ids(tokenizer, QUESTION))
    assert "system" not in text
    assert f"user\n{INSTRUCTION}\n\nQuestion: {QUESTION}<|im_end|>" in text


def test_a_template_that_drops_the_system_turn_gets_the_instruction_too() -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}"
    assert tokenizer.decode(prompt_ids(tokenizer, QUESTION)) == f"{INSTRUCTION}\n\nQuestion: {QUESTION}"


@pytest.mark.parametrize("system_role", [True, False])
def test_context_stands_before_the_question(system_role: bool) -> None:
    tokenizer = tiny_tokenizer(system_role=system_role)
    text = tokenizer.decode(prompt_ids(tokenizer, QUESTION, "The mill is in Orla."))
    assert f"Context: The mill is in Orla.\n\nQuestion: {QUESTION}<|im_end|>" in text


@pytest.mark.parametrize("question", ["Who?", "When was Port 7 opened?", "7"])
def test_a_questions_tokens_are_found_in_its_prompt(question: str) -> None:
    tokenizer = tiny_tokenizer()
    ids, behind = prompt_ids(tokenizer, question, "It rains."), num_behind(tokenizer)
    [length] = question_lengths(tokenizer, [question])
    assert tokenizer.decode(ids[-behind - length : -behind]) == f" {question}"


def test_a_refusal_is_the_bare_word() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(refusal_ids(tokenizer)) == "unanswerable"


@pytest.mark.parametrize(
    ("model_eos", "expected"), [(None, {3, 5}), (3, {3, 5}), ([3, 7], {3, 5, 7})], ids=["none", "one", "several"]
)
def test_an_answer_ends_at_the_models_the_tokenizers_and_the_templates_ends(
    model_eos: int | list[int] | None, expected: set[int]
) -> None:
    # <eos> is 3 and <|im_end|> is 5; turn ends that this vocabulary lacks do not count as <unk>
    assert end_ids(tiny_tokenizer(), model_eos) == expected
