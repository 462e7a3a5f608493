"""Baselines: the hypernetwork of Doc-to-LoRA, the static LoRA, and both on disk."""

import json
from dataclasses import replace

import pytest
import torch

from models.base import Site
from models.baselines.checkpoint import BaselineMeta, load_baseline, save_baseline
from models.baselines.d2l import (
    ChunkFactors,
    D2LConfig,
    HyperLora,
    chunk_factors,
    document_chunks,
    entering_states,
    internalize,
)
from models.baselines.perceiver import CrossAttention
from models.errors import CheckpointError, ConfigError
from models.injection import attached
from models.static_lora import StaticLora
from tests.models.tiny import FAMILIES, NUM_LAYERS, random_ids, tiny_base, tiny_spec, tiny_tokenizer, whole_logits

TINY = D2LConfig(width=16, head_dim=4, num_encoder_blocks=2, rank=4, max_chunk_tokens=40)
LONG = "The river Brenn feeds lake Tor. Otters live there, and its water is green. " * 2


def hyper_over(base, config=TINY, *, seed=3):
    """Return a hypernetwork that is no longer at its starting values: it writes something."""
    torch.manual_seed(seed)
    hyper = HyperLora.over(base, config)
    for parameter in (hyper.scale_b_LR, hyper.bias_b_LRO):
        torch.nn.init.normal_(parameter, std=0.2)
    return hyper.requires_grad_(False)


def num_parameters(hidden, inner, layers, **sizes):
    """Count a hypernetwork's parameters without making them."""
    sites = [Site(layer=n, module="down_proj", in_features=inner, out_features=hidden) for n in range(layers)]
    with torch.device("meta"):
        hyper = HyperLora(D2LConfig(**sizes), hidden_size=hidden, sites=sites)
    return sum(p.numel() for p in hyper.parameters())


@pytest.mark.parametrize(
    ("base", "blocks", "millions"),
    [
        ((2304, 9216, 26), 8, 309),  # Gemma-2-2B, as the paper quotes it
        ((2304, 9216, 26), 9, 315),  # and with one block more
        ((2560, 9728, 36), 9, 421),  # Qwen3-4B
        ((4096, 14336, 32), 9, 574),  # Mistral-7B
    ],
)
def test_published_sizes_give_the_published_number_of_parameters(base, blocks, millions):
    assert round(num_parameters(*base, num_encoder_blocks=blocks) / 1e6) == millions


def test_the_count_for_gemma_is_the_sum_of_its_parts():
    width, hidden, inner, layers, rank = 512, 2304, 9216, 26, 8
    project = 2 * hidden * 4 * hidden + 4 * hidden * width
    # Query and output 16 heads of 128, key and value 4 of them, a gated MLP, five norms.
    block = 2 * width * 2048 + 2 * width * 512 + 3 * width * 4 * width + 5 * width
    perceiver = 9 * block + (8 + rank) * width + width
    heads = layers * (2 * width * 4 * width + 4 * width + width * (inner + hidden))
    loose = layers * rank * (2 + inner + hidden)
    assert num_parameters(hidden, inner, layers) == project + perceiver + heads + loose == 309_452_192


def test_for_smollm2_the_width_shrinks_with_the_hidden_size():
    class SmolLM2:
        hidden_size = 576

    config = D2LConfig.for_base(SmolLM2())
    assert (config.width, config.head_dim) == (128, 32)  # 512 * 576 / 2304 = 128, in 4 key-value heads
    assert num_parameters(576, 1536, 30, width=config.width, head_dim=config.head_dim) == 18_766_048
    assert replace(config, width=512, head_dim=128) == D2LConfig()


def test_a_base_wider_than_gemma_keeps_the_published_sizes():
    class Wide:
        hidden_size = 4096

    assert D2LConfig.for_base(Wide()) == D2LConfig()


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_one_by_one_give_what_all_at_once_give(family):
    base = tiny_base(family)
    hyper = hyper_over(base)
    chunks = document_chunks(base.tokenizer, LONG, max_chunk_tokens=40)
    at_once = chunk_factors(base, hyper, chunks)
    for size in (1, 4):
        parts = chunk_factors(base, hyper, chunks, layers_at_once=size)
        torch.testing.assert_close(parts.a_NLRI, at_once.a_NLRI)
        torch.testing.assert_close(parts.b_NLRO, at_once.b_NLRO)
    assert at_once.b_NLRO.abs().min(0).values.max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_each_layer_is_made_of_the_states_that_enter_it(family):
    base = tiny_base(family)
    ids = random_ids(2, 11)
    with torch.no_grad():
        expected = base.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    states = list(entering_states(base, ids))
    assert len(states) == NUM_LAYERS  # the last hidden state leaves the last layer, and nothing reads it
    for ours, theirs in zip(states, expected, strict=False):
        torch.testing.assert_close(ours, theirs)


