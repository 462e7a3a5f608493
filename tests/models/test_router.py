"""The router by hand: scores, weights with and without a null slot, metadata, and the answerability gate."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from models.atoms import SEMANTIC_TYPES, Atom
from models.router import AnswerabilityGate, Router, atom_metadata, gate_features
from tests.models.tiny import RECIPES, tiny_spec

ALL = torch.ones(1, 3, dtype=torch.bool)


def _router(recipe: str, **fields: object) -> Router:
    return Router(tiny_spec(recipe, router=fields))


@pytest.mark.parametrize(("recipe", "lexical"), [("d2a", 14.0 * 0.4), ("paper", 0.0)])
def test_score_is_the_sum_of_its_parts(recipe: str, lexical: float) -> None:
    router = _router(recipe)
    with torch.no_grad():
        router.log_scale.fill_(math.log(10.0))
        router.bias.fill_(-3.0)
        router.rerank.fill_(2.0)
        router.metadata.copy_(torch.tensor([1.0, 0.5, -1.0, 2.0]))
    cosine, lexical_BC, rerank = torch.tensor([[0.25]]), torch.tensor([[0.4]]), torch.tensor([[0.7]])
    metadata = torch.tensor([[[0.9, 1.0, 0.0, 0.2]]])
    # 10 * 0.25 - 3 + (0.9 + 0.5 - 0 + 0.4) = 1.3, and 14 * 0.4 = 5.6 with a lexical term; 2 * 0.7 = 1.4 reranked
    assert router.score(cosine, lexical_BC, metadata).item() == pytest.approx(1.3 + lexical, abs=1e-5)
    assert router.score(cosine, lexical_BC, metadata, rerank).item() == pytest.approx(2.7 + lexical, abs=1e-5)


@pytest.mark.parametrize(("recipe", "gain"), [("d2a", 3.0 * 0.5), ("paper", 0.0)])
def test_words_of_the_stretch_count_where_words_do(recipe: str, gain: float) -> None:
    router = _router(recipe)
    cosine, metadata = torch.rand(1, 4), torch.rand(1, 4, 4)
    without, stretch = router.score(cosine, cosine, metadata), torch.full((1, 4), 0.5)
    assert_close(router.score(cosine, cosine, metadata, stretch_BC=stretch), without)  # a fresh router ignores them
    with torch.no_grad():
        router.stretch.fill_(3.0)
    assert_close(router.score(cosine, cosine, metadata, stretch_BC=stretch), without + gain)
    assert_close(router.score(cosine, cosine, metadata), without)


def test_weights_from_before_the_stretch_load_with_none_for_it() -> None:
    old, router = _router("d2a").state_dict(), _router("d2a")
    del old["stretch"]
    with torch.no_grad():
        router.stretch.fill_(3.0)
    router.load_state_dict(old)
    assert router.stretch.item() == 0.0


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_fresh_router_ignores_the_reranker(recipe: str) -> None:
    router = _router(recipe)
    cosine, metadata = torch.rand(1, 4), torch.rand(1, 4, 4)
    without = router.score(cosine, cosine, metadata)
    assert_close(router.score(cosine, cosine, metadata, torch.randn(1, 4)), without)


def test_null_slot_takes_its_share_of_the_softmax() -> None:
    routing = _router("d2a").select(torch.tensor([[0.0, 2.0, 1.0]]), ALL, top_k=2)
    assert routing.index_BK.tolist() == [[1, 2]]
    # e^2 + e^1 + e^0 = 7.389 + 2.718 + 1 = 11.107
    assert_close(routing.weight_BK, torch.tensor([[7.389 / 11.107, 2.718 / 11.107]]), atol=1e-4, rtol=0)


def test_without_a_null_slot_weights_sum_to_one() -> None:
    routing = _router("paper").select(torch.tensor([[-30.0, -28.0, -29.0]]), ALL, top_k=2)
    # e^0 / (e^0 + e^-1) = 0.7311
    assert_close(routing.weight_BK, torch.tensor([[0.7311, 0.2689]]), atol=1e-4, rtol=0)
    assert routing.weight_BK.sum().item() == pytest.approx(1.0)


def test_null_slot_weights_vanish_when_all_scores_are_low() -> None:
    sums = [
        _router("d2a").select(torch.full((1, 3), score), ALL, top_k=3).weight_BK.sum().item()
        for score in (0.0, -2.0, -10.0, -50.0)
    ]
    # 3 e^s / (3 e^s + 1)
    assert sums == pytest.approx([0.75, 0.28877, 1.3618e-4, 0.0], rel=1e-3, abs=1e-12)


def test_temperature_divides_the_scores_but_not_the_null_slot() -> None:
    routing = _router("d2a", temperature=2.0).select(torch.tensor([[2.0, -5.0, -5.0]]), ALL, top_k=1)
    assert routing.weight_BK.item() == pytest.approx(math.e / (math.e + 1), rel=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_padding_never_gets_weight(recipe: str) -> None:
    valid = torch.tensor([[True, False, True], [False, False, False]])
    routing = _router(recipe).select(torch.tensor([[1.0, 9.0, 0.5], [9.0, 9.0, 9.0]]), valid, top_k=3)
    assert routing.index_BK[0, :2].tolist() == [0, 2]
    assert (routing.weight_BK[0, :2] > 0.1).all()
    assert routing.weight_BK[0, 2] == 0
    assert (routing.weight_BK[1] == 0).all()
    assert not routing.log_weight_BK.isnan().any()


@pytest.mark.parametrize("recipe", RECIPES)
def test_adding_a_worse_candidate_beyond_top_k_changes_nothing(recipe: str) -> None:
    router, score = _router(recipe), torch.tensor([[3.0, 1.0, 0.2]])
    two = router.select(score[:, :2], ALL[:, :2], top_k=2)
    three = router.select(score, ALL, top_k=2)
    assert_close(two.log_weight_BK, three.log_weight_BK)


def test_asking_for_more_than_there_is_gives_all() -> None:
    routing = _router("d2a").select(torch.tensor([[1.0, 2.0, 0.0]]), ALL, top_k=8)
    assert routing.index_BK.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("recipe", RECIPES)
def test_weights_are_differentiable_beside_padding(recipe: str) -> None:
    score = torch.tensor([[1.0, 0.5, 0.0]], requires_grad=True)
    routing = _router(recipe).select(score, torch.tensor([[True, True, False]]), top_k=3)
    routing.weight_BK[0, 0].backward()
    w = routing.weight_BK[0].detach()
    # d w_0 / d s_0 = w_0 (1 - w_0), d w_0 / d s_1 = -w_0 w_1, and nothing from padding
    assert_close(score.grad, torch.stack([w[0] * (1 - w[0]), -w[0] * w[1], torch.tensor(0.0)])[None])


def test_metadata_comes_from_the_atom_alone() -> None:
    plain = Atom(
        atom_id="a", semantic_type=SEMANTIC_TYPES[0], content="x", source_span="x", retrieval_text="", confidence=0.5
    )
    marked = Atom(
        atom_id="b",
        semantic_type=SEMANTIC_TYPES[3],
        content="y",
        source_span="y",
        retrieval_text="",
        confidence=0.9,
        is_answer_bearing=not plain.is_answer_bearing,
        conflict_group="g",
    )
    bearing = float(plain.is_answer_bearing)
    # confidence, answer-bearing, in a conflict group, index of the type / 5
    expected = torch.tensor([[0.5, bearing, 0.0, 0.0], [0.9, 1 - bearing, 1.0, 0.6]])
    assert_close(atom_metadata([plain, marked]), expected)
    assert atom_metadata([]).shape == (0, 4)


def test_the_gate_is_a_logistic_of_its_signals_as_far_as_it_was_fitted_with_them() -> None:
    gate = AnswerabilityGate(coefficients=(4.0, 2.0, -0.5, -0.25), bias=-1.0)
    signals = [torch.tensor(x) for x in (0.5, 0.25, -3.0, math.e**2, (-2.0, 1.0, 0.0, 1.0), 0.5)]
    # 4 * 0.5 + 2 * 0.25 + 0.5 * 3 - 0.25 * ln(e^2) - 1 = 2.5; sigmoid(2.5) = 0.92414
    assert gate(gate_features(*signals)).item() == pytest.approx(0.92414, abs=1e-5)
    # Doubts count for a gate that was fitted with them: 2.5 + 0.25 * 2 - 1 * 1 + 0 - 2 * 1 = 0.
    doubting = replace(gate, coefficients=(*gate.coefficients, -0.25, -1.0, -3.0, -2.0))
    assert doubting(gate_features(*signals)).item() == pytest.approx(0.5)
    # The next is the probability of the refusal itself, e^-3.
    likely = replace(doubting, coefficients=(*doubting.coefficients, math.e**3 * math.log(3)))
    assert likely(gate_features(*signals)).item() == pytest.approx(0.75)
    # The last is what the memory adds to the question: ln(3) + 0.5 * 2 * ln(3) = ln(9).
    gaining = replace(likely, coefficients=(*likely.coefficients, 2 * math.log(3)))
    assert gaining(gate_features(*signals)).item() == pytest.approx(0.9)


def test_that_a_memory_expects_a_question_never_speaks_against_an_answer() -> None:
    def sure(num_atoms: float, gain: float) -> float:
        signals = [torch.tensor(x) for x in (0.0, 0.0, 0.0, num_atoms, (0.0,) * 5, gain)]
        return gate(gate_features(*signals)).item()

    # The gain's weight is -1 + ln(atoms): below 0 in banks of one or two atoms, ln(3) - 1 in one of three.
    gate = AnswerabilityGate(coefficients=(0.0,) * 10 + (-1.0,), slopes=(0.0,) * 10 + (1.0,))
    assert sure(1, 5.0) == sure(2, 5.0) == sure(1, 1.0) == pytest.approx(0.5)
    assert sure(3, 1.5) == pytest.approx(1 / (1 + math.exp(-1.5 * (math.log(3) - 1))))
