"""The losses over the vocabulary: values computed by hand, gradients, and top-k against the full divergence."""

import math
from dataclasses import replace

import pytest
import torch

from tests.training.losses.checks import assert_nothing, assert_parts_add_up, gradients_match, noise, tensor
from training.losses import composition_loss, distill_loss, distill_topk_loss, language, lm_loss, teacher_topk

TAU = 1.5
# At tau = 1.5 these logits give probabilities 1/2, 1/4, 1/8, 1/8 and four times 1/4.
TEACHER = TAU * tensor([0.5, 0.25, 0.125, 0.125]).log()
FLAT = tensor([2.0, 2.0, 2.0, 2.0])


def test_lm_loss_is_the_cross_entropy_summed_over_tokens():
    # Row 0: -ln(e^1 / (e^1 + e^0)) = ln(1 + 1/e) = 0.313262; row 1: ln 2 = 0.693147.
    total, count = lm_loss(tensor([1.0, 0.0], [3.0, 3.0]), torch.tensor([0, 1]))
    assert total.item() == pytest.approx(0.313262 + 0.693147, abs=1e-5)
    assert count.item() == 2


def test_distill_loss_is_the_divergence_at_the_temperature_without_a_factor():
    # 1/2 ln 2 + 1/4 ln 1 + 2 * 1/8 ln(1/2) = 1/4 ln 2 = 0.173287
    total, count = distill_loss(FLAT, TEACHER, temperature=TAU)
    assert total.item() == pytest.approx(0.25 * math.log(2), abs=1e-9)
    assert count.item() == 1


def test_distill_loss_has_its_minimum_at_the_teacher():
    student = TEACHER.clone().requires_grad_(True)
    total, _ = distill_loss(student + 3.0, TEACHER, temperature=TAU)  # a shift changes no probability
    total.backward()
    assert total.item() == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(student.grad, torch.zeros_like(student))


def test_distillation_sends_no_gradient_into_the_teacher():
    teacher = TEACHER.clone().requires_grad_(True)
    assert not distill_loss(FLAT, teacher, temperature=TAU)[0].requires_grad
    assert not teacher_topk(teacher, k=2, temperature=TAU).log_p_TK.requires_grad


def test_teacher_topk_keeps_the_best_tokens_and_the_mass_of_the_others():
    teacher = teacher_topk(TEACHER[:, [3, 0, 2, 1]], k=2, temperature=TAU)
    assert teacher.token_TK.tolist() == [[1, 3]]
    torch.testing.assert_close(teacher.log_p_TK.exp(), tensor([0.5, 0.25]))
    torch.testing.assert_close(teacher.log_tail_T.exp(), torch.tensor([0.25], dtype=torch.float64))


def test_topk_distillation_merges_the_tail_into_one_bucket():
    # k = 1: 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = 0.346574 - 0.202733 = 0.143841, below the full 0.173287.
    total, count = distill_topk_loss(FLAT, teacher_topk(TEACHER, k=1, temperature=TAU), temperature=TAU)
    assert total.item() == pytest.approx(0.143841, abs=1e-6)
    assert count.item() == 1


