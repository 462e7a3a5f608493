"""The router's losses: values computed by hand, gradients, and what masks must leave out."""

import math

import pytest
import torch

from tests.training.losses.checks import assert_nothing, assert_parts_add_up, flags, gradients_match, noise, tensor
from training.losses import confidence_loss, conflict_loss, listwise_loss, rerank_loss, route_loss

LOG_3 = math.log(3.0)


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


def test_route_loss_leaves_out_supporting_atoms_or_takes_them_as_negatives():
    score, valid = tensor([0.0, 0.0, 0.0]), flags([True, True, True])
    gold, supporting = flags([True, False, False]), flags([True, True, False])
    # Each costs ln 2 times its weight: gold 1, supporting 0.5 or nothing, negative 0.5. Gold stays gold.
    assert route_loss(score, gold, valid)[0].item() == pytest.approx(2.0 * math.log(2))
    total, count = route_loss(score, gold, valid, supporting_BC=supporting)
    assert total.item() == pytest.approx(1.5 * math.log(2))
    assert count.item() == 2


def test_listwise_loss_with_a_null_slot_takes_it_as_the_target_where_nothing_is_gold():
    score = tensor([LOG_3, 0.0, 5.0], [LOG_3, 0.0, 5.0])
    gold, valid = flags([True, False, False], [False] * 3), flags([True, True, False], [True, True, False])
    # Both rows over e^s = 3, 1 and the null slot's 1: -ln(3/5) = 0.510826 and -ln(1/5) = 1.609438.
    total, count = listwise_loss(score, gold, valid, null_slot=True)
    assert total.item() == pytest.approx(0.510826 + 1.609438, abs=1e-5)
    assert count.item() == 2


def test_listwise_loss_without_a_null_slot_leaves_out_questions_without_gold():
    score = tensor([LOG_3, 0.0, 5.0], [LOG_3, 0.0, 5.0])
    gold, valid = flags([True, False, False], [False] * 3), flags([True, True, False], [True, True, False])
    # -ln(3/4) = 0.287682, and the second row is not counted.
    total, count = listwise_loss(score, gold, valid, null_slot=False)
    assert total.item() == pytest.approx(0.287682, abs=1e-5)
    assert count.item() == 1


def test_listwise_loss_asks_for_any_of_several_golds_and_rerank_loss_for_all():
    score, gold, valid = tensor([LOG_3, 0.0, math.log(4.0)]), flags([True, True, False]), flags([True] * 3)
    # Any: -ln((3 + 1) / (3 + 1 + 4)) = ln 2. All: -(ln(3/8) + ln(1/8)) / 2 = (0.980829 + 2.079442) / 2.
    assert listwise_loss(score, gold, valid, null_slot=False)[0].item() == pytest.approx(math.log(2), abs=1e-6)
    total, count = rerank_loss(score, gold, valid, null_slot=False)
    assert total.item() == pytest.approx(1.530135, abs=1e-5)
    assert count.item() == 1


def test_rerank_loss_knows_only_what_was_reranked_and_the_null_slot():
    score, gold = tensor([LOG_3, 0.0, 9.0], [LOG_3, 0.0, 9.0]), flags([True, False, True], [False, False, True])
    reranked = flags([True, True, False], [True, True, False])
    # Gold that was not reranked is no target. Row 0: -ln(3/5) = 0.510826; row 1, the null slot: -ln(1/5) = 1.609438.
    assert rerank_loss(score, gold, reranked, null_slot=True)[0].item() == pytest.approx(2.120264, abs=1e-5)
    # Without it row 0 gives -ln(3/4) and row 1 is left out.
    total, count = rerank_loss(score, gold, reranked, null_slot=False)
    assert total.item() == pytest.approx(0.287682, abs=1e-5)
    assert count.item() == 1


def test_conflict_loss_compares_gold_with_its_own_group_alone():
    score = tensor([LOG_3, 0.0, 7.0, 0.0, 1.0, 1.0, 9.0, 9.0])
    group = torch.tensor([[4, 4, -1, 8, 8, 2, 4, -1]])
    gold, valid = flags([True, False, True, True] + [False] * 4), flags([True] * 6 + [False, True])
    # Group 4: -ln(3/4) = 0.287682, its third member is padding. Group 8: -ln(1 / (1 + e)) = 1.313262.
    # Group 2 has no gold atom, and the atoms of score 7 and the last 9 have no group.
    total, count = conflict_loss(score, gold, valid, group)
    assert total.item() == pytest.approx(0.287682 + 1.313262, abs=1e-5)
    assert count.item() == 2


def test_conflict_loss_leaves_out_groups_of_gold_atoms_alone():
    score, group = tensor([2.0, 0.0, 1.0]), torch.tensor([[0, 0, 1]])
    everything = flags([True, True, True])
    assert_nothing(lambda x: conflict_loss(x, everything, everything, group), score)


