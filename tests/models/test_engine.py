"""The engine: compiled tensors, two stores with one answer, routing by hand, and streamed greedy answers."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import models.engine
from models.atoms import Atom
from models.checkpoint import CheckpointMeta
from models.engine import Candidates, Engine, RoutedRows
from models.injection import attached
from models.prompts import prompt_ids, refusal_ids
from models.reading import bare_logprobs
from models.router import AnswerabilityGate
from tests.models.tiny import FAMILIES, tiny_base, tiny_network, tiny_spec, whole_logits
from tests.models.worlds import GATE

TEXTS = ["Otters live in lake Tor.", "Ilse Kant was born in Marn.", "Marn burned.", "Hens sleep at night.", "Zinc"]
SPECS = {
    "d2a": tiny_spec("d2a"),
    "d2a in int8": tiny_spec("d2a", kv={"store": "int8"}),
    "d2a in int6": tiny_spec("d2a", kv={"store": "int6"}),
    "d2a concat": tiny_spec("d2a", composition="concat"),
    "paper": tiny_spec("paper"),
    "paper with latent micro-KV": tiny_spec("paper", kv={"source": "latent"}),
}
QUESTION = "Who was born in Marn?"


def atoms_of(texts=TEXTS):
    return [
        Atom(
            atom_id=f"atom_{i}",
            semantic_type="event_relation" if i else "fact_claim",
            content=text,
            source_span=text,
            retrieval_text="",
            confidence=1.0 - 0.1 * i,
        )
        for i, text in enumerate(texts)
    ]


@functools.cache
def engine_of(family, recipe="d2a"):
    base = tiny_base(family)
    network = tiny_network(base, SPECS[recipe]).requires_grad_(False)
    meta = CheckpointMeta(preset="tiny", spec=network.spec, base_fingerprint=base.fingerprint(), gate=GATE)
    return Engine(base, network, meta)


def rows_of(shard, rows):
    """Return some atoms' tensors as a bank gives them: one a row, ragged ones cut by their offsets."""
    out = {}
    for name, tensor in shard.items():
        if name.endswith(".offsets"):
            continue
        offsets = shard.get(f"{name}.offsets")
        out[name] = [tensor[i] if offsets is None else tensor[offsets[i] : offsets[i + 1]] for i in rows]
    return out


def routed_rows(*weights):
    weights = torch.tensor(weights)
    return RoutedRows(
        score=[0.0] * len(weights),
        rows=list(range(len(weights))),
        weight=weights.tolist(),
        log_weight=weights.log().tolist(),
        top_lexical=0.0,
    )


def adapter_of(engine, *, store="compact", weights=(0.5, 0.3, 0.1), **options):
    _, shard = engine.compile(atoms_of(), store=store)
    return engine.compose(routed_rows(*weights), rows_of(shard, range(len(weights))), **options)


def assert_adapters_close(ours, theirs):
    assert ours.lora.keys() == theirs.lora.keys() and ours.prefix.keys() == theirs.prefix.keys()
    for site, (a, b) in ours.lora.items():
        assert_close(b @ a, theirs.lora[site][1] @ theirs.lora[site][0], atol=1e-4, rtol=1e-4)
    for layer, prefix in ours.prefix.items():
        assert_close(vars(prefix), vars(theirs.prefix[layer]))


def test_keys_have_unit_length_and_do_not_depend_on_the_chunk(monkeypatch):
    engine, done = engine_of("llama"), []
    whole, shard = engine.compile(atoms_of(), store="compact")
    monkeypatch.setattr(models.engine, "COMPILE_CHUNK", 2)
    keys, pieces = engine.compile(atoms_of(), store="compact", on_progress=done.append)
    assert done == [2, 4, 5]
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(keys, whole, atol=1e-5)
    assert_close(pieces["latent"], shard["latent"], atol=1e-4, rtol=1e-4)
    assert_close(pieces["entry"], shard["entry"], atol=0.05, rtol=0.02)  # bfloat16
    assert keys.dtype == np.float32


def test_token_states_are_kept_ragged_up_to_the_limit_of_an_atom():
    _, shard = engine_of("llama").compile(atoms_of(), store="compact")
    lengths = shard["entry.offsets"].diff().tolist()
    assert lengths == [min(len(t), 24) for t in TEXTS]  # a token a character, 24 at most
    assert len(shard["entry"]) == sum(lengths)


@pytest.mark.parametrize(("recipe", "names"), [("d2a", {"latent", "entry", "entry.offsets"}), ("paper", {"latent"})])
def test_a_compact_store_keeps_what_its_recipe_needs_and_no_more(recipe, names):
    assert set(engine_of("llama", recipe).compile(atoms_of(), store="compact")[1]) == names