def test_topk_distillation_equals_the_full_divergence_at_k_of_the_vocabulary():
    student, teacher_logits = noise(5, 7), 3 * noise(5, 7, seed=1)
    gradients = []
    for teacher in (None, teacher_topk(teacher_logits, k=7, temperature=TAU)):
        x = student.clone().requires_grad_(True)
        if teacher is None:
            total, _ = distill_loss(x, teacher_logits, temperature=TAU)
        else:
            total, _ = distill_topk_loss(x, teacher, temperature=TAU)
        total.backward()
        gradients.append((total.detach(), x.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_topk_distillation_grows_with_k_towards_the_full_divergence():
    student, teacher = noise(4, 30), 3 * noise(4, 30, seed=1)
    totals = [
        distill_topk_loss(student, teacher_topk(teacher, k=k, temperature=TAU), temperature=TAU)[0].item()
        for k in (1, 3, 9, 27)
    ]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1] <= distill_loss(student, teacher, temperature=TAU)[0].item()


def test_topk_distillation_takes_a_teacher_in_half_precision_with_an_empty_tail():
    teacher = teacher_topk(TEACHER, k=4, temperature=TAU)
    half = replace(teacher, log_p_TK=teacher.log_p_TK.half(), log_tail_T=teacher.log_tail_T.half())
    assert half.log_tail_T.isinf().all()
    x = FLAT.clone().requires_grad_(True)
    total, _ = distill_topk_loss(x, half, temperature=TAU)
    total.backward()
    assert total.item() == pytest.approx(0.25 * math.log(2), rel=1e-2)
    torch.testing.assert_close(x.grad[0], tensor(-1 / 6, 0.0, 1 / 12, 1 / 12), atol=1e-3, rtol=0)  # (q - p) / tau


def test_topk_distillation_keeps_a_tail_that_one_minus_the_rest_would_lose():
    # Teacher and student have tails of e^-30 and e^-60 times the best: in float32 both best tokens have mass 1.
    teacher, student = torch.tensor([[30.0, 0.0]]), torch.tensor([[60.0, 0.0]], requires_grad=True)
    total, _ = distill_topk_loss(student, teacher_topk(teacher, k=1, temperature=1.0), temperature=1.0)
    total.backward()
    # p ln(p / q) of the tail: e^-30 * (60 - 30) = 2.807e-12; the best token adds about -e^-30 = -9.4e-14, lost here.
    assert total.item() == pytest.approx(30 * math.exp(-30), rel=0.05)
    assert bool(student.grad.isfinite().all())


def test_composition_loss_is_the_sum_of_both_divergences():
    p, f = tensor([0.8, 0.2]).log(), tensor([0.5, 0.5]).log()
    # KL(p||f) = 0.8 ln 1.6 + 0.2 ln 0.4 = 0.192745; KL(f||p) = 0.5 ln 0.625 + 0.5 ln 2.5 = 0.223144
    total, count = composition_loss(p, f)
    assert total.item() == pytest.approx(0.192745 + 0.223144, abs=1e-5)
    assert count.item() == 1
    assert composition_loss(f, p)[0].item() == pytest.approx(total.item())


def test_losses_of_no_token_are_zero_and_have_a_gradient():
    nothing = noise(0, 4)
    assert_nothing(lambda x: lm_loss(x, torch.zeros(0, dtype=torch.long)), nothing)
    assert_nothing(lambda x: distill_loss(x, nothing, temperature=TAU), nothing)
    teacher = teacher_topk(nothing, k=2, temperature=TAU)
    assert_nothing(lambda x: distill_topk_loss(x, teacher, temperature=TAU), nothing)
    assert_nothing(lambda x: composition_loss(x, nothing), nothing)


LOSSES = {
    "lm": lambda x, other: lm_loss(x, other.argmax(-1)),
    "distill": lambda x, other: distill_loss(x, other, temperature=TAU),
    "distill top-k": lambda x, other: distill_topk_loss(x, teacher_topk(other, k=2, temperature=TAU), temperature=TAU),
    "composition": composition_loss,
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    other = noise(3, 5, seed=1)
    assert gradients_match(lambda x: LOSSES[name](x, other), noise(3, 5))


def test_composition_sends_its_gradient_into_both_passes():
    assert gradients_match(composition_loss, noise(3, 5), noise(3, 5, seed=1))


def test_composition_sends_the_same_gradient_into_one_pass_where_the_other_is_detached():
    p, f = noise(3, 5).requires_grad_(True), noise(3, 5, seed=1).requires_grad_(True)
    both = torch.autograd.grad(composition_loss(p, f)[0], (p, f))
    assert torch.equal(torch.autograd.grad(composition_loss(p, f.detach())[0], p)[0], both[0])
    assert torch.equal(torch.autograd.grad(composition_loss(p.detach(), f)[0], f)[0], both[1])


def test_composition_of_shifted_logits_is_nothing_in_single_precision():
    p = (3 * noise(4, 1000)).float().requires_grad_(True)
    total, _ = composition_loss(p, p.detach() + 64.0)
    total.backward()
    assert total.item() == pytest.approx(0.0, abs=1e-7)
    assert p.grad.abs().max().item() < 1e-5


def test_composition_of_distributions_that_hardly_differ_keeps_its_digits_in_single_precision():
    p = (3 * noise(4, 1000)).float()
    f = p + 1e-3 * noise(4, 1000, seed=1).float()
    assert composition_loss(p, f)[0].item() == pytest.approx(
        composition_loss(p.double(), f.double())[0].item(), rel=1e-3
    )


@pytest.mark.parametrize("mass", [0.9, 1.1])
def test_topk_gradient_holds_for_a_teacher_that_rounding_keeps_from_summing_to_one(mass):
    teacher = teacher_topk(noise(3, 5, seed=1), k=2, temperature=TAU)
    log_mass = math.log(mass)
    teacher = replace(teacher, log_p_TK=teacher.log_p_TK + log_mass, log_tail_T=teacher.log_tail_T + log_mass)
    assert gradients_match(lambda x: distill_topk_loss(x, teacher, temperature=TAU), noise(3, 5))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_do_not_depend_on_the_size_of_a_chunk(name, monkeypatch):
    def of_chunks(size):
        monkeypatch.setattr(language, "CHUNK_SIZE", size)
        x = noise(5, 4).requires_grad_(True)
        total, _ = LOSSES[name](x, noise(5, 4, seed=1))
        return total.detach(), torch.autograd.grad(total, x)[0]

    whole = of_chunks(20)
    torch.testing.assert_close(of_chunks(8), whole)  # two tokens at a time, and the fifth alone
    torch.testing.assert_close(of_chunks(1), whole)  # never less than a token


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_follow_the_scale_of_a_loss_and_can_be_asked_for_again(name):
    x = noise(3, 5).requires_grad_(True)
    total, _ = LOSSES[name](x, noise(3, 5, seed=1))
    plain, scaled, again = (torch.autograd.grad(scale * total, x, retain_graph=True)[0] for scale in (1.0, 0.25, 1.0))
    assert torch.equal(scaled, 0.25 * plain)
    assert torch.equal(again, plain)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", ["lm", "distill top-k", "composition"])
def test_the_scale_of_a_loss_is_not_rounded_to_the_dtype_of_the_logits(name, device):
    x, other = (noise(3, 40, seed=seed).bfloat16().to(device) for seed in (0, 1))
    total, _ = LOSSES[name](x.requires_grad_(True), other)
    plain, scaled = (torch.autograd.grad(scale * total, x, retain_graph=True)[0] for scale in (1.0, 1 / 3))
    # In bfloat16 a third is 0.33398, 0.2 % too much, and many products would round to another number.
    assert torch.equal(scaled, (plain.float() * (1 / 3)).bfloat16())


@pytest.mark.parametrize("name", LOSSES)
def test_sums_and_counts_of_parts_of_a_batch_add_up(name):
    assert_parts_add_up(LOSSES[name], noise(5, 4), noise(5, 4, seed=1), sizes=(2, 3))


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_are_compared_in_float32(name):
    x, other = noise(3, 5).bfloat16(), noise(3, 5, seed=1).bfloat16()
    total, _ = LOSSES[name](x, other)
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(LOSSES[name](x.double(), other.double())[0].item(), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_get_a_gradient_of_their_own_dtype_rounded_once(name):
    x, other = (3 * noise(3, 40)).bfloat16(), (3 * noise(3, 40, seed=1)).bfloat16()
    half, double = x.clone().requires_grad_(True), x.double().requires_grad_(True)
    for logits in (half, double):
        LOSSES[name](logits, other.to(logits.dtype))[0].backward()
    assert half.grad.dtype == torch.bfloat16
    # bfloat16 has 8 bits: rounding to the nearest is off by 2^-9 of the number at most.
    torch.testing.assert_close(half.grad.double(), double.grad, rtol=2**-8, atol=1e-6)


def test_lm_gradient_of_an_almost_certain_token_survives_half_precision():
    x = torch.tensor([[8.0, 0.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    lm_loss(x, torch.tensor([0]))[0].backward()
    # p - 1 = -2 e^-8 / (1 + 2 e^-8) = -6.7048e-4, where bfloat16 would round p itself to 1.
    assert x.grad[0, 0].item() == pytest.approx(-6.7048e-4, rel=2**-8)
