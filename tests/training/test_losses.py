"""Every loss: a value computed by hand, a gradient check, and what masks must leave out."""

import math

import pytest
import torch

from models.base import Site
from models.injection import ComposedAdapter
from training.losses import irrelevant_loss, listwise_loss, lm_loss, route_loss


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def flags(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def gradients_match(function, x):
    """Compare the gradient with central differences in float64."""
    return torch.autograd.gradcheck(lambda t: function(t)[0], (x.clone().requires_grad_(True),))


def test_lm_loss_is_the_cross_entropy_summed_over_tokens():
    # Row 0: -ln(e^1 / (e^1 + e^0)) = ln(1 + 1/e) = 0.313262; row 1: ln 2 = 0.693147.
    total, count = lm_loss(tensor([1.0, 0.0], [3.0, 3.0]), torch.tensor([0, 1]))
    assert total.item() == pytest.approx(0.313262 + 0.693147, abs=1e-5)
    assert count.item() == 2


def test_route_loss_weighs_negatives_golds_and_distractors():
    score, gold = tensor([0.0, 2.0, -1.0, 9.0]), flags([False, True, False, False])
    valid, distractor = flags([True, True, True, False]), flags([False, False, True, False])
    # negative at 0: 0.5 ln 2 = 0.346574; gold at 2: ln(1 + e^-2) = 0.126928;
    # distractor at -1: 1.5 ln(1 + e^-1) = 0.469893
    total, count = route_loss(score, gold, valid, distractor)
    assert total.item() == pytest.approx(0.346574 + 0.126928 + 0.469893, abs=1e-5)
    assert count.item() == 3
    # Without distractors the third costs a third of it.
    assert route_loss(score, gold, valid)[0].item() == pytest.approx(0.346574 + 0.126928 + 0.156631, abs=1e-5)


def test_a_gold_atom_is_never_weighed_as_a_distractor():
    everything = flags([True])
    assert route_loss(tensor([0.0]), everything, everything, everything)[0].item() == pytest.approx(math.log(2))


def test_listwise_loss_with_a_null_slot_takes_it_as_the_target_where_nothing_is_gold():
    score = tensor([math.log(3.0), 0.0, 5.0], [math.log(3.0), 0.0, 5.0])
    gold, valid = flags([True, False, False], [False] * 3), flags([True, True, False], [True, True, False])
    # Both rows over e^s = 3, 1 and the null slot's 1: -ln(3/5) = 0.510826 and -ln(1/5) = 1.609438.
    total, count = listwise_loss(score, gold, valid, null_slot=True)
    assert total.item() == pytest.approx(0.510826 + 1.609438, abs=1e-5)
    assert count.item() == 2


def test_listwise_loss_without_a_null_slot_leaves_out_questions_without_gold():
    score = tensor([math.log(3.0), 0.0, 5.0], [math.log(3.0), 0.0, 5.0])
    gold, valid = flags([True, False, False], [False] * 3), flags([True, True, False], [True, True, False])
    # -ln(3/4) = 0.287682, and the second row is not counted.
    total, count = listwise_loss(score, gold, valid, null_slot=False)
    assert total.item() == pytest.approx(0.287682, abs=1e-5)
    assert count.item() == 1


def test_listwise_loss_asks_for_any_of_several_golds():
    # -ln((3 + 1) / (3 + 1 + 4)) = ln 2
    total, _ = listwise_loss(
        tensor([math.log(3.0), 0.0, math.log(4.0)]), flags([True, True, False]), flags([True] * 3), null_slot=False
    )
    assert total.item() == pytest.approx(math.log(2), abs=1e-6)


def test_listwise_loss_of_no_question_is_zero_and_has_a_gradient():
    score = torch.zeros(2, 3, requires_grad=True)
    total, count = listwise_loss(score, flags([False] * 3, [False] * 3), flags([True] * 3, [True] * 3), null_slot=False)
    total.backward()
    assert (total.item(), count.item(), score.grad.abs().sum().item()) == (0.0, 0, 0.0)


def test_irrelevant_loss_sums_squared_norms_and_slot_weights():
    lora = {
        Site(layer=0, module="q_proj", in_features=2, out_features=1): (tensor([[1.0, 2.0]]), tensor([[3.0]])),
        Site(layer=1, module="q_proj", in_features=2, out_features=1): (tensor([[0.0, 1.0]]), tensor([[-1.0]])),
    }
    # 1 + 4 + 9 + 1 + 1 = 16, and a slot weight of 0.25.
    total, count = irrelevant_loss(ComposedAdapter(lora=lora), torch.tensor([0.25]))
    assert total.item() == pytest.approx(16.25)
    assert count.item() == 1
    assert irrelevant_loss(ComposedAdapter(lora=lora))[0].item() == pytest.approx(16.0)


def test_gradients_of_the_losses_equal_finite_differences():
    torch.manual_seed(0)
    score = torch.randn(2, 4, dtype=torch.float64)
    gold, valid = flags([True, False, True, False], [False] * 4), flags([True, True, True, False], [True] * 4)
    assert gradients_match(lambda x: route_loss(x, gold, valid, ~gold), score)
    assert gradients_match(lambda x: listwise_loss(x, gold, valid, null_slot=True), score)
    assert gradients_match(lambda x: listwise_loss(x, gold, valid, null_slot=False), score)


@pytest.mark.parametrize("loss", ["lm", "irrelevant"])
def test_gradients_of_the_float32_losses_equal_their_formula(loss):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 4, requires_grad=True)
    if loss == "lm":
        target = torch.tensor([2, 0, 1])
        lm_loss(x[0], target)[0].backward()
        # d CE / d logits = softmax - one-hot
        expected = x[0].softmax(-1) - torch.nn.functional.one_hot(target, 4)
        torch.testing.assert_close(x.grad[0], expected.detach())
    else:
        site = Site(layer=0, module="q_proj", in_features=4, out_features=1)
        irrelevant_loss(ComposedAdapter(lora={site: (x, torch.zeros(1, 1, 3))}))[0].backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())


def test_masked_candidates_get_no_gradient():
    score = torch.randn(1, 3, requires_grad=True)
    gold, valid = flags([True, False, False]), flags([True, True, False])
    (route_loss(score, gold, valid)[0] + listwise_loss(score, gold, valid, null_slot=True)[0]).backward()
    assert score.grad[0, 2].item() == 0.0
    assert bool((score.grad[0, :2] != 0).all())
