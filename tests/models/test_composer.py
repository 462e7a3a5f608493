"""Composition: latent space equals materialised sums, concatenation is exact, and weights act as the recipe says."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from models.compiler import LoraFactors, MemoryCompiler
from models.composer import compose, compose_prefix
from models.injection import ComposedAdapter, attached
from models.microkv import AtomSlots
from models.presets import MemorySpec
from models.stacked import BySite
from tests.models.tiny import FAMILIES, RECIPES, random_ids, tiny_base, tiny_network, tiny_spec, whole_logits

WEIGHTS = torch.tensor([[0.5, 0.3, 0.1], [0.9, 0.0, 0.05]])


def _latents(spec: MemorySpec, *shape: int) -> Tensor:
    return torch.randn(*shape, spec.d_latent, generator=torch.Generator().manual_seed(5))


def _compiler(recipe: str, family: str = "llama") -> MemoryCompiler:
    return tiny_network(tiny_base(family), tiny_spec(recipe)).compiler


def _updates(adapter: ComposedAdapter) -> dict[tuple[int, str], Tensor]:
    return {(s.layer, s.module): b @ a for s, (a, b) in adapter.lora.items()}


def _assert_same_updates(one: ComposedAdapter, other: ComposedAdapter) -> None:
    ours, theirs = _updates(one), _updates(other)
    assert ours.keys() == theirs.keys()
    for place in ours:
        assert_close(ours[place], theirs[place], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_composing_latents_equals_summing_materialised_factors(family: str, recipe: str) -> None:
    compiler = _compiler(recipe, family)
    latent_BKZ = _latents(compiler.spec, 2, 3)
    in_latent_space = compose(compiler, WEIGHTS, WEIGHTS.log(), latent_BKZ=latent_BKZ, mode="linear")
    each = compiler.factors(latent_BKZ)
    materialised = compose(compiler, WEIGHTS, WEIGHTS.log(), factors=each, mode="linear")
    _assert_same_updates(in_latent_space, materialised)
    for index, site in enumerate(compiler.sites):
        # Written out: A = sum_i w_i A_i, B = sum_i w_i B_i, g = sigmoid(sum_i w_i m_i), alpha / r = 8 / 4 = 2
        a = torch.einsum("bk,bkri->bri", WEIGHTS, each.a[site])
        b = torch.einsum("bk,bkor->bor", WEIGHTS, each.b[site])
        g = torch.einsum("bk,bkg->bg", WEIGHTS, each.mask_logits.flatten(-2)).sigmoid()[:, index, None, None]
        gate = g**2 if recipe == "paper" else g
        assert_close(_updates(in_latent_space)[site.layer, site.module], 2 * gate * (b @ a), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_concatenation_is_the_exact_sum_of_updates(family: str, recipe: str) -> None:
    compiler = _compiler(recipe, family)
    latent_BKZ = _latents(compiler.spec, 2, 3)
    adapter = compose(compiler, WEIGHTS, WEIGHTS.log(), latent_BKZ=latent_BKZ, mode="concat")
    each = compiler.factors(latent_BKZ)
    for index, site in enumerate(compiler.sites):
        update = torch.einsum("bk,bkor,bkri->boi", WEIGHTS, each.b[site], each.a[site])
        g = torch.einsum("bk,bkg->bg", WEIGHTS, each.mask_logits.flatten(-2)).sigmoid()[:, index, None, None]
        gate = g**2 if recipe == "paper" else g
        assert_close(_updates(adapter)[site.layer, site.module], 2 * gate * update, atol=1e-5, rtol=1e-5)
        assert adapter.lora[site][0].shape[1] == 3 * 4  # rank K * r


@pytest.mark.parametrize(("gate", "expected"), [("factors", 2 * 0.25 * 10.0), ("update", 2 * 0.5 * 10.0)])
def test_the_gate_multiplies_both_factors_or_the_update(gate: str, expected: float) -> None:
    compiler = tiny_network(tiny_base("llama"), tiny_spec("d2a", gate=gate)).compiler
    ones = LoraFactors(
        a=BySite.of({s: torch.ones(1, 1, 4, s.in_features) for s in compiler.sites}),
        b=BySite.of({s: torch.full((1, 1, s.out_features, 4), 2.5) for s in compiler.sites}),
        mask_logits=torch.zeros(1, 1, 2, 4),  # a gate of sigmoid(0) = 0.5
    )
    one = torch.ones(1, 1)
    # B A = 4 ranks * 2.5 * 1 = 10, times alpha / r = 2
    for update in _updates(compose(compiler, one, one.log(), factors=ones)).values():
        assert_close(update, torch.full_like(update, expected))


def test_linear_composition_brings_cross_terms_and_concatenation_does_not() -> None:
    compiler = _compiler("d2a")
    site = compiler.sites[0]
    a, b = torch.zeros(1, 2, 4, site.in_features), torch.zeros(1, 2, site.out_features, 4)
    a[0, 0, 0, 0], b[0, 0, 0, 0] = 1.0, 1.0  # atom 0 writes from feature 0 to feature 0
    a[0, 1, 0, 1], b[0, 1, 1, 0] = 1.0, 1.0  # atom 1 from 1 to 1, through the same rank
    zeros = {s: torch.zeros(1, 2, 4, s.in_features) for s in compiler.sites}
    factors = LoraFactors(
        a=BySite.of({**zeros, site: a}),
        b=BySite.of({**{s: torch.zeros(1, 2, s.out_features, 4) for s in compiler.sites}, site: b}),
        mask_logits=torch.full((1, 2, 2, 4), 50.0),  # an open gate
    )
    half = torch.full((1, 2), 0.5)
    update = {m: compose(compiler, half, half.log(), factors=factors, mode=m).lora[site] for m in ("linear", "concat")}
    # alpha / r = 2. linear: 2 * (0.5 * 0.5) everywhere in the 2 x 2 corner; concat: 2 * 0.5 on the diagonal.
    assert_close((update["linear"][1] @ update["linear"][0])[0, :2, :2], torch.full((2, 2), 0.5))
    assert_close((update["concat"][1] @ update["concat"][0])[0, :2, :2], torch.eye(2))


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_atom_of_weight_one_is_the_same_in_both_modes(recipe: str) -> None:
    compiler = _compiler(recipe)
    one, latent_BKZ = torch.ones(1, 1), _latents(compiler.spec, 1, 1)
    linear, concat = (compose(compiler, one, one.log(), latent_BKZ=latent_BKZ, mode=m) for m in ("linear", "concat"))
    _assert_same_updates(linear, concat)


@pytest.mark.parametrize("mode", ["linear", "concat"])
def test_the_order_of_atoms_does_not_matter(mode: str) -> None:
    compiler = _compiler("d2a")
    latent_BKZ = _latents(compiler.spec, 2, 3)
    forwards = compose(compiler, WEIGHTS, WEIGHTS.log(), latent_BKZ=latent_BKZ, mode=mode)
    backwards = compose(compiler, WEIGHTS.flip(1), WEIGHTS.flip(1).log(), latent_BKZ=latent_BKZ.flip(1), mode=mode)
    _assert_same_updates(forwards, backwards)


@pytest.mark.parametrize("mode", ["linear", "concat"])
def test_an_atom_of_weight_zero_is_as_good_as_absent(mode: str) -> None:
    compiler = _compiler("d2a")
    latent_BKZ = _latents(compiler.spec, 1, 3)
    weight_BK = torch.tensor([[0.6, 0.0, 0.3]])
    kept = weight_BK[:, [0, 2]]
    _assert_same_updates(
        compose(compiler, weight_BK, weight_BK.log(), latent_BKZ=latent_BKZ, mode=mode),
        compose(compiler, kept, kept.log(), latent_BKZ=latent_BKZ[:, [0, 2]], mode=mode),
    )


@pytest.mark.parametrize("mode", ["linear", "concat"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_of_zero_make_an_update_of_zero(recipe: str, mode: str) -> None:
    compiler = _compiler(recipe)
    none = torch.zeros(1, 3)
    adapter = compose(compiler, none, none.log(), latent_BKZ=_latents(compiler.spec, 1, 3), mode=mode)
    assert all((update == 0).all() for update in _updates(adapter).values())


def test_the_memorys_own_mode_is_used_where_none_is_named() -> None:
    compiler = tiny_network(tiny_base("llama"), tiny_spec("d2a", composition="concat")).compiler
    latent_BKZ = _latents(compiler.spec, 2, 3)
    adapter = compose(compiler, WEIGHTS, WEIGHTS.log(), latent_BKZ=latent_BKZ)
    assert {a.shape[1] for a, _ in adapter.lora.values()} == {12}


def _slots() -> AtomSlots:
    """Two atoms of 2 and 1 slots; every key and value says which slot it is."""
    content = torch.arange(4.0).view(2, 1, 1, 2, 1)
    mask_US = torch.tensor([[True, True], [True, False]])
    return AtomSlots(layers=[4], key_UMHSF=content, value_UMHSF=content + 10, mask_US=mask_US)


def test_weights_become_logit_biases_and_empty_slots_are_blocked() -> None:
    rows_BK, weight_BK = torch.tensor([[1, 0]]), torch.tensor([[0.5, 0.25]])
    prefix = compose_prefix(_slots(), rows_BK, weight_BK.log(), scale="logits")[4]
    blocked = torch.finfo(torch.float32).min
    # ln 0.5 = -0.6931, ln 0.25 = -1.3863
    assert_close(prefix.bias_BS, torch.tensor([[-0.6931, blocked, -1.3863, -1.3863]]), atol=1e-4, rtol=0)
    assert prefix.key_BHSF.flatten().tolist() == [2.0, 3.0, 0.0, 1.0]
    assert prefix.value_BHSF.flatten().tolist() == [12.0, 13.0, 10.0, 11.0]


def test_published_scaling_multiplies_values_and_leaves_the_attention_mass() -> None:
    rows_BK, weight_BK = torch.tensor([[1, 0]]), torch.tensor([[0.5, 0.0]])
    prefix = compose_prefix(_slots(), rows_BK, weight_BK.log(), scale="values")[4]
    blocked = torch.finfo(torch.float32).min
    assert prefix.bias_BS.tolist() == [[0.0, blocked, 0.0, 0.0]]
    assert prefix.value_BHSF.flatten().tolist() == [6.0, 6.5, 0.0, 0.0]


def test_a_weight_of_zero_blocks_its_slots() -> None:
    weight_BK = torch.tensor([[0.5, 0.0]])
    prefix = compose_prefix(_slots(), torch.tensor([[0, 1]]), weight_BK.log(), scale="logits")[4]
    assert (prefix.bias_BS[0, 2:] == torch.finfo(torch.float32).min).all()
    assert prefix.bias_BS.isfinite().all()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_flow_from_the_logits_to_the_scores(family: str, recipe: str) -> None:
    """Through micro-LoRA weights and slot biases, with one candidate that is padding."""
    base, ids_BL = tiny_base(family), random_ids(1, 9)
    network = tiny_network(base, tiny_spec(recipe, kv={"source": "none"}))
    score = torch.tensor([[0.5, 0.1, 0.0]], requires_grad=True)
    routing = network.router.select(score, torch.tensor([[True, True, False]]), top_k=3)
    generator = torch.Generator().manual_seed(0)
    key, value = torch.randn(2, 3, 1, 2, 4, 16, generator=generator)
    mask_US = torch.ones(3, 4, dtype=torch.bool)
    slots = AtomSlots(layers=[4], key_UMHSF=key, value_UMHSF=value, mask_US=mask_US)
    latent_BKZ = _latents(network.spec, 1, 3)
    gradients = []
    for kind in ("lora", "prefix"):
        adapter = compose(
            network.compiler,
            routing.weight_BK,
            routing.log_weight_BK,
            latent_BKZ=latent_BKZ,
            slots=slots,
            slot_rows_BK=routing.index_BK,
        )
        with attached(base, ComposedAdapter(**{kind: getattr(adapter, kind)})):
            logits = base.model(ids_BL, use_cache=False).logits
        [gradient] = torch.autograd.grad(logits[0, -1, 7], score, retain_graph=True)
        gradients.append(gradient)
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert (gradient[0, :2] != 0).all()
        assert gradient[0, 2] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_vanishing_weights_leave_the_untouched_base(family: str) -> None:
    base, ids_BL = tiny_base(family), random_ids(2, 11)
    network = tiny_network(base)
    routing = network.router.select(torch.full((1, 2), -200.0), torch.ones(1, 2, dtype=torch.bool), top_k=2)
    key, value = torch.randn(2, 2, 2, 2, 4, 16, generator=torch.Generator().manual_seed(0))
    mask_US = torch.ones(2, 4, dtype=torch.bool)
    slots = AtomSlots(layers=[4, 5], key_UMHSF=key, value_UMHSF=value, mask_US=mask_US)
    adapter = compose(
        network.compiler,
        routing.weight_BK,
        routing.log_weight_BK,
        latent_BKZ=_latents(network.spec, 1, 2),
        slots=slots,
        slot_rows_BK=routing.index_BK,
    )
    with attached(base, adapter):
        during = whole_logits(base, ids_BL)
    assert_close(during, whole_logits(base, ids_BL), atol=5e-6, rtol=0)


def test_a_shared_lora_is_the_same_under_any_weights_and_broadcasts() -> None:
    base = tiny_base("llama")
    compiler = tiny_network(base, tiny_spec("d2a", lora="static")).compiler
    one, other = (compose(compiler, w, w.log(), latent_BKZ=torch.zeros(2, 3, 0)) for w in (WEIGHTS, WEIGHTS.flip(1)))
    for site in compiler.sites:
        assert torch.equal(one.lora[site][1] @ one.lora[site][0], other.lora[site][1] @ other.lora[site][0])
    ids = random_ids(2, 7)
    with attached(base, one):
        together = whole_logits(base, ids)
    rows = ComposedAdapter(lora={s: (a.expand(2, -1, -1), b.expand(2, -1, -1)) for s, (a, b) in one.lora.items()})
    with attached(base, rows):
        assert_close(together, whole_logits(base, ids), atol=1e-4, rtol=1e-4)
    assert (together - whole_logits(base, ids)).abs().max() > 0.1
