"""Attaching and detaching: exact arithmetic while attached, and not a bit of difference afterwards."""

import pytest
import torch
from torch.testing import assert_close

from models.base import FrozenBase, Site
from models.composer import compose
from models.errors import BaseModelError
from models.injection import ComposedAdapter, LayerPrefix, attached
from tests.models.adapters import random_adapter, random_prefix
from tests.models.tiny import (
    FAMILIES,
    random_ids,
    tiny_base,
    tiny_network,
    tiny_spec,
    whole_logits,
)


def _traces(base: FrozenBase) -> list[str]:
    """Everything that an adapter may have left in the base."""
    hooks = [n for n, m in base.model.named_modules() if m._forward_hooks or m._forward_pre_hooks]
    return hooks + [n for n, m in base.model.named_modules() if hasattr(m, "d2a_prefix")]


@pytest.mark.parametrize("family", FAMILIES)
def test_detaching_restores_every_bit(family: str) -> None:
    base, ids_BL = tiny_base(family), random_ids(2, 11)
    before = whole_logits(base, ids_BL)
    with attached(base, random_adapter(base)):
        during = whole_logits(base, ids_BL)
        assert _traces(base)
    assert (during - before).abs().max() > 0.1
    assert torch.equal(whole_logits(base, ids_BL), before)
    assert not _traces(base)


def test_an_exception_inside_the_block_detaches_too() -> None:
    base, ids_BL = tiny_base("llama"), random_ids(1, 5)
    before = whole_logits(base, ids_BL)
    with pytest.raises(RuntimeError, match="interrupted"), attached(base, random_adapter(base)):
        raise RuntimeError("interrupted")
    assert torch.equal(whole_logits(base, ids_BL), before)
    assert not _traces(base)


def test_an_adapter_that_does_not_fit_says_so_and_leaves_nothing_behind() -> None:
    base = tiny_base("llama")
    adapter = random_adapter(base)
    wrong = Site(layer=5, module="w_proj", in_features=48, out_features=48)
    misfit = ComposedAdapter(
        lora={**adapter.lora, wrong: next(iter(adapter.lora.values()))}, prefix={4: random_prefix()}
    )
    with pytest.raises(BaseModelError, match="'w_proj'"), attached(base, misfit):
        pass
    assert not _traces(base)


def test_no_adapter_attaches_nothing() -> None:
    base, ids_BL = tiny_base("llama"), random_ids(1, 5)
    before = whole_logits(base, ids_BL)
    with attached(base, None):
        assert not _traces(base)
        assert torch.equal(whole_logits(base, ids_BL), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_micro_lora_is_the_same_as_a_changed_weight(family: str) -> None:
    base, changed, ids_BL = tiny_base(family), tiny_base(family), random_ids(2, 9)
    adapter = ComposedAdapter(lora=random_adapter(base).lora)
    with torch.no_grad():
        for site, (a_BRI, b_BOR) in adapter.lora.items():
            changed.module(site).weight += b_BOR[0] @ a_BRI[0]
    with attached(base, adapter):
        assert_close(whole_logits(base, ids_BL), whole_logits(changed, ids_BL), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_of_a_batch_gets_its_own_adapter(family: str) -> None:
    base, ids_BL = tiny_base(family), random_ids(2, 9)
    one, two = random_adapter(base), random_adapter(base)
    two = ComposedAdapter(
        lora={s: (a.flip(1) * 2, b) for s, (a, b) in two.lora.items()},
        prefix={4: random_prefix(seed=7), 5: random_prefix(seed=8)},
    )
    both = ComposedAdapter(
        lora={s: tuple(torch.cat(pair) for pair in zip(one.lora[s], two.lora[s], strict=True)) for s in one.lora},
        prefix={n: _stack(one.prefix[n], two.prefix[n]) for n in one.prefix},
    )
    with attached(base, both):
        together = whole_logits(base, ids_BL)
    for row, adapter in enumerate((one, two)):
        with attached(base, adapter):
            alone = whole_logits(base, ids_BL[row : row + 1])
        assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)


def _stack(one: LayerPrefix, two: LayerPrefix) -> LayerPrefix:
    return LayerPrefix(
        key_BHSF=torch.cat([one.key_BHSF, two.key_BHSF]),
        value_BHSF=torch.cat([one.value_BHSF, two.value_BHSF]),
        bias_BS=torch.cat([one.bias_BS, two.bias_BS]),
    )


@pytest.mark.parametrize("recipe", ["paper", "d2a"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_untrained_memory_leaves_the_logits_untouched(family: str, recipe: str) -> None:
    from models.network import MemoryNetwork

    base, ids_BL = tiny_base(family), random_ids(2, 9)
    spec = tiny_spec(recipe, kv={"source": "none"})
    compiler = MemoryNetwork(spec, base).compiler
    weight_BK = torch.tensor([[0.7, 0.3]])
    latent_BKZ = torch.randn(1, 2, spec.d_latent)
    with attached(base, compose(compiler, weight_BK, weight_BK.log(), latent_BKZ=latent_BKZ)):
        assert _traces(base)
        assert torch.equal(whole_logits(base, ids_BL), whole_logits(tiny_base(family), ids_BL))


def test_gradients_reach_the_adapter_through_the_frozen_base() -> None:
    base, ids_BL = tiny_base("llama"), random_ids(2, 9)
    network = tiny_network(base)
    latent_BKZ = torch.randn(2, 2, 6, requires_grad=True)
    weight_BK = torch.tensor([[0.7, 0.2], [0.1, 0.0]])
    adapter = compose(network.compiler, weight_BK, weight_BK.log(), latent_BKZ=latent_BKZ)
    with attached(base, adapter):
        base.model(ids_BL, use_cache=False).logits.square().mean().backward()
    grad = latent_BKZ.grad
    assert grad.isfinite().all()
    assert (grad[:, 0].abs().sum(-1) > 0).all()
    assert (grad[1, 1] == 0).all()  # an atom of weight 0 learns nothing
    assert all(p.grad is None for p in base.model.parameters())
