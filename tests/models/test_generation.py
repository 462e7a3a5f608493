"""Greedy generation: cached equals uncached, batched equals single, ours equals transformers' own."""

import pytest
import torch
from torch.testing import assert_close

from models.base import FrozenBase
from models.composer import compose
from models.encoder import text_features
from models.generation import Prefill, continue_greedily, prefill, refusal_beginnings
from models.injection import ComposedAdapter, attached
from models.microkv import pad_entry, token_slots
from models.prompts import end_ids, prompt_ids, refusal_ids
from tests.models.tiny import FAMILIES, left_padded, random_ids, tiny_base, tiny_network, tiny_spec, whole_logits

PROMPTS = [random_ids(n, seed=n).tolist() for n in (5, 14, 9)]  # 14 and 9 are past Gemma 2's window of 8
NUM_NEW = 10


def _memory(base: FrozenBase) -> ComposedAdapter:
    """Micro-LoRA and micro-KV of two atoms."""
    network = tiny_network(base, tiny_spec())
    with torch.no_grad():
        features = text_features(base, network.spec, ["A mill in Orla.", "Rye"], with_entry=True)
        _, latent_NZ = network.compile_atoms(features.pooled_ND)
        weight_BK = torch.tensor([[0.6, 0.3]])
        return compose(
            network.compiler,
            weight_BK,
            weight_BK.log(),
            latent_BKZ=latent_NZ[None],
            slots=token_slots(base, network.compiler, *pad_entry(base, features.entry)),
            slot_rows_BK=torch.tensor([[0, 1]]),
        )


def _uncached(base: FrozenBase, prompt: list[int]) -> list[int]:
    ids, ends = list(prompt), end_ids(base.tokenizer, base.model.generation_config.eos_token_id)
    for _ in range(NUM_NEW):
        token = int(whole_logits(base, torch.tensor([ids]))[0, -1].argmax())
        if token in ends:
            break
        ids.append(token)
    return ids[len(prompt) :]


def _read(base: FrozenBase, prompts: list[list[int]]) -> Prefill:
    return prefill(base, prompts, refusal_ids(base.tokenizer))