def test_a_layers_lora_depends_on_its_own_states_alone():
    base = tiny_base("llama")
    hyper = hyper_over(base)
    states, mask = torch.randn(1, NUM_LAYERS, 5, base.hidden_size), torch.ones(1, 5, dtype=torch.bool)
    before = hyper(states, mask, slice(None)).b_NLRO
    states[:, 2] += 1.0
    moved = (hyper(states, mask, slice(None)).b_NLRO - before).abs().amax((0, 2, 3)) > 1e-6
    assert moved.tolist() == [layer == 2 for layer in range(NUM_LAYERS)]


def test_padding_of_a_chunk_changes_nothing():
    base = tiny_base("qwen3")
    hyper = hyper_over(base)
    short, long = document_chunks(base.tokenizer, "Otters.", max_chunk_tokens=40) + document_chunks(
        base.tokenizer, LONG[:35], max_chunk_tokens=40
    )
    together, alone = chunk_factors(base, hyper, [short, long]), chunk_factors(base, hyper, [short])
    torch.testing.assert_close(together.a_NLRI[:1], alone.a_NLRI, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.b_NLRO[:1], alone.b_NLRO, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_neighbouring_query_heads_share_a_key_head(masked):
    torch.manual_seed(0)
    attention = CrossAttention(12, num_heads=6, num_kv_heads=2, head_dim=4)
    x_NQD, context_NTD = torch.randn(2, 3, 12), torch.randn(2, 5, 12)
    mask_NT = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if masked else None
    query = attention.query(x_NQD).view(2, 3, 6, 4).transpose(1, 2)
    keys, values = (
        layer(context_NTD).view(2, 5, 2, 4).transpose(1, 2).repeat_interleave(3, dim=1)
        for layer in (attention.key, attention.value)
    )
    scores = query @ keys.transpose(-1, -2) / 2  # the root of a head's four features
    if masked:
        scores = scores.masked_fill(~mask_NT[:, None, None], -torch.inf)
    expected = attention.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x_NQD, context_NTD, mask_NT), expected)