@pytest.mark.parametrize("recipe", SPECS)
@pytest.mark.parametrize("family", FAMILIES)
def test_compact_and_full_stores_compose_to_the_same_adapter(family, recipe):
    engine = engine_of(family, recipe)
    assert_adapters_close(adapter_of(engine, store="compact"), adapter_of(engine, store="full"))


def test_an_adapter_without_micro_kv_has_the_same_micro_lora():
    engine = engine_of("qwen3")
    whole, bare = adapter_of(engine), adapter_of(engine, with_kv=False)
    assert whole.prefix and not bare.prefix
    for site, factors in bare.lora.items():
        assert_close(factors, whole.lora[site])


def test_a_weight_of_zero_leaves_an_atom_out():
    engine = engine_of("gemma2")
    ids = torch.tensor([prompt_ids(engine.base.tokenizer, QUESTION)])
    logits = []
    for weights in ((0.5, 0.3, 0.0), (0.5, 0.3)):
        with attached(engine.base, adapter_of(engine, weights=weights)):
            logits.append(whole_logits(engine.base, ids))
    assert_close(*logits, atol=1e-4, rtol=1e-4)


def test_candidates_are_scored_and_weighed_by_the_formula():
    engine = engine_of("llama")
    found = Candidates(
        cosine=np.array([0.1, 0.9, 0.3], np.float32), lexical=np.array([0.2, 0.6, 0.0], np.float32), rerank=None
    )
    routed = engine.route(found, atoms_of(TEXTS[:3]), top_k=2)
    router = engine.network.router
    # metadata: confidence, answer-bearing, no conflict, type 0 / 5 or 2 / 5
    meta = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.9, 1.0, 0.0, 0.4], [0.8, 1.0, 0.0, 0.4]])
    score = router.log_scale.exp() * torch.tensor(found.cosine) + router.bias + meta @ router.metadata
    score = score + router.lexical * torch.tensor(found.lexical)
    assert routed.score == pytest.approx(score.tolist(), rel=1e-5)
    assert routed.rows == score.topk(2).indices.tolist()
    weights = torch.cat([score.topk(2).values, torch.zeros(1)]).softmax(0)[:2]
    assert routed.weight == pytest.approx(weights.tolist(), rel=1e-5)
    assert routed.top_lexical == pytest.approx(0.6)


def test_fewer_candidates_than_k_are_all_selected():
    found = Candidates(cosine=np.ones(2, np.float32), lexical=np.zeros(2, np.float32), rerank=None)
    assert sorted(engine_of("llama").route(found, atoms_of(TEXTS[:2]), top_k=8).rows) == [0, 1]


def test_words_of_the_stretch_count_by_their_weight():
    engine = engine_of("llama")
    zeros = np.zeros(2, np.float32)
    stretches = (None, np.array([0.5, 0.0], np.float32))
    found = [Candidates(cosine=zeros, lexical=zeros, rerank=None, stretch=s) for s in stretches]
    with torch.no_grad():
        engine.network.router.stretch.fill_(4.0)
    plain, leaning = (engine.route(f, atoms_of(TEXTS[:2]), top_k=2).score for f in found)
    with torch.no_grad():
        engine.network.router.stretch.fill_(0.0)
    assert leaning[0] - plain[0] == pytest.approx(2.0, abs=1e-4) and leaning[1] == pytest.approx(plain[1])


