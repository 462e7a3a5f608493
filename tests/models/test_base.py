"""The frozen base: cut anywhere it is still the whole model, nothing in it trains, and faults name the next step."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from models.base import FrozenBase, free_gpu_memory, gpu_memory, load_base, pick_attention, pick_device, pick_dtype
from models.encoder import pad
from models.errors import BaseModelError, ConfigError
from models.presets import Preset
from tests.models.tiny import (
    FAMILIES,
    NUM_LAYERS,
    random_ids,
    tiny_base,
    tiny_model,
    tiny_spec,
    tiny_tokenizer,
    whole_logits,
)

PROMPTS = [random_ids(n, seed=n).tolist() for n in (5, 13, 1)]  # 13 is past Gemma 2's window of 8


def _preset(family: str) -> Preset:
    recipes = {"d2a": tiny_spec("d2a")}
    return Preset(
        name="tiny", base="owner/tiny", family=family, install="get tiny", default_recipe="d2a", recipes=recipes
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama on disk."""
    tiny_model("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_lower_and_upper_layers_make_the_whole_model_at_every_cut(family: str) -> None:
    base = tiny_base(family)
    ids_BL, mask_BL = pad(PROMPTS, "cpu")
    expected = whole_logits(base, ids_BL, mask_BL)[mask_BL]
    for cut in range(NUM_LAYERS + 1):
        lower_BLD = base.run_layers(base.embed(ids_BL), start=0, stop=cut)
        upper_BLD = base.run_layers(lower_BLD, start=cut, stop=NUM_LAYERS)
        assert_close(base.logits(upper_BLD)[mask_BL], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str) -> None:
    base = tiny_base(family)
    ids_BL, _ = pad(PROMPTS, "cpu")
    states_BLD = base.run_layers(base.embed(ids_BL), start=0, stop=NUM_LAYERS)
    for row, prompt in enumerate(PROMPTS):
        alone = whole_logits(base, torch.tensor([prompt]))[0]
        assert_close(base.logits(states_BLD[row, : len(prompt)]), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_inputs_are_the_normed_states_of_each_layer(family: str) -> None:
    base = tiny_base(family)
    ids_BL, _ = pad(PROMPTS, "cpu")
    with base.captured_inputs([2, 4]) as captured:
        base.run_layers(base.embed(ids_BL), start=0, stop=NUM_LAYERS)
    for layer, x_BLD in captured.items():
        entering = base.run_layers(base.embed(ids_BL), start=0, stop=layer)
        assert_close(x_BLD, base.layers[layer].input_layernorm(entering))
    assert set(captured) == {2, 4}
    assert not any(base.attention_module(layer)._forward_pre_hooks for layer in range(NUM_LAYERS))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_parameter_of_the_base_trains(family: str) -> None:
    base = tiny_base(family)
    assert not base.model.training
    assert not any(p.requires_grad for p in base.model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_segments_share_the_weights(family: str) -> None:
    base = tiny_base(family)
    before = sum(p.numel() for p in base.model.parameters())
    base.run_layers(base.embed(random_ids(1, 4)), start=2, stop=5)
    [segment] = base._segments.values()
    own = {p.data_ptr() for p in base.model.parameters()}
    assert {p.data_ptr() for p in segment.parameters()} <= own
    assert sum(p.numel() for p in base.model.parameters()) == before


@pytest.mark.parametrize("family", FAMILIES)
def test_fingerprint_names_weights_whatever_their_dtype(family: str) -> None:
    fingerprint = tiny_base(family).fingerprint()
    narrow = FrozenBase(tiny_model(family).to(torch.bfloat16), tiny_tokenizer(), attention="eager")
    assert narrow.fingerprint() == fingerprint
    assert tiny_base(family, seed=1).fingerprint() != fingerprint
    assert len(fingerprint) == 16


def test_fingerprints_of_the_families_differ() -> None:
    assert len({tiny_base(family).fingerprint() for family in FAMILIES}) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_are_the_target_modules_of_the_last_layers_in_order(family: str) -> None:
    base = tiny_base(family)
    sites = base.sites(tiny_spec())
    # hidden 48, 4 heads and 2 kv heads of 16, intermediate 64
    shapes = {"q_proj": (48, 64), "v_proj": (48, 32), "o_proj": (64, 48), "down_proj": (64, 48)}
    assert [(s.layer, s.module) for s in sites] == [(layer, m) for layer in (4, 5) for m in shapes]
    assert all((s.in_features, s.out_features) == shapes[s.module] for s in sites)
    assert base.module(sites[3]) is base.layers[4].mlp.down_proj


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(BaseModelError, match="layer 4 has 0 modules named 'w_proj'"):
        tiny_base("llama").sites(tiny_spec(target_modules=("w_proj",)))


@pytest.mark.parametrize("field", ["num_memory_layers", "num_encoder_layers"])
def test_more_layers_than_the_base_has_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"memory: {field} must be at most 6, got 7"):
        tiny_base("llama").sites(tiny_spec(**{field: 7}))


def test_an_unknown_architecture_is_refused_by_name() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=110))
    with pytest.raises(BaseModelError, match=r"'gpt2' is not supported.*llama, gemma2, qwen3"):
        FrozenBase(model, tiny_tokenizer())