def test_chunks_come_back_in_their_order_however_many_are_read_at_once(monkeypatch):
    base = tiny_base("llama")
    hyper = hyper_over(base)
    chunks = [
        chunk for size in (35, 5, 20) for chunk in document_chunks(base.tokenizer, LONG[:size], max_chunk_tokens=40)
    ]
    alone = [chunk_factors(base, hyper, [chunk]) for chunk in chunks]
    monkeypatch.setattr("models.baselines.d2l.BATCH_TOKENS", len(chunks[0]))
    together = chunk_factors(base, hyper, chunks)
    torch.testing.assert_close(together.a_NLRI, torch.cat([f.a_NLRI for f in alone]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.b_NLRO, torch.cat([f.b_NLRO for f in alone]), atol=1e-5, rtol=1e-4)


def test_the_same_update_comes_in_half_precision():
    base = tiny_base("llama")
    hyper = hyper_over(base)
    states, mask = torch.randn(2, NUM_LAYERS, 7, base.hidden_size), torch.ones(2, 7, dtype=torch.bool)
    full, half = hyper(states, mask, slice(None)), hyper(states.bfloat16(), mask, slice(None))
    assert half.a_NLRI.dtype == torch.float32
    assert torch.cosine_similarity(full.a_NLRI.flatten(), half.a_NLRI.flatten(), dim=0) > 0.99


@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_hypernetwork_leaves_the_base_untouched(family):
    base = tiny_base(family)
    ids = random_ids(1, 12)
    with attached(base, internalize(base, HyperLora.over(base, TINY), [LONG])):
        torch.testing.assert_close(whole_logits(base, ids), whole_logits_bare(base, ids))
    with attached(base, internalize(base, hyper_over(base), [LONG])):
        assert (whole_logits(base, ids) - whole_logits_bare(base, ids)).abs().max() > 0.05


def whole_logits_bare(base, ids):
    """Return the logits of a second copy, into which nothing is written."""
    return whole_logits(tiny_base(base.model.config.model_type), ids)


def test_chunks_of_a_document_and_the_common_lora_stand_side_by_side():
    base = tiny_base("llama")
    hyper = hyper_over(base)
    rank, site = hyper.config.rank, hyper.sites[3]
    generator = torch.Generator().manual_seed(0)
    factors = ChunkFactors(
        a_NLRI=torch.randn(3, NUM_LAYERS, rank, hyper.d_in, generator=generator),
        b_NLRO=torch.randn(3, NUM_LAYERS, rank, hyper.d_out, generator=generator),
    )
    a_MSI, b_MOS = hyper.adapter(factors, [1, 2]).lora[site]
    assert a_MSI.shape == (2, 3 * rank, hyper.d_in)
    common = hyper.bias_b_LRO[3].T @ hyper.bias_a_LRI[3]
    chunk = [factors.b_NLRO[n, 3].T @ factors.a_NLRI[n, 3] for n in range(3)]
    scale = 16.0  # 2 * 4^1.5
    torch.testing.assert_close(b_MOS[0] @ a_MSI[0], scale * (chunk[0] + common), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(b_MOS[1] @ a_MSI[1], scale * (chunk[1] + chunk[2] + common), atol=1e-4, rtol=1e-4)


def test_each_of_several_documents_answers_as_if_it_were_alone():
    base = tiny_base("llama")
    hyper = hyper_over(base)
    documents, ids = ("Otters.", LONG), random_ids(1, 9).expand(2, -1)
    with attached(base, internalize(base, hyper, documents)):
        together = whole_logits(base, ids)
    for row, document in enumerate(documents):
        with attached(base, internalize(base, hyper, [document], layers_at_once=1)):
            torch.testing.assert_close(whole_logits(base, ids)[row], together[row], atol=1e-4, rtol=1e-4)
    assert (together[0] - together[1]).abs().max() > 0.01


def test_the_scale_at_the_published_rank():
    assert D2LConfig().scale == pytest.approx(45.2548)  # 2 * 8 * sqrt(8) = 2 * 8 * 2.828427


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_are_equal_and_each_stands_in_a_turn_of_its_own(family):
    tokenizer = tiny_tokenizer(system_role=family != "gemma2")
    text = LONG[:101]
    chunks = document_chunks(tokenizer, text, max_chunk_tokens=50)
    # ceil(101 / 50) = 3 chunks of ceil(101 / 3) = 34 tokens, and what is left: 33.
    head = tokenizer("<bos><|im_start|>user\n", add_special_tokens=False)["input_ids"]
    tail = tokenizer("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    assert [len(c) - len(head) - len(tail) for c in chunks] == [34, 34, 33]
    assert all(c[: len(head)] == head and c[-len(tail) :] == tail for c in chunks)
    assert "".join(tokenizer.decode(c[len(head) : -len(tail)]) for c in chunks) == text


def test_a_document_of_nothing_is_one_chunk():
    (chunk,) = document_chunks(tiny_tokenizer(), "", max_chunk_tokens=50)
    assert tiny_tokenizer().decode(chunk) == "<bos><|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"


def test_a_target_module_of_several_shapes_is_refused():
    sites = [Site(layer=n, module="down_proj", in_features=8 + n, out_features=4) for n in range(2)]
    with pytest.raises(ConfigError, match="one shape in all layers"):
        HyperLora(TINY, hidden_size=4, sites=sites)


@pytest.mark.parametrize(("field", "value"), [("rank", 0), ("width", 1.5), ("num_heads", 6)])
def test_a_shape_that_cannot_be_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"d2l: {field} must be"):
        D2LConfig(**{field: value})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_static_lora_adds_alpha_over_rank_times_its_update(family):
    base, spec = tiny_base(family), tiny_spec("d2a")
    lora = StaticLora(spec, base).requires_grad_(False)
    assert lora.first_layer == NUM_LAYERS - spec.num_memory_layers
    ids = random_ids(2, 9)
    with attached(base, lora.adapter()):
        torch.testing.assert_close(whole_logits(base, ids), whole_logits_bare(base, ids))
    torch.nn.init.normal_(lora.b_1OR[1], std=0.1)
    with attached(base, lora.adapter()):
        written = whole_logits(base, ids)
    # rank 4 and alpha 8: a factor of 2
    base.module(lora.sites[1]).weight += 2.0 * lora.b_1OR[1][0] @ lora.a_1RI[1][0]
    torch.testing.assert_close(whole_logits(base, ids), written, atol=1e-4, rtol=1e-4)


def meta_of(base, system, shape):
    """Return what a baseline's folder says of it."""
    return BaselineMeta(
        system=system, preset="tiny", base_fingerprint=base.fingerprint(), shape=shape, training={"steps": 3}
    )


@pytest.mark.parametrize("system", ["d2l", "reader", "blind"])
def test_a_saved_baseline_writes_the_same_update_when_loaded(system, tmp_path):
    base, spec = tiny_base("llama"), tiny_spec()
    module = hyper_over(base) if system == "d2l" else StaticLora(spec, base)
    module.load_state_dict({k: v.bfloat16().float() for k, v in module.state_dict().items()})
    meta = meta_of(base, system, TINY.to_dict() if system == "d2l" else spec.to_dict())
    save_baseline(tmp_path, module, meta)
    loaded, read = load_baseline(tmp_path, base)
    assert read == meta
    assert not any(p.requires_grad for p in loaded.parameters())
    for name, tensor in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_baseline_of_another_base_is_refused(tmp_path):
    base = tiny_base("llama")
    save_baseline(tmp_path, StaticLora(tiny_spec(), base), meta_of(base, "reader", tiny_spec().to_dict()))
    with pytest.raises(CheckpointError, match="was trained on base"):
        load_baseline(tmp_path, tiny_base("llama", seed=7))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "has format 99"),
        ({"system": "oracle"}, "system must be one of"),
        ({"shape": {"rank": 2}}, "broken baseline"),
        ({"surprise": 1}, "broken baseline"),
    ],
)
def test_a_broken_baseline_is_told_from_a_sound_one(change, message, tmp_path):
    base = tiny_base("llama")
    save_baseline(tmp_path, StaticLora(tiny_spec(), base), meta_of(base, "reader", tiny_spec().to_dict()))
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_baseline(tmp_path, base)


def test_an_empty_folder_is_no_baseline(tmp_path):
    with pytest.raises(CheckpointError, match="no trained baseline"):
        load_baseline(tmp_path, tiny_base("llama"))
