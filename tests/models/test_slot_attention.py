"""Attention over slots and tokens: every kernel and form of mask alike, and masks that layers and steps share."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AttentionInterface, PreTrainedModel

from models import injection
from models.base import FrozenBase
from models.injection import ComposedAdapter, LayerPrefix, _Masks, _Written, attached, register_attention
from tests.models.adapters import random_adapter, random_prefix
from tests.models.tiny import (
    FAMILIES,
    WINDOW,
    random_ids,
    tiny_base,
    tiny_model,
    tiny_tokenizer,
    whole_logits,
)


def _attend(
    inner: str,
    module: nn.Module,
    mask: Tensor | None,
    prefix: LayerPrefix | None,
    *,
    asked: slice = slice(None),
    **kwargs: object,
) -> Tensor:
    """Run the memory's attention around `inner` on fixed random queries, keys and values of 12 tokens.

    Args:
        asked: Whose attention is wanted.
    """
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 12, 16, generator=generator)[:, :, asked]
    key, value = torch.randn(2, 2, 2, 12, 16, generator=generator)
    forward = AttentionInterface()[register_attention(inner)]
    module.d2a_prefix = None if prefix is None else _Written(prefix=prefix, masks=_Masks())
    try:
        return forward(module, query, key, value, mask, scaling=0.25, **kwargs)[0]
    finally:
        del module.d2a_prefix


def _expected(
    mask_BL: Tensor, prefix: LayerPrefix, *, window: int | None = None, softcap: float | None = None
) -> Tensor:
    """The same attention, written out: soft-capped logits, then slot bias or mask, softmax, values."""
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 12, 16, generator=generator)
    key, value = torch.randn(2, 2, 2, 12, 16, generator=generator)
    key = torch.cat([prefix.key_BHSF.expand(2, -1, -1, -1), key], 2).repeat_interleave(2, 1)
    value = torch.cat([prefix.value_BHSF.expand(2, -1, -1, -1), value], 2).repeat_interleave(2, 1)
    score = query @ key.transpose(2, 3) * 0.25
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    distance = torch.arange(12)[:, None] - torch.arange(12)[None, :]
    allowed = (distance >= 0) & (distance < (window or 12)) & mask_BL[:, None, None, :]
    bias = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    slots = prefix.bias_BS[:, None, None, :].expand(2, 1, 12, -1)
    return ((score + torch.cat([slots, bias], -1)).softmax(-1) @ value).transpose(1, 2)


PADDED = torch.ones(2, 12, dtype=torch.bool)
PADDED[1, :4] = False


def _as(form: str, mask_BL: Tensor) -> Tensor | None:
    causal = torch.ones(12, 12, dtype=torch.bool).tril() & mask_BL[:, None, None, :]
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    return {"none": None, "padding": mask_BL, "bool": causal, "additive": additive}[form]


@pytest.mark.parametrize("form", ["none", "padding", "bool", "additive"])
@pytest.mark.parametrize("inner", ["eager", "sdpa", "flash_attention_2"])
def test_every_form_of_mask_gives_the_same_attention_over_slots_and_tokens(inner: str, form: str) -> None:
    module = tiny_base("qwen3").attention_module(4)
    mask_BL = torch.ones_like(PADDED) if form == "none" else PADDED
    out = _attend(inner, module, _as(form, mask_BL), random_prefix())
    assert_close(out[mask_BL], _expected(mask_BL, random_prefix())[mask_BL], atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix_batch", [0, 1, 2])
@pytest.mark.parametrize("form", ["none", "bool", "additive"])
def test_a_single_token_attends_as_the_last_of_many(form: str, prefix_batch: int, monkeypatch) -> None:
    monkeypatch.setattr(injection, "_function", None)  # plain products, by no other function
    module = tiny_base("llama").attention_module(4)
    mask_BL = torch.ones_like(PADDED) if form == "none" else PADDED
    mask, last = _as(form, mask_BL), slice(-1, None)
    empty = torch.zeros(1, 2, 0, 16)
    none = LayerPrefix(key_BHSF=empty, value_BHSF=empty, bias_BS=torch.zeros(1, 0))
    prefix = random_prefix(batch=prefix_batch) if prefix_batch else None
    out = _attend("sdpa", module, None if mask is None else mask[..., last, :], prefix, asked=last)
    assert_close(out, _expected(mask_BL, prefix or none)[:, last], atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix_batch", [1, 2])
def test_attention_without_padding_takes_the_slots_bias_as_a_feature_of_their_keys(prefix_batch: int) -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 12, 16, generator=generator)
    key, value = torch.randn(2, 2, 2, 12, 16, generator=generator)
    prefix = random_prefix(batch=prefix_batch)
    bias_BS = prefix.bias_BS.clone().requires_grad_(True)
    with_grad = replace(prefix, bias_BS=bias_BS)
    out = injection._causal(query, key, value, with_grad, scaling=0.25)
    expected = _expected(torch.ones_like(PADDED), with_grad)
    assert_close(out, expected, atol=1e-5, rtol=0)
    gradients = [torch.autograd.grad(x.square().sum(), bias_BS)[0] for x in (out, expected)]
    assert gradients[0][:, :2].abs().min() > 0.01
    assert_close(*gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_gpu_attends_to_slots_as_a_cpu_does(dtype: torch.dtype) -> None:
    bases = [FrozenBase(tiny_model("llama").to(device, dtype), tiny_tokenizer()) for device in ("cpu", "cuda")]
    ids_BL, logits = random_ids(2, 9), []
    for base in bases:
        adapter = ComposedAdapter(prefix={n: _moved(random_prefix(seed=n), base.device) for n in (4, 5)})
        with attached(base, adapter):
            logits.append(whole_logits(base, ids_BL.to(base.device)).cpu())
    assert_close(*logits, atol=1e-4 if dtype == torch.float32 else 0.1, rtol=0)


def _moved(prefix: LayerPrefix, device: torch.device) -> LayerPrefix:
    return LayerPrefix(**{name: x.to(device) for name, x in vars(prefix).items()})


@pytest.mark.parametrize("form", ["none", "padding"])
def test_flash_attention_keeps_gemmas_window_and_soft_cap_beside_slots(form: str) -> None:
    module = tiny_base("gemma2").attention_module(4)
    mask_BL = torch.ones_like(PADDED) if form == "none" else PADDED
    out = _attend("flash_attention_2", module, _as(form, mask_BL), random_prefix(), sliding_window=WINDOW, softcap=5.0)
    expected = _expected(mask_BL, random_prefix(), window=WINDOW, softcap=5.0)
    assert_close(out[mask_BL], expected[mask_BL], atol=1e-5, rtol=0)


@pytest.mark.parametrize("inner", ["eager", "sdpa"])
def test_without_slots_the_inner_attention_runs_alone(inner: str) -> None:
    module = tiny_base("llama").attention_module(4)
    empty = torch.zeros(1, 2, 0, 16)
    expected = _expected(PADDED, LayerPrefix(key_BHSF=empty, value_BHSF=empty, bias_BS=torch.zeros(1, 0)))
    out = _attend(inner, module, _as("additive", PADDED), None)
    assert_close(out[PADDED], expected[PADDED], atol=1e-5, rtol=0)


def test_a_slot_beyond_the_sliding_window_still_gets_attention() -> None:
    base, ids_BL = tiny_base("gemma2"), random_ids(1, WINDOW + 6)
    assert base.attention_module(4).sliding_window == WINDOW
    far = LayerPrefix(key_BHSF=torch.randn(1, 2, 1, 16), value_BHSF=torch.randn(1, 2, 1, 16), bias_BS=torch.zeros(1, 1))
    with attached(base, ComposedAdapter(prefix={4: far})):
        weights = base.model(ids_BL, output_attentions=True, use_cache=False).attentions[4]
    last = weights[0, :, -1]
    assert (last[:, 0] > 0).all()
    # slot, 6 tokens out of the window, 8 tokens inside
    assert (last[:, 1:7] == 0).all()
    assert (last[:, 7:] > 0).all()


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stand in for the flash-attn package; collect the names under which its kernels are asked for."""
    asked: list[str] = []

    def kernel(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: object) -> Tensor:
        asked.append(str(kwargs["attn_implementation"]))
        assert mask is None
        key, value = (x.repeat_interleave(2, 2) for x in (key, value))
        heads_first = (x.transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(*heads_first, is_causal=True, scale=kwargs["softmax_scale"]).transpose(
            1, 2
        )

    monkeypatch.setattr("transformers.integrations.flash_attention._flash_attention_forward", kernel)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", asked.append)
    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda *_args, **_kwargs: True)
    yield asked


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_flash_attention_is_asked_for_by_its_own_name_and_slots_go_round_it(
    family: str, flash_on_cpu: list[str]
) -> None:
    plain, flash, ids_BL = tiny_base(family), tiny_base(family, attention="flash_attention_2"), random_ids(2, 9)
    assert_close(whole_logits(flash, ids_BL), whole_logits(plain, ids_BL), atol=1e-5, rtol=0)
    assert set(flash_on_cpu) == {"flash_attention_2"}
    flash_on_cpu.clear()
    adapter = random_adapter(plain)
    with attached(flash, adapter), attached(plain, adapter):
        assert_close(whole_logits(flash, ids_BL), whole_logits(plain, ids_BL), atol=1e-5, rtol=0)
    assert len(flash_on_cpu) == 4  # the lower layers; the two memory layers have slots


