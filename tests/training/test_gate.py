"""The answerability gate: what it is fitted on, how well it parts clear cases, and what it refuses."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import training.gate
from tests.training.samples import colours, make_record, river_and_town
from training.gate import ANSWERABLE_REFUSED, fit_gate, other_article, same_article
from training.library import Library


def library_of(records):
    """Return the words of a library, without a model."""
    return Library(SimpleNamespace(device=torch.device("cpu")), None, records)


def clusters(gap):
    """Return a stand-in for `bank_features`: answerable at `gap`, off-topic at 0, in every feature alike."""
    generator = torch.Generator().manual_seed(0)

    def features(_library, asks, _rng):
        noise = {n: torch.rand(len(asks), 4, generator=generator) for n in ("passage", "library")}
        off = {f"off_{n}": torch.rand(len(asks), 4, generator=generator) for n in ("passage", "library")}
        return {**{n: gap + x for n, x in noise.items()}, **off}

    return features


def test_clear_cases_are_told_apart_without_fault(monkeypatch):
    monkeypatch.setattr(training.gate, "bank_features", clusters(2.0))
    gate, figures = fit_gate(library_of(colours(40)))
    assert figures["auroc_passage"] == figures["auroc_library"] == 1.0
    assert figures["refused"]["off_passage"] == figures["refused"]["off_library"] == 1.0
    assert all(coefficient > 0 for coefficient in gate.coefficients)


@pytest.mark.parametrize("gap", [0.0, 0.3, 2.0])
def test_the_threshold_refuses_the_stated_share_of_answerable_questions_at_most(monkeypatch, gap):
    monkeypatch.setattr(training.gate, "bank_features", clusters(gap))
    gate, figures = fit_gate(library_of(colours(40)))
    refused = (figures["refused"]["passage"] + figures["refused"]["library"]) / 2
    # 240 scores: seven of them lie below the 3 % quantile, 7 / 240 = 0.029.
    assert 0.02 < refused <= ANSWERABLE_REFUSED
    assert 0.0 < gate.threshold < 1.0


def test_a_feature_that_says_nothing_gets_no_weight(monkeypatch):
    def features(_library, asks, _rng):
        answerable = torch.tensor([[1.0, 0.5, -3.0, 2.0], [0.4, 0.5, -3.0, 2.0]]).repeat(len(asks), 1)[: len(asks)]
        off = torch.tensor([[0.5, 0.5, -3.0, 2.0], [0.1, 0.5, -3.0, 2.0]]).repeat(len(asks), 1)[: len(asks)]
        return {"passage": answerable, "library": answerable, "off_passage": off, "off_library": off}

    monkeypatch.setattr(training.gate, "bank_features", features)
    gate, _ = fit_gate(library_of(colours(8)))
    assert gate.coefficients[0] > 1.0
    assert gate.coefficients[1:] == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)


def test_only_questions_with_gold_atoms_are_asked_and_no_more_than_the_limit(monkeypatch):
    seen = []

    def features(_library, asks, _rng):
        seen.extend(asks)
        rows = torch.rand(len(asks), 4)
        return dict.fromkeys(("passage", "library", "off_passage", "off_library"), rows)

    monkeypatch.setattr(training.gate, "bank_features", features)
    _, figures = fit_gate(library_of(river_and_town()), max_questions=4, batch_size=3)
    assert figures["questions"] == len(seen) == 4
    assert all(ask.gold for ask in seen)


def test_an_article_is_hidden_whole_and_nothing_else():
    library = library_of(river_and_town())
    masks = [same_article(library, library.asks(passage)[0]) for passage in range(4)]
    # Atoms 0-4 are Oland's, 5-8 Physics', 9 belongs to a passage without a title.
    expected = [range(5), range(5), range(5, 9), [9]]
    assert [np.flatnonzero(m).tolist() for m in masks] == [list(e) for e in expected]


def test_untitled_passages_are_articles_of_their_own():
    untitled = [make_record("", [f"Hen {n} sleeps."], [("Who sleeps?", f"Hen {n}", [0])]) for n in range(2)]
    library = library_of(untitled)
    assert same_article(library, library.asks(0)[0]).tolist() == [True, False]
    assert other_article(library, 0, random.Random(0)) == 1


def test_strangers_come_from_other_articles_where_there_are_any():
    library = library_of(river_and_town())
    rng = random.Random(0)
    assert {other_article(library, 0, rng) for _ in range(50)} == {2, 3}
    one_article = library_of(river_and_town()[:2])
    assert other_article(one_article, 0, rng) == 1
