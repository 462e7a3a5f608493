from types import SimpleNamespace

import pytest
import torch

from models.base import FrozenBase
from models.generation import continue_greedily, prefill
from models.injection import ComposedAdapter, LayerPrefix, attached
from models.prompts import all_prompt_ids
from tests.models.tiny import tiny_base, tiny_model, tiny_network, tiny_tokenizer
from tests.training.bench.worlds import bank_of
from training.bench.bank import taken
from training.bench.systems.decoding import BatchLimits, _rows, batch_limits, batches, decode, read_limits
from training.bench.systems.replay import FixedStep, can_fix

PROMPTS = [[5, 9, 11], [7, 8, 30, 31, 12, 9], [40], [5, 6]]


def plain(base, prompts, adapter, limit):
    with attached(base, adapter):
        start = prefill(base, prompts, [20, 21])
        return continue_greedily(base, start, max_new_tokens=limit), start.refusal_logprob_B.tolist()


def own_adapter(base):
    """Return the adapter of four questions, each routed in its own bank."""
    bank = bank_of(base, tiny_network(base))
    routed = bank.route(range(4))
    return bank.library.adapter(routed)


def ending_apart(base, adapter, monkeypatch):
    """Let answers end at tokens that some of them say early, some late, and some never."""
    free, _ = plain(base, PROMPTS, adapter, 12)
    ends = {free[0][2], free[1][7], *(() if free[2][4] in free[3] else (free[2][4],))}
    monkeypatch.setattr("models.generation.end_ids", lambda *args: ends)
    monkeypatch.setattr("training.bench.systems.decoding.end_ids", lambda *args: ends)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_answers_are_those_of_the_products_generation_though_rows_leave_the_batch(family, monkeypatch):
    base = tiny_base(family)
    adapter = own_adapter(base)
    ending_apart(base, adapter, monkeypatch)
    expected, logprobs = plain(base, PROMPTS, adapter, 12)
    assert len({len(answer) for answer in expected}) > 1, "all answers end together"
    decoded = decode(base, PROMPTS, adapter, refusal=[20, 21], max_new_tokens=12)
    assert decoded.ids == expected
    assert decoded.refusal_logprob == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("stretch", [2, 5])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_answers_are_the_same_in_stretches_whose_tensors_keep_their_place(family, stretch, monkeypatch):
    base = tiny_base(family)
    adapter = own_adapter(base)
    ending_apart(base, adapter, monkeypatch)
    expected, _ = plain(base, PROMPTS, adapter, 12)
    made = []

    class Counted(FixedStep):
        def __init__(self, *args, **room):
            super().__init__(*args, **room)
            made.append(len(self.next_B))

    for name, value in {"FixedStep": Counted, "STRETCH": stretch}.items():
        monkeypatch.setattr(f"training.bench.systems.decoding.{name}", value)
    assert decode(base, PROMPTS, adapter, refusal=[20, 21], max_new_tokens=12).ids == expected
    assert len(made) > 1 and made[-1] < made[0], "no rows have left"