@pytest.mark.parametrize("inner", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_eager_and_sdpa_agree_with_an_adapter_attached(family: str, inner: str) -> None:
    base, ids_BL = tiny_base(family, attention=inner), random_ids(2, 9)
    reference = tiny_base(family, attention="eager")
    adapter = random_adapter(base)
    with attached(base, adapter), attached(reference, adapter):
        assert_close(whole_logits(base, ids_BL), whole_logits(reference, ids_BL), atol=1e-5, rtol=0)


def _sharing_adapter(*, with_grad: bool = False) -> ComposedAdapter:
    """Prefixes as the composer makes them, with one bias for all layers."""
    bias_BS = torch.tensor([[0.0, -1.0, -2.0]], requires_grad=with_grad)
    return ComposedAdapter(prefix={n: replace(random_prefix(seed=n), bias_BS=bias_BS) for n in (4, 5)})


@pytest.mark.parametrize(("family", "num_kinds"), [("llama", 1), ("gemma2", 2)])
def test_layers_of_one_kind_share_the_mask_of_a_step(
    family: str, num_kinds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    build = injection._extended_mask

    def counting(*args: Tensor, **kwargs: int | None) -> Tensor:
        made.append(1)
        return build(*args, **kwargs)

    monkeypatch.setattr(injection, "_extended_mask", counting)
    base, ids_BL = tiny_base(family), random_ids(2, 9)
    with attached(base, _sharing_adapter()):
        whole_logits(base, ids_BL)
        assert len(made) == num_kinds  # of two memory layers, Gemma 2 has one with a window
        whole_logits(base, ids_BL[:, :8])
        assert len(made) == 2 * num_kinds


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_of_an_earlier_pass_is_not_used_again(family: str) -> None:
    base, ids_BL, adapter = tiny_base(family), random_ids(2, 12), _sharing_adapter()
    masks = [PADDED, PADDED.flip(0), torch.ones_like(PADDED)]
    alone = []
    for mask_BL in masks:
        with attached(base, adapter):
            alone.append(whole_logits(base, ids_BL, mask_BL))
    with attached(base, adapter):
        for mask_BL, expected in zip(masks, alone, strict=True):
            assert torch.equal(whole_logits(base, ids_BL, mask_BL.clone()), expected)


def test_a_mask_changed_in_place_is_extended_anew() -> None:
    masks, bias_BS, query = injection._Masks(), torch.zeros(1, 2), torch.zeros(1, 4, 3, 16)
    mask_BL = torch.ones(1, 3, dtype=torch.bool)
    first = masks.extended(bias_BS, mask_BL, query, query, window=None)
    assert masks.extended(bias_BS, mask_BL, query, query, window=None) is first
    mask_BL[0, 0] = False
    # the last of three queries: two slots, then the tokens, of which the first has become padding
    row = masks.extended(bias_BS, mask_BL, query, query, window=None)[0, 0, 2]
    assert (row == 0).tolist() == [True, True, False, True, True]


def test_two_backward_passes_under_one_adapter_both_reach_the_slots_bias() -> None:
    base, ids_BL, adapter = tiny_base("llama"), random_ids(1, 5), _sharing_adapter(with_grad=True)
    bias_BS, gradients = adapter.prefix[4].bias_BS, []
    with attached(base, adapter):
        whole_logits(base, ids_BL)  # without a graph, whose mask must not be taken for one with
        for _ in range(2):
            loss = base.model(ids_BL, use_cache=False).logits.square().mean()
            gradients += torch.autograd.grad(loss, bias_BS)
    assert gradients[0].abs().min() > 0
    assert torch.equal(gradients[0], gradients[1])


def test_a_mask_made_without_a_graph_is_not_used_where_the_bias_trains() -> None:
    base, ids_BL, adapter = tiny_base("llama"), random_ids(1, 5), _sharing_adapter(with_grad=True)
    mask_B1LL = torch.full((1, 1, 5, 5), torch.finfo(torch.float32).min).triu(1)
    bias_BS, gradients = adapter.prefix[4].bias_BS, []
    for passes_before in (0, 1):
        with attached(base, adapter):
            for _ in range(passes_before):
                with torch.no_grad():
                    base.model(ids_BL, attention_mask=mask_B1LL, use_cache=False)
            loss = base.model(ids_BL, attention_mask=mask_B1LL, use_cache=False).logits.square().mean()
            gradients += torch.autograd.grad(loss, bias_BS)
    assert gradients[0].abs().min() > 0
    assert torch.equal(gradients[0], gradients[1])
