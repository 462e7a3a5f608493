"""The losses on what is written: values computed by hand, gradients, and the products they must equal."""

import math

import pytest
import torch

from models.base import Site
from models.compiler import MemoryCompiler
from models.composer import compose_prefix
from models.errors import ConfigError
from models.injection import ComposedAdapter, LayerPrefix
from models.microkv import AtomSlots
from tests.models.tiny import random_ids, tiny_base, tiny_spec
from tests.training.losses.checks import assert_nothing, assert_parts_add_up, flags, gradients_match, noise, tensor
from training.losses import (
    input_bases,
    irrelevant_loss,
    principal_basis,
    protect_loss,
    protect_prefix_loss,
    sparse_loss,
)

HIDDEN = torch.finfo(torch.float32).min


def site(layer=0, module="q_proj"):
    return Site(layer=layer, module=module, in_features=2, out_features=1)


def adapter_of(a, b):
    return ComposedAdapter(lora={site(): (a, b)})


def prefix_of(value, bias):
    return ComposedAdapter(prefix={0: LayerPrefix(key_BHSF=torch.zeros_like(value), value_BHSF=value, bias_BS=bias)})


def test_irrelevant_loss_sums_squared_norms_and_slot_weights():
    lora = {
        site(0): (tensor([[1.0, 2.0]]), tensor([[3.0]])),
        site(1): (tensor([[0.0, 1.0]]), tensor([[-1.0]])),
    }
    # 1 + 4 + 9 + 1 + 1 = 16, and a slot weight of 0.25.
    total, count = irrelevant_loss(ComposedAdapter(lora=lora), torch.tensor([0.25]))
    assert total.item() == pytest.approx(16.25)
    assert count.item() == 1
    assert irrelevant_loss(ComposedAdapter(lora=lora))[0].item() == pytest.approx(16.0)


def test_protect_loss_is_the_squared_norm_of_the_update():
    # Rank 2: B A = [[1, 2], [3, 4]] [[1, 0], [1, 1]] = [[3, 2], [7, 4]]; 9 + 4 + 49 + 16 = 78.
    a, b = tensor([[1.0, 0.0], [1.0, 1.0]]), tensor([[1.0, 2.0], [3.0, 4.0]])
    total, count = protect_loss(adapter_of(a, b))
    assert total.item() == pytest.approx(78.0)
    assert count.item() == 1


def test_protect_loss_in_the_null_space_form_counts_what_protected_inputs_see():
    a, b = tensor([[1.0, 0.0], [1.0, 1.0]]), tensor([[1.0, 2.0], [3.0, 4.0]])
    # Input 0 alone is protected, U = (1, 0): the first column of B A, 9 + 49.
    assert protect_loss(adapter_of(a, b), basis={site(): torch.eye(2)[:, :1]})[0].item() == pytest.approx(58.0)
    # U = (1, 1) / sqrt 2: B A U = (5, 11) / sqrt 2, 25 / 2 + 121 / 2.
    diagonal = torch.full((2, 1), math.sqrt(0.5), dtype=torch.float64)
    assert protect_loss(adapter_of(a, b), basis={site(): diagonal})[0].item() == pytest.approx(73.0)


def test_protect_loss_equals_the_norm_of_the_whole_product():
    a, b = noise(3, 4, 9), noise(3, 7, 4, seed=1)
    basis = torch.linalg.qr(noise(9, 3, seed=2)).Q
    update = b @ a
    assert protect_loss(adapter_of(a, b))[0].item() == pytest.approx(update.square().sum().item())
    blocked = update @ (basis @ basis.T)  # dW (I - P)
    expected = blocked.square().sum().item()
    assert protect_loss(adapter_of(a, b), basis={site(): basis})[0].item() == pytest.approx(expected)


def test_an_update_that_protected_inputs_never_reach_costs_nothing():
    basis = torch.linalg.qr(noise(9, 3)).Q
    a = noise(2, 4, 9, seed=1) @ (torch.eye(9, dtype=torch.float64) - basis @ basis.T)
    assert protect_loss(adapter_of(a, noise(2, 7, 4)), basis={site(): basis})[0].item() == pytest.approx(0.0, abs=1e-20)