def test_tensors_keep_their_place_unless_a_cache_slides_or_masks_are_others():
    assert {name: can_fix(tiny_base(name)) for name in ("llama", "qwen3", "gemma2")} == {
        "llama": True,
        "qwen3": True,
        "gemma2": False,
    }
    model = tiny_base("llama").model
    assert not any(can_fix(SimpleNamespace(model=model, attention=name)) for name in ("eager", "flash_attention_2"))


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
def test_prompts_that_are_read_in_parts_are_answered_as_in_one(family, monkeypatch):
    base = tiny_base(family)
    adapter, questions = own_adapter(base), ["w1 w2", "w3", "w4 w5 w6", "w7"]
    prompts = all_prompt_ids(base.tokenizer, questions)
    options = {"refusal": [20, 21], "max_new_tokens": 6, "questions": questions}
    whole = decode(base, prompts, adapter, **options)
    monkeypatch.setattr("training.bench.systems.decoding.CPU_READ_TOKENS", 2 * max(map(len, prompts)))
    read = []
    monkeypatch.setattr(
        "training.bench.systems.decoding.prefill", lambda *args, **rest: read.append(1) or prefill(*args, **rest)
    )
    parts = decode(base, prompts, adapter, **options)
    assert len(read) > 1 and parts.ids == whole.ids and parts.refuses == whole.refuses
    assert parts.refusal_logprob == pytest.approx(whole.refusal_logprob, abs=1e-4)
    assert torch.allclose(parts.question_logprob_BQ, whole.question_logprob_BQ, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_gpu_that_replays_its_steps_answers_as_one_that_does_not(family, monkeypatch):
    base = FrozenBase(tiny_model(family).to("cuda"), tiny_tokenizer())
    key, value = torch.randn(2, len(PROMPTS), 2, 3, 16, generator=torch.Generator().manual_seed(0)).to("cuda")
    slots = LayerPrefix(key_BHSF=key, value_BHSF=value, bias_BS=torch.zeros(len(PROMPTS), 3, device="cuda"))
    adapter = ComposedAdapter(prefix={4: slots, 5: slots})
    ending_apart(base, adapter, monkeypatch)
    expected = decode(base, PROMPTS, adapter, refusal=[20, 21], max_new_tokens=40).ids
    monkeypatch.setattr("training.bench.systems.decoding.STRETCH", 2)
    monkeypatch.setattr("training.bench.systems.decoding.RECORDED_ROWS", 1)
    assert decode(base, PROMPTS, adapter, refusal=[20, 21], max_new_tokens=40).ids == expected
    monkeypatch.setattr("training.bench.systems.decoding.can_fix", lambda _: False)
    assert decode(base, PROMPTS, adapter, refusal=[20, 21], max_new_tokens=40).ids == expected


def test_an_adapter_that_broadcasts_stays_while_rows_leave(monkeypatch):
    base = tiny_base("llama")
    bank = bank_of(base, tiny_network(base))
    routed = bank.route(range(4))
    one = bank.library.adapter(taken(routed, [2]))
    ending_apart(base, one, monkeypatch)
    assert decode(base, PROMPTS, one, refusal=[20], max_new_tokens=9)[0] == plain(base, PROMPTS, one, 9)[0]


def test_what_would_be_refused_is_told_and_begins_otherwise_where_it_may_not(monkeypatch):
    base = tiny_base("llama")
    free = decode(base, PROMPTS, None, refusal=[20], max_new_tokens=4).ids
    refusal = free[0][:2]  # as if the first answer were a refusal
    monkeypatch.setattr("models.generation.refusal_beginnings", lambda _: (refusal[0],))
    refused, kept = (
        decode(base, PROMPTS, None, refusal=refusal, max_new_tokens=4, may_refuse=m) for m in (True, False)
    )
    assert refused.ids == free and refused.refuses == kept.refuses == [ids[:2] == refusal for ids in free]
    changed = [a != b for a, b in zip(free, kept.ids, strict=True)]
    assert changed == refused.refuses and not all(changed)


def test_layers_still_share_a_bias_and_so_a_mask_when_rows_have_left():
    base = tiny_base("llama")
    adapter = own_adapter(base)
    first, last = _rows(adapter, torch.tensor([0, 2])).prefix.values()
    assert first.bias_BS is last.bias_BS
    assert torch.equal(first.bias_BS, next(iter(adapter.prefix.values())).bias_BS[[0, 2]])


def test_an_answer_stops_at_the_limit_of_tokens():
    base = tiny_base("llama")
    answers, *_ = decode(base, PROMPTS, None, refusal=[20], max_new_tokens=3)
    assert max(map(len, answers)) == 3


def test_batches_hold_what_fits_by_tokens_shortest_first():
    # 2 rows of 4 are 8 tokens, 3 of 5 would be 15 > 12; the one of 30 is a batch of its own.
    assert list(batches([30, 4, 5, 4, 5], BatchLimits(tokens=12))) == [[1, 3], [2, 4], [0]]


def test_batches_hold_no_more_rows_than_allowed():
    assert list(batches([1, 1, 1], BatchLimits(tokens=100, rows=2))) == [[0, 1], [2]]


def test_batches_of_long_rows_are_bounded_by_their_squares():
    # 2^15 tokens squared are half of 2^31, so two rows are all that fit.
    assert list(batches([2**15] * 3, BatchLimits(tokens=2**40, squares=2**31))) == [[0, 1], [2]]


def test_nothing_stays_attached_to_the_base():
    base = tiny_base("llama")
    before = decode(base, PROMPTS, None, refusal=[20], max_new_tokens=4)
    decode(base, PROMPTS, own_adapter(base), refusal=[20], max_new_tokens=4)
    assert decode(base, PROMPTS, None, refusal=[20], max_new_tokens=4) == before


def test_plain_attention_holds_scores_of_every_head():
    # The tiny bases have 4 heads.
    assert read_limits(tiny_base("gemma2")).squares * 4 == 2**31 and read_limits(tiny_base("llama")).squares is None


def test_a_batch_is_bounded_by_what_its_keys_and_values_take():
    base = tiny_base("llama")
    config = base.model.config
    values = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert batch_limits(base).tokens == 2**30 // (4 * values)