def test_reranker_scores_count_by_their_factor():
    engine = engine_of("qwen3")
    zeros = np.zeros(2, np.float32)
    found = [Candidates(cosine=zeros, lexical=zeros, rerank=r) for r in (None, np.array([0.0, 2.0], np.float32))]
    with torch.no_grad():
        engine.network.router.rerank.fill_(3.0)
    plain, reranked = (engine.route(f, atoms_of(TEXTS[:2]), top_k=2).score for f in found)
    with torch.no_grad():
        engine.network.router.rerank.fill_(0.0)
    assert reranked[1] - plain[1] == pytest.approx(6.0, abs=1e-4) and reranked[0] == pytest.approx(plain[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_streamed_answer_is_greedy_under_the_attached_memory(family):
    engine = engine_of(family)
    base, adapter, pieces = engine.base, adapter_of(engine), []
    text, num_tokens, first_s = engine.finish(engine.start(QUESTION, adapter), max_new_tokens=6, on_token=pieces.append)
    ids, expected = prompt_ids(base.tokenizer, QUESTION), []
    with attached(base, adapter):
        for _ in range(6):
            token = int(whole_logits(base, torch.tensor([ids + expected]))[0, -1].argmax())
            if token == base.tokenizer.eos_token_id:
                break
            expected.append(token)
    assert expected
    assert text == base.tokenizer.decode(expected, skip_special_tokens=True).strip()
    assert "".join(pieces).strip() == text
    assert num_tokens == len(expected) and first_s > 0


@pytest.mark.parametrize("gate_alone", [False, True])
def test_only_a_gate_that_decides_alone_overrules_the_models_refusal(monkeypatch, gate_alone):
    engine = engine_of("llama")
    spec = replace(engine.spec, router=replace(engine.spec.router, gate_alone=gate_alone))
    monkeypatch.setattr(engine, "spec", spec)
    adapter = adapter_of(engine)
    said, _, _ = engine.finish(engine.start(QUESTION, adapter), max_new_tokens=1)
    best = int(engine.start(QUESTION, adapter).start.next_logits_BV.argmax())
    monkeypatch.setattr("models.engine.refusal_ids", lambda _: [best])  # as if it would refuse
    monkeypatch.setattr("models.generation.refusal_beginnings", lambda _: (best,))
    kept, _, _ = engine.finish(engine.start(QUESTION, adapter), max_new_tokens=1)
    assert (kept == said) != gate_alone
    bare = engine.start(QUESTION, None)
    best = int(bare.start.next_logits_BV.argmax())
    monkeypatch.setattr("models.engine.refusal_ids", lambda _: [best])
    again, _, _ = engine.finish(engine.start(QUESTION, None), max_new_tokens=1)
    assert again == engine.base.tokenizer.decode([best], skip_special_tokens=True).strip()  # the base may always


@pytest.mark.parametrize("family", FAMILIES)
def test_the_refusal_is_scored_as_the_beginning_of_the_answer(family):
    engine = engine_of(family)
    base, adapter = engine.base, adapter_of(engine)
    ids, refusal = prompt_ids(base.tokenizer, QUESTION), refusal_ids(base.tokenizer)
    with attached(base, adapter):
        log_p = whole_logits(base, torch.tensor([ids + refusal])).log_softmax(-1)[0]
    expected = sum(float(log_p[len(ids) - 1 + i, token]) for i, token in enumerate(refusal))
    assert engine.start(QUESTION, adapter).refusal_logprob == pytest.approx(expected, rel=1e-4)


def test_the_gate_sees_what_the_memory_adds_to_the_question_if_it_was_fitted_with_that(monkeypatch):
    engine = engine_of("llama")
    adapter = adapter_of(engine)
    routed = RoutedRows(score=[0.0], rows=[0], weight=[1.0], log_weight=[0.0], top_lexical=0.0)
    engine.gate = AnswerabilityGate(coefficients=(0.0,) * 10 + (2.0,), bias=1.0)
    started = engine.start(QUESTION, adapter)
    adds = (started.start.question_logprob_BQ - bare_logprobs(engine.base, [QUESTION]))[0]
    assert adds[adds > 0].sum() > 0.01 and adds[adds < 0].sum() < -0.01  # what it takes does not count
    expected = (1.0 + 2.0 * adds[adds > 0].sum()).sigmoid().item()
    assert engine.answerability(routed, started, num_atoms=1) == pytest.approx(expected, abs=1e-4)
    # Else nothing scores the question, here or under the base alone.
    monkeypatch.setattr(models.engine, "bare_logprobs", None)
    engine.gate = AnswerabilityGate(coefficients=(0.0,) * 10, bias=1.0)
    started = engine.start(QUESTION, adapter)
    assert started.start.question_logprob_BQ is None
    assert engine.answerability(routed, started, num_atoms=1) == pytest.approx(0.731, abs=1e-3)  # sigmoid(1)


def test_no_memory_means_the_bare_base_and_text_in_the_prompt_is_read():
    engine = engine_of("llama")
    bare = engine.start(QUESTION, None)
    ids = torch.tensor([prompt_ids(engine.base.tokenizer, QUESTION)])
    assert_close(bare.start.next_logits_BV[0], whole_logits(engine.base, ids)[0, -1], atol=1e-4, rtol=1e-4)
    with_text = engine.start(QUESTION, None, context="Ilse Kant was born there.")
    assert (with_text.start.next_logits_BV - bare.start.next_logits_BV).abs().max() > 0.05


def test_a_character_that_is_not_complete_is_held_back(monkeypatch):
    engine, pieces = engine_of("llama"), []
    # Tokens 1 and 2 are halves of one character, as byte-level tokenizers cut it.
    texts = {(1,): " \ufffd", (1, 2): " é", (1, 2, 3): " ét", (): ""}
    monkeypatch.setattr(
        models.engine,
        "continue_greedily",
        lambda *_, on_token, **__: [[on_token([1, 2, 3][:n]) for n in (1, 2, 3)] and [1, 2, 3]],
    )
    monkeypatch.setattr(type(engine.base.tokenizer), "decode", lambda _self, ids, **_: texts[tuple(ids)])
    text, _, _ = engine.finish(engine.start(QUESTION, None), max_new_tokens=3, on_token=pieces.append)
    assert (text, pieces) == ("ét", ["é", "t"])