def test_protect_prefix_loss_is_the_weighted_mean_square_of_the_values():
    value = tensor([[[1.0, 2.0], [3.0, 0.0], [9.0, 9.0]]])  # [1, 1, 3, 2]
    bias = torch.tensor([[math.log(0.5), 0.0, HIDDEN]])
    # (0.5 * 5 + 1 * 9) / 2: the third slot holds nothing.
    total, count = protect_prefix_loss(prefix_of(value, bias))
    assert total.item() == pytest.approx(5.75)
    assert count.item() == 1


def test_protect_prefix_loss_reads_a_composed_prefix_without_the_atoms_of_weight_0():
    value = noise(2, 1, 3, 2).float()
    mask = flags([True, True, False], [True, True, True])
    slots = AtomSlots(layers=[0], key_UMHSF=value[:, None], value_UMHSF=value[:, None], mask_US=mask)
    log_weight = torch.tensor([[math.log(0.5), -math.inf]])
    prefix = compose_prefix(slots, torch.tensor([[0, 1]]), log_weight, scale="logits")
    # Atom 0 fills two slots, each with weight 0.5; atom 1 has weight 0 and is not counted.
    expected = 0.5 * value[0, 0, :2].square().sum().item() / 2
    assert protect_prefix_loss(ComposedAdapter(prefix=prefix))[0].item() == pytest.approx(expected)


def test_protect_prefix_loss_in_the_null_space_form_averages_over_the_heads_that_share_a_value():
    value = tensor([[[1.0, 2.0]]])  # one key-value head of two features, one slot
    # Two query heads share it. The output projection's protected input is feature 1 of the first of them: 4 / 2.
    basis = {site(module="o_proj"): torch.eye(4)[:, 1:2], site(module="q_proj"): torch.eye(2)}
    assert protect_prefix_loss(prefix_of(value, torch.zeros(1, 1)), basis=basis)[0].item() == pytest.approx(2.0)
    # With every input protected it is the plain norm.
    basis = {site(module="o_proj"): torch.eye(4)}
    assert protect_prefix_loss(prefix_of(value, torch.zeros(1, 1)), basis=basis)[0].item() == pytest.approx(5.0)


def test_protect_prefix_loss_of_an_empty_prefix_is_zero_and_has_a_gradient():
    value = noise(1, 1, 3, 2).requires_grad_(True)
    bias = torch.full((1, 3), HIDDEN, requires_grad=True)
    total, count = protect_prefix_loss(prefix_of(value, bias))
    total.backward()
    assert (total.item(), count.item()) == (0.0, 1)
    assert bool((value.grad == 0).all() and (bias.grad == 0).all())


def test_sparse_loss_is_the_squared_gap_of_the_mean_gate_to_the_density():
    # Gates of site 0: sigmoid(0) = 0.5 and 0.9; of site 1: 0.1 and 0.1. Means 0.7 and 0.1, density 0.3:
    # 0.16 + 0.04 = 0.2, for each of two atoms.
    logits = torch.logit(tensor([0.5, 0.1], [0.9, 0.1]))
    total, count = sparse_loss(logits, density=0.3)
    assert total.item() == pytest.approx(0.4)
    assert count.item() == 2


def test_sparse_loss_over_its_count_has_the_gradient_of_the_squared_gap():
    logits = noise(5, 2, 3)
    x, y = logits.clone().requires_grad_(True), logits.clone().requires_grad_(True)
    total, count = sparse_loss(x, density=0.3)
    (total / count).backward()
    (y.sigmoid().mean(0) - 0.3).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_sparse_loss_of_parts_adds_up_once_they_share_the_mean():
    logits = noise(5, 6)
    mean = logits.sigmoid().mean(0)
    assert_parts_add_up(lambda x: sparse_loss(x, density=0.3, mean_gate_G=mean), logits, sizes=(2, 3))
    whole = sparse_loss(logits, density=0.3)[0].item()
    assert sparse_loss(logits, density=0.3, mean_gate_G=mean)[0].item() == pytest.approx(whole)