@pytest.mark.parametrize("with_memory", [False, True], ids=["bare", "memory"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_generation_equals_the_uncached_loop_also_padded(family: str, with_memory: bool) -> None:
    base = tiny_base(family)
    with attached(base, _memory(base) if with_memory else None):
        expected = [_uncached(base, prompt) for prompt in PROMPTS]
        singles = [continue_greedily(base, _read(base, [prompt]), max_new_tokens=NUM_NEW)[0] for prompt in PROMPTS]
        together = continue_greedily(base, _read(base, PROMPTS), max_new_tokens=NUM_NEW)
    assert singles == expected
    assert together == expected
    assert len({tuple(answer) for answer in expected}) == len(PROMPTS)


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_changes_what_is_generated(family: str) -> None:
    base = tiny_base(family)
    bare = [_uncached(base, prompt) for prompt in PROMPTS]
    with attached(base, _memory(base)):
        assert [_uncached(base, prompt) for prompt in PROMPTS] != bare


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_generate_gives_the_same_ids(family: str) -> None:
    base = tiny_base(family)
    ids_BL, mask_BL = left_padded(PROMPTS)
    with attached(base, _memory(base)):
        ours = continue_greedily(base, _read(base, PROMPTS), max_new_tokens=NUM_NEW)
        theirs = base.model.generate(
            input_ids=ids_BL, attention_mask=mask_BL.long(), max_new_tokens=NUM_NEW, do_sample=False
        )[:, ids_BL.shape[1] :]
    ends = end_ids(base.tokenizer, base.model.generation_config.eos_token_id) | {0}
    for answer, row in zip(ours, theirs.tolist(), strict=True):
        cut = next((i for i, token in enumerate(row) if token in ends), len(row))
        assert answer == row[:cut]


@pytest.mark.parametrize("family", FAMILIES)
def test_refusal_logprob_is_the_probability_of_refusing_first(family: str) -> None:
    base = tiny_base(family)
    refusal = refusal_ids(base.tokenizer)
    with attached(base, _memory(base)):
        state = _read(base, PROMPTS)
        for row, prompt in enumerate(PROMPTS):
            logits = whole_logits(base, torch.tensor([prompt + refusal]))[0]
            logprob = logits.log_softmax(-1)
            steps = range(len(prompt) - 1, len(prompt) - 1 + len(refusal))
            direct = sum(logprob[step, token] for step, token in zip(steps, refusal, strict=True))
            assert_close(state.refusal_logprob_B[row], direct, atol=1e-4, rtol=0)
            assert_close(state.next_logits_BV[row], logits[len(prompt) - 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_scoring_a_refusal_leaves_no_trace_in_the_cache(family: str) -> None:
    base = tiny_base(family)
    answers = [
        continue_greedily(base, prefill(base, PROMPTS, probe), max_new_tokens=NUM_NEW) for probe in ([9], [40] * 20)
    ]
    assert answers[0] == answers[1]


def test_generation_stops_at_any_end_token() -> None:
    base = tiny_base("llama")
    full = _uncached(base, PROMPTS[0])
    base.model.generation_config.eos_token_id = [3, full[3]]
    [answer] = continue_greedily(base, _read(base, PROMPTS[:1]), max_new_tokens=NUM_NEW)
    assert answer == full[: full.index(full[3])]


def test_tokens_are_streamed_as_they_come() -> None:
    base = tiny_base("llama")
    seen: list[list[int]] = []
    [answer, _] = continue_greedily(
        base, _read(base, PROMPTS[:2]), max_new_tokens=4, on_token=lambda ids: seen.append(list(ids))
    )
    assert seen == [answer[:n] for n in range(1, len(answer) + 1)]
    assert len(answer) == 4


def test_only_what_would_be_refused_begins_otherwise_and_goes_on_greedily(monkeypatch) -> None:
    base = tiny_base(FAMILIES[0])
    refusal = _uncached(base, PROMPTS[0])[:2]  # as if the first answer were a refusal
    start = prefill(base, PROMPTS[:2], refusal)
    assert start.refuses_B.tolist() == [True, False]
    best, second = start.next_logits_BV[0].topk(2).indices.tolist()
    monkeypatch.setattr("models.generation.refusal_beginnings", lambda _: (best, int(start.next_logits_BV[1].argmax())))
    forced, free = continue_greedily(base, start.answering(base.tokenizer), max_new_tokens=3)
    assert forced == [second, *_uncached(base, [*PROMPTS[0], second])[:2]]
    assert free == _uncached(base, PROMPTS[1])[:3]
    assert int(start.next_logits_BV[0].argmax()) == best  # the prompt itself is as it was


def test_an_answer_that_only_begins_like_the_refusal_is_none() -> None:
    base = tiny_base(FAMILIES[0])
    first, second = _uncached(base, PROMPTS[0])[:2]
    assert not prefill(base, PROMPTS[:1], [first, second + 1]).refuses_B.item()


def test_whatever_begins_a_refusal_is_found_in_any_spelling_and_nothing_else() -> None:
    tokens = [" un", "Un", "UNANSWER", "unanswerable", "under", "answerable", "7", ' "', "\u00b6", "<end>"]

    class Tokenizer:
        all_special_ids = (9,)

        def get_vocab(self) -> dict[str, int]:
            return {token.replace(" ", "\u0120"): i for i, token in enumerate(tokens)}

        def batch_decode(self, ids: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
            return ["" if skip_special_tokens and i == 9 else tokens[i] for (i,) in ids]

    assert [tokens[i] for i in refusal_beginnings(Tokenizer())] == [*tokens[:4], *tokens[7:]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_question_is_scored_by_its_own_tokens_in_the_prompt_also_padded(family: str) -> None:
    base = tiny_base(family)
    tokenizer, questions = base.tokenizer, ["Who?", "Which tower is old?"]
    prompts = [prompt_ids(tokenizer, questions[0], "It rains."), prompt_ids(tokenizer, questions[1])]
    behind = len(tokenizer("<|im_end|>\n<|im_start|>assistant\n")["input_ids"])
    with attached(base, _memory(base)):
        scored = prefill(base, prompts, refusal_ids(tokenizer), questions=questions).question_logprob_BQ
        for row, (prompt, question) in enumerate(zip(prompts, questions, strict=True)):
            logprob = whole_logits(base, torch.tensor([prompt]))[0].log_softmax(-1)
            end = len(prompt) - behind
            asked = range(end - len(question) - 1, end)  # a token a character, and the space before it
            assert tokenizer.decode([prompt[i] for i in asked]) == f" {question}"
            expected = torch.stack([logprob[i - 1, prompt[i]] for i in asked])
            before, own = scored[row].split([scored.shape[1] - len(asked), len(asked)])
            assert_close(own, expected, atol=1e-4, rtol=0)
            assert before.tolist() == [0.0] * len(before)
