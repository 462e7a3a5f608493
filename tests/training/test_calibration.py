"""Calibration: the score's weights go where held-out questions want them, and leave keys and latents alone."""

import pytest
import torch

from tests.training.samples import colours
from tests.training.worlds import SPECS, base_of, library_over
from training.calibration import calibrate, fit_scores


@pytest.fixture
def library():
    return library_over(base_of("llama"), SPECS["d2a"], colours(40))


def test_words_gain_weight_where_they_find_the_answer_and_random_keys_do_not(library):
    router = library.network.router
    with torch.no_grad():
        router.lexical.fill_(1.0)
        router.bias.fill_(3.0)
    figures = fit_scores(library, max_questions=60)
    assert figures["loss_after"] < 0.5 * figures["loss_before"]
    assert figures["lexical"] == router.lexical.item() > 5.0
    assert figures["bias"] == router.bias.item() < 3.0


def test_only_the_scores_own_weights_change_and_stay_frozen(library):
    before = {name: value.clone() for name, value in library.network.state_dict().items()}
    fit_scores(library, max_questions=30)
    changed = {n for n, v in library.network.state_dict().items() if not torch.equal(v, before[n])}
    assert changed <= {"router.log_scale", "router.bias", "router.lexical", "router.metadata"}
    assert "router.lexical" in changed
    assert not any(p.requires_grad for p in library.network.parameters())


def test_weights_are_those_that_a_checkpoint_keeps(library):
    fit_scores(library, max_questions=30)
    router = library.network.router
    for value in (router.log_scale, router.bias, router.lexical, router.metadata):
        assert torch.equal(value, value.bfloat16().float())


def test_a_memory_without_words_keeps_their_weight_at_zero():
    library = library_over(base_of("llama"), SPECS["paper"], colours(8))
    figures = fit_scores(library, max_questions=12)
    assert "lexical" not in figures and library.network.router.lexical.item() == 0.0


def test_the_gate_is_fitted_to_the_new_scores(library):
    gate, figures = calibrate(library, max_questions=12, batch_size=6)
    assert (figures["scores"]["questions"], figures["questions"]) == (120, 12)
    assert figures["auroc"]["library"] > 0.9  # colours name their passage, so words alone tell
    assert 0.0 <= gate.threshold <= 1.0