def test_losses_of_no_question_or_atom_are_zero_and_have_a_gradient():
    b = noise(0, 3, 4)
    assert_nothing(lambda a: irrelevant_loss(adapter_of(a, b)), noise(0, 4, 5))
    assert_nothing(lambda a: protect_loss(adapter_of(a, b)), noise(0, 4, 5))
    assert_nothing(lambda v: protect_prefix_loss(prefix_of(v, torch.zeros(0, 3))), noise(0, 1, 3, 2))
    assert_nothing(lambda x: sparse_loss(x, density=0.3), noise(0, 6))


BASIS = {site(): torch.linalg.qr(noise(5, 2)).Q, site(module="o_proj"): torch.linalg.qr(noise(8, 3)).Q}
LORA_LOSSES = {
    "irrelevant": lambda a, b: irrelevant_loss(adapter_of(a, b)),
    "protect": lambda a, b: protect_loss(adapter_of(a, b)),
    "protect in the null space": lambda a, b: protect_loss(adapter_of(a, b), basis=BASIS),
}
PREFIX_LOSSES = {
    "protect": lambda value, bias: protect_prefix_loss(prefix_of(value, bias)),
    "protect in the null space": lambda value, bias: protect_prefix_loss(prefix_of(value, bias), basis=BASIS),
}


@pytest.mark.parametrize("name", LORA_LOSSES)
def test_losses_on_factors_have_gradients_of_finite_differences_and_add_up(name):
    a, b = noise(3, 4, 5), noise(3, 2, 4, seed=1)
    assert gradients_match(LORA_LOSSES[name], a, b)
    assert_parts_add_up(LORA_LOSSES[name], a, b, sizes=(1, 2))


@pytest.mark.parametrize("name", PREFIX_LOSSES)
def test_losses_on_prefixes_have_gradients_of_finite_differences_and_add_up(name):
    value, bias = noise(3, 2, 4, 2), noise(3, 4, seed=1)  # two heads of two features, each shared by two of eight
    assert gradients_match(PREFIX_LOSSES[name], value, bias)
    assert_parts_add_up(PREFIX_LOSSES[name], value, bias, sizes=(1, 2))


def test_sparse_loss_has_gradients_of_finite_differences():
    mean = noise(6).sigmoid()
    assert gradients_match(lambda x: sparse_loss(x, density=0.3), noise(5, 6))
    assert gradients_match(lambda x: sparse_loss(x, density=0.3, mean_gate_G=mean), noise(5, 6))


def test_principal_basis_finds_the_largest_directions_of_activations():
    # Two directions with scales 5 and 3, and noise: the basis of two spans them.
    directions = torch.linalg.qr(noise(6, 2)).Q
    x = (noise(200, 2, seed=1) * tensor(5.0, 3.0)) @ directions.T + 0.01 * noise(200, 6, seed=2)
    basis = principal_basis(x, size=2).double()
    torch.testing.assert_close(basis.T @ basis, torch.eye(2, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(basis @ (basis.T @ directions), directions, atol=1e-3, rtol=0)


def test_principal_basis_needs_as_many_tokens_as_directions():
    with pytest.raises(ConfigError, match="basis size must be at most 3, got 4"):
        principal_basis(noise(3, 6), size=4)


def test_input_bases_protect_what_the_base_feeds_its_sites():
    base, spec = tiny_base("qwen3"), tiny_spec("d2a")
    sites = MemoryCompiler(spec, base).sites
    ids = random_ids(4, 30)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 20:] = False
    start = min(s.layer for s in sites)
    x = base.run_layers(base.embed(ids), start=0, stop=start)
    bases = input_bases(base, sites, x, mask, size=5)
    assert list(bases) == sites
    # Tokens that are padding do not count: another state there changes nothing.
    x[0, 20:] += 1.0
    other = input_bases(base, sites, x, mask, size=5)
    for s in sites:
        torch.testing.assert_close(bases[s] @ bases[s].T, other[s] @ other[s].T, atol=1e-4, rtol=1e-3)
    # The basis holds more of the inputs than any five coordinates could.
    with base.captured_inputs([start]) as captured:
        base.run_layers(x, start=start, stop=start + 1)
    inputs = captured[start][mask]
    query = next(s for s in sites if s.layer == start and s.module == "q_proj")
    kept = (inputs @ bases[query]).square().sum()
    assert kept > inputs.square().sum(0).topk(5).values.sum()
