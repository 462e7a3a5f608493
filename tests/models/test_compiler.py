"""The memory compiler: affine heads, their starting values, and how their outputs are laid out."""

import pytest
import torch
from torch.testing import assert_close

from models.base import Site
from models.compiler import MemoryCompiler, SiteHeads
from models.network import MemoryNetwork
from tests.models.tiny import FAMILIES, RECIPES, tiny_base, tiny_network, tiny_spec


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_of_a_weighted_latent_are_the_weighted_factors(family: str, recipe: str) -> None:
    compiler = tiny_network(tiny_base(family), tiny_spec(recipe)).compiler
    latent_KZ = torch.randn(5, compiler.spec.d_latent)
    w_K = torch.tensor([0.5, 0.2, 0.1, 0.05, 0.0])  # sums to 0.85, as a null slot leaves it
    summed = compiler.factors((w_K[:, None] * latent_KZ).sum(0), w_K.sum())
    each = compiler.factors(latent_KZ)
    for site in compiler.sites:
        assert_close(summed.a[site], torch.einsum("k,kri->ri", w_K, each.a[site]), atol=1e-5, rtol=0)
        assert_close(summed.b[site], torch.einsum("k,kor->or", w_K, each.b[site]), atol=1e-5, rtol=0)
    assert_close(summed.mask_logits, torch.einsum("k,klm->lm", w_K, each.mask_logits), atol=1e-5, rtol=0)


def test_a_memory_with_one_lora_for_all_atoms_has_no_heads_and_no_latents() -> None:
    base = tiny_base("llama")
    network = tiny_network(base, tiny_spec("d2a", lora="static"))
    keys, latents = network.compile_atoms(torch.randn(2, base.model.config.hidden_size))
    assert latents.shape == (2, 0)
    assert not torch.equal(keys[0], keys[1])
    kinds = {name.split(".")[1] for name, _ in network.named_parameters() if name.startswith("compiler.")}
    assert kinds == {"trunk", "key_head", "shared", "kv_heads"}


def test_latents_stay_where_micro_kv_is_made_of_them() -> None:
    base = tiny_base("llama")
    network = tiny_network(base, tiny_spec("paper", lora="static", kv={"source": "latent"}))
    assert network.compile_atoms(torch.randn(2, base.model.config.hidden_size))[1].shape == (2, 24)


def test_heads_start_as_published() -> None:
    torch.manual_seed(0)
    compiler = MemoryCompiler(tiny_spec("paper"), tiny_base("llama"))
    factors = compiler.factors(torch.randn(7, 24))
    weights = torch.cat([head.weight.flatten() for head in compiler.a_heads.heads])
    # A ~ N(0, 0.02^2) over about 45,000 weights: the deviation is known to 0.3 %.
    assert weights.std().item() == pytest.approx(0.02, rel=0.02)
    assert weights.mean().item() == pytest.approx(0.0, abs=5e-4)
    assert all((b == 0).all() for b in factors.b.values())
    # sigmoid(2) = 0.8808
    assert_close(torch.sigmoid(factors.mask_logits), torch.full((7, 2, 4), 0.8808), atol=1e-4, rtol=0)


def _bias(heads: SiteHeads, site: Site) -> torch.Tensor:
    [bias] = [
        head.bias[sites.index(site)] for head, sites in zip(heads.heads, heads.sites, strict=True) if site in sites
    ]
    return bias


def test_head_outputs_are_rows_of_a_and_of_b() -> None:
    compiler = MemoryCompiler(tiny_spec(), tiny_base("llama"))
    site = compiler.sites[5]  # v_proj of the last layer: 48 to 32 features, rank 4
    assert (site.layer, site.module) == (5, "v_proj")
    with torch.no_grad():
        _bias(compiler.a_heads, site).copy_(torch.arange(4.0 * 48))
        _bias(compiler.b_heads, site).copy_(torch.arange(32.0 * 4))
        compiler.mask_head.bias.copy_(torch.arange(8.0))
    factors = compiler.factors(torch.zeros(6))
    assert factors.a[site][2, 7] == 2 * 48 + 7
    assert factors.b[site][9, 3] == 9 * 4 + 3
    assert factors.mask_logits[1, 1] == 5  # the gate's order is the sites' order


@pytest.mark.parametrize("recipe", RECIPES)
def test_keys_have_unit_length_and_each_atom_its_own_latent(recipe: str) -> None:
    network = tiny_network(tiny_base("llama"), tiny_spec(recipe))
    key_NE, latent_NZ = network.compile_atoms(torch.randn(4, 48))
    assert_close(key_NE.norm(dim=-1), torch.ones(4))
    assert (torch.cdist(latent_NZ, latent_NZ) + torch.eye(4) > 1e-3).all()
    assert network.query_keys(torch.randn(2, 48)).norm(dim=-1).tolist() == pytest.approx([1.0, 1.0])


def test_atoms_and_questions_have_separate_key_heads() -> None:
    network = tiny_network(tiny_base("llama"))
    pooled_ND = torch.randn(1, 48)
    assert not torch.allclose(network.compile_atoms(pooled_ND)[0], network.query_keys(pooled_ND))


def test_the_published_latent_is_the_trunks_own_output() -> None:
    network = tiny_network(tiny_base("llama"), tiny_spec("paper"))
    embed_ND = torch.randn(3, 24)
    assert_close(network.compiler(embed_ND)[1], network.compiler.trunk(embed_ND))
    kinds = [type(part).__name__ for part in network.compiler.trunk]
    assert kinds == ["LayerNorm", "Linear", "GELU", "Linear"]


@pytest.mark.parametrize("family", FAMILIES)
def test_token_heads_start_as_the_layers_own_projections_and_train_apart_from_them(family: str) -> None:
    base = tiny_base(family)
    compiler = MemoryNetwork(tiny_spec(), base).compiler
    key, value = compiler.kv_heads.key.weight, compiler.kv_heads.value.weight
    assert len(key) == len(value) == 2
    for place, layer in enumerate((4, 5)):
        attention = base.attention_module(layer)
        assert torch.equal(key[place], attention.k_proj.weight)
        assert torch.equal(value[place], attention.v_proj.weight)
        assert key[place].data_ptr() != attention.k_proj.weight.data_ptr()
    assert key.requires_grad and value.requires_grad


def test_the_memory_does_not_own_the_base() -> None:
    base = tiny_base("llama")
    network = MemoryNetwork(tiny_spec(), base)
    assert not {p.data_ptr() for p in network.parameters()} & {p.data_ptr() for p in base.model.parameters()}
    assert all(p.dtype == torch.float32 for p in network.parameters())