def test_load_base_reads_a_local_folder(folder: Path) -> None:
    base = load_base(_preset("llama"), base_path=folder, device="cpu", dtype=torch.float32)
    ids_BL = random_ids(1, 7)
    assert_close(whole_logits(base, ids_BL), whole_logits(tiny_base("llama"), ids_BL))
    assert base.attention == "sdpa"


def test_load_base_refuses_another_family_by_name(folder: Path) -> None:
    with pytest.raises(BaseModelError, match="is a llama model, preset tiny needs qwen3"):
        load_base(_preset("qwen3"), base_path=folder, device="cpu")


def test_load_base_refuses_missing_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BaseModelError, match=r"lacks 1 weights, first model.layers.0.self_attn.q_proj.*get tiny"):
        load_base(_preset("llama"), base_path=folder, device="cpu")


def test_load_base_refuses_truncated_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(BaseModelError, match=r"cannot load the base model .*get tiny"):
        load_base(_preset("llama"), base_path=folder, device="cpu")


def test_load_base_refuses_an_architecture_that_transformers_does_not_know(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba9"}))
    with pytest.raises(BaseModelError, match="mamba9"):
        load_base(_preset("llama"), base_path=folder, device="cpu")


def test_load_base_names_the_command_where_the_hub_cannot_be_reached() -> None:
    with pytest.raises(BaseModelError, match=r"cannot load the base model owner/tiny.*get tiny"):
        load_base(_preset("llama"), device="cpu")


@pytest.mark.parametrize(
    ("name", "family", "expected", "warns"),
    [
        ("auto", "llama", "sdpa", ""),
        ("auto", "gemma2", "eager", ""),
        ("eager", "qwen3", "eager", ""),
        ("sdpa", "qwen3", "sdpa", ""),
        ("sdpa", "gemma2", "eager", "sdpa cannot soft-cap"),
        ("flash_attention_2", "llama", "sdpa", "needs a CUDA device"),
        ("flash_attention_2", "gemma2", "eager", "needs a CUDA device"),
    ],
)
def test_attention_falls_back_with_one_line(
    name: str, family: str, expected: str, warns: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert pick_attention(name, "cpu", family) == expected
    assert [warns in r.getMessage() for r in caplog.records] == ([True] if warns else [])


@pytest.mark.parametrize("installed", [True, False])
def test_flash_attention_is_taken_where_it_is_installed(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: installed)
    assert pick_attention("auto", "cuda", "qwen3") == ("flash_attention_2" if installed else "sdpa")


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(BaseModelError, match=r"device cuda is not available here. Use --device"):
        pick_device("cuda")
    assert pick_device("auto") == "cpu"


def test_dtype_is_bfloat16_only_where_it_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert pick_dtype("cpu") == torch.float32
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert pick_dtype("cpu") == torch.bfloat16
    assert pick_dtype("mps") == torch.float32


def test_a_process_counts_on_its_share_of_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=8000))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.125)
    assert gpu_memory(torch.device("cuda:0")) == 1000


@pytest.mark.parametrize(("free", "expected"), [(5000, 700), (300, 500)], ids=["its share is scarcer", "the card is"])
def test_the_rest_of_a_gpu_is_the_rest_of_a_share(free: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.base.gpu_memory", lambda _device: 1000)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, 8000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: 300)
    assert free_gpu_memory(torch.device("cuda:0")) == expected