def test_conflict_groups_of_different_questions_stay_apart():
    score, group = tensor([0.0, 0.0], [0.0, 0.0]), torch.tensor([[3, 3], [3, -1]])
    gold, valid = flags([True, False], [True, False]), flags([True, True], [True, True])
    # Question 0: ln 2. In question 1 the gold atom is alone in its group.
    total, count = conflict_loss(score, gold, valid, group)
    assert total.item() == pytest.approx(math.log(2))
    assert count.item() == 1


def test_confidence_loss_is_the_divergence_of_the_shares_of_relevant_atoms():
    log_weight = tensor([0.3, 0.3, 0.4], [0.5, 0.2, 0.3]).log()
    confidence = tensor([0.9, 0.3, 1.0], [0.5, 0.2, 1.0])
    relevant = flags([True, True, False], [True, True, False])
    # Row 0: prior 3/4, 1/4 against 1/2, 1/2: 0.75 ln 1.5 + 0.25 ln 0.5 = 0.304099 - 0.173287 = 0.130812.
    # Row 1 has the same shares, 5/7 and 2/7, on both sides.
    total, count = confidence_loss(log_weight, confidence, relevant)
    assert total.item() == pytest.approx(0.130812, abs=1e-5)
    assert count.item() == 2


def test_confidence_loss_leaves_out_lone_atoms_padding_and_priors_of_nothing():
    log_weight = tensor([0.6, 0.4], [0.6, 0.0], [0.5, 0.5]).log()
    confidence, relevant = tensor([1.0, 0.5], [1.0, 0.5], [0.0, 0.0]), flags([True, False], [True, True], [True, True])
    assert_nothing(lambda x: confidence_loss(x, confidence, relevant), log_weight)


@pytest.mark.parametrize("loss", [listwise_loss, rerank_loss])
def test_listwise_losses_of_no_question_are_zero_and_have_a_gradient(loss):
    nothing, valid = flags([False] * 3, [False] * 3), flags([True] * 3, [True] * 3)
    assert_nothing(lambda x: loss(x, nothing, valid, null_slot=False), noise(2, 3))


def test_losses_where_every_candidate_is_masked_are_zero_and_have_a_gradient():
    gold, nothing, score = flags([True, False, True]), flags([False] * 3), noise(1, 3)
    assert_nothing(lambda x: route_loss(x, gold, nothing, ~gold), score)
    assert_nothing(lambda x: listwise_loss(x, gold, nothing, null_slot=False), score)
    assert_nothing(lambda x: rerank_loss(x, gold, nothing, null_slot=False), score)
    assert_nothing(lambda x: conflict_loss(x, gold, nothing, torch.zeros(1, 3, dtype=torch.long)), score)
    assert_nothing(lambda x: confidence_loss(x, score.abs(), nothing), score)
    # The null slot is then the only candidate, and certain.
    total, count = rerank_loss(score, gold, nothing, null_slot=True)
    assert (total.item(), count.item()) == (0.0, 1)


def test_masked_candidates_get_no_gradient():
    score = noise(1, 3).requires_grad_(True)
    gold, valid, group = flags([True, False, False]), flags([True, True, False]), torch.zeros(1, 3, dtype=torch.long)
    total = route_loss(score, gold, valid)[0] + conflict_loss(score, gold, valid, group)[0]
    total = total + listwise_loss(score, gold, valid, null_slot=True)[0]
    (total + rerank_loss(score, gold, valid, null_slot=True)[0]).backward()
    assert score.grad[0, 2].item() == 0.0
    assert bool((score.grad[0, :2] != 0).all())


GOLD = flags([True, False, True, False], [False] * 4, [True, True, False, False])
VALID = flags([True, True, True, False], [True] * 4, [True, True, True, True])
GROUP = torch.tensor([[0, 0, 1, 1], [2, 2, -1, -1], [3, 3, 3, -1]])
CONFIDENCE = tensor([0.9, 0.2, 0.4, 0.1], [0.5] * 4, [0.3, 1.0, 0.7, 0.2])
LOSSES = {
    "route": (lambda x, gold, valid, *_: route_loss(x, gold, valid, ~gold)),
    "listwise with a null slot": (lambda x, gold, valid, *_: listwise_loss(x, gold, valid, null_slot=True)),
    "listwise": (lambda x, gold, valid, *_: listwise_loss(x, gold, valid, null_slot=False)),
    "rerank with a null slot": (lambda x, gold, valid, *_: rerank_loss(x, gold, valid, null_slot=True)),
    "rerank": (lambda x, gold, valid, *_: rerank_loss(x, gold, valid, null_slot=False)),
    "conflict": (lambda x, gold, valid, group, _: conflict_loss(x, gold, valid, group)),
    "confidence": (lambda x, gold, valid, _, confidence: confidence_loss(x, confidence, gold & valid)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    assert gradients_match(lambda x: LOSSES[name](x, GOLD, VALID, GROUP, CONFIDENCE), noise(3, 4))


@pytest.mark.parametrize("name", LOSSES)
def test_sums_and_counts_of_parts_of_a_batch_add_up(name):
    assert_parts_add_up(LOSSES[name], noise(3, 4), GOLD, VALID, GROUP, CONFIDENCE, sizes=(1, 2))
