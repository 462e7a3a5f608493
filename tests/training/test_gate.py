"""The answerability gate: what it is fitted on, how well it parts clear cases, and what it refuses."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import training.gate
from models.router import MASKED_SCORE, AnswerabilityGate
from tests.training.samples import colours, make_record, river_and_town
from tests.training.worlds import SPECS, base_of, library_over
from training.banks import banks_of, other_article, same_article
from training.gate import SIZE, Asked, ask_banks, fit_gate, fit_to
from training.library import Library


def library_of(records):
    """Return the words of a library, without a model."""
    return Library(SimpleNamespace(device=torch.device("cpu")), None, records)


NAMES = ("passage", "shelf", "library")
OFF = ("off_passage", "off_atoms", "off_shelf", "off_library")


def clusters(gap, f1=0.5):
    """Return a stand-in for `ask_banks`: answerable at `gap`, off-topic at 0, in every feature alike."""
    generator = torch.Generator().manual_seed(0)

    def banks(_library, asks, _rng):
        noise = {n: torch.rand(len(asks), 4, generator=generator) for n in NAMES}
        off = {n: Asked(features=torch.rand(len(asks), 4, generator=generator)) for n in OFF}
        return {**{n: Asked(features=gap + x, f1=(f1,) * len(asks)) for n, x in noise.items()}, **off}

    return banks


def test_clear_cases_are_told_apart_without_fault(monkeypatch):
    monkeypatch.setattr(training.gate, "ask_banks", clusters(2.0))
    gate, figures = fit_gate(library_of(colours(40)))
    assert figures["auroc"] == dict.fromkeys(OFF, 1.0)
    assert all(figures["refused"][name] == 1.0 for name in OFF)
    weights = [a + s * (gate.largest or 0.0) for a, s in zip(gate.coefficients, gate.slopes, strict=True)]
    assert all(weight > 0 for weight in weights[:SIZE])
    # A bank without the answer was smaller; that it is so says nothing.
    assert weights[SIZE] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("gap", [0.0, 0.3, 2.0])
def test_the_threshold_costs_a_point_of_f1_in_the_worst_bank(monkeypatch, gap):
    monkeypatch.setattr(training.gate, "ask_banks", clusters(gap))
    gate, figures = fit_gate(library_of(colours(40)))
    # 120 questions a bank, each worth 0.5 / 120 = 0.0042: the two lowest may be refused, the third is the threshold.
    assert max(figures["f1_lost"].values()) == pytest.approx(2 * 0.5 / 120)
    assert 0.0 < gate.threshold < 1.0


def test_questions_that_are_answered_wrongly_anyway_cost_nothing_to_refuse(monkeypatch):
    monkeypatch.setattr(training.gate, "ask_banks", clusters(0.6, f1=0.0))
    _, figures = fit_gate(library_of(colours(40)))
    assert all(figures["refused"][name] > 0.9 for name in OFF)
    assert max(figures["f1_lost"].values()) == 0.0


def test_a_feature_that_says_nothing_gets_no_weight(monkeypatch):
    def banks(_library, asks, _rng):
        own = torch.tensor([[1.0, 0.5, -3.0, 2.0], [0.4, 0.5, -3.0, 2.0]]).repeat(len(asks), 1)[: len(asks)]
        off = torch.tensor([[0.5, 0.5, -3.0, 2.0], [0.1, 0.5, -3.0, 2.0]]).repeat(len(asks), 1)[: len(asks)]
        known = {name: Asked(features=own, f1=(1.0,) * len(asks)) for name in NAMES}
        return {**known, **{name: Asked(features=off) for name in OFF}}

    monkeypatch.setattr(training.gate, "ask_banks", banks)
    gate, _ = fit_gate(library_of(colours(8)))
    assert gate.coefficients[0] > 1.0
    assert gate.coefficients[1:] == pytest.approx((0.0, 0.0, 0.0), abs=1e-3)


def test_what_names_nothing_teaches_no_weight_but_is_not_refused_for_that():
    generator = torch.Generator().manual_seed(0)
    named_Q = torch.arange(200) % 2 == 0

    def kind(score):  # of a question that names nothing, the same in every bank
        features = torch.randn(200, 4, generator=generator) * torch.tensor([0.3, 0.0, 0.0, 0.0])
        return features + torch.tensor([1.0, 0.0, 0.0, 2.0]) * torch.where(named_Q, score, 0.0)[:, None]

    banks = {"passage": kind(2.0), "off_passage": kind(0.5)}
    f1 = {"passage": [0.5] * 200}
    fits = {name: fit_to(banks, f1, named)[0] for name, named in (("named", named_Q), ("all", None))}
    assert fits["named"].coefficients[0] > 2 * fits["all"].coefficients[0] > 0
    scores = fits["named"](banks["passage"])
    lost = (scores < fits["named"].threshold).float().mean() * 0.5
    assert 0 < lost <= 0.01 and fits["named"].threshold < scores[named_Q].min()


def test_where_few_questions_name_anything_all_of_them_teach(monkeypatch):
    taught = []
    monkeypatch.setattr(training.gate, "ask_banks", clusters(1.0))
    monkeypatch.setattr(training.gate, "fit_to", lambda *given: (taught.append(given[2]), (None, {}))[1])
    library = library_of(colours(8))
    for found in (["Marn"], []):
        monkeypatch.setattr(training.gate, "names", lambda _, found=found: found)
        fit_gate(library)
    assert taught[0].all() and taught[1] is None


def test_one_threshold_costs_the_same_in_small_banks_and_large_ones():
    generator = torch.Generator().manual_seed(0)

    def kind(score, size, number=400):
        noise = torch.randn(number, 1, generator=generator)
        return torch.cat([score + noise, torch.zeros(number, 2), torch.full((number, 1), size)], dim=1)

    # The best of many strangers scores higher, and so does the best of many that know.
    known = {"passage": kind(2.0, 2.0), "shelf": kind(4.0, 6.0), "library": kind(5.0, 8.0)}
    off = {"off_passage": kind(-1.0, 2.0), "off_shelf": kind(1.0, 6.0), "off_library": kind(2.0, 7.5)}
    gate, figures = fit_to({**known, **off}, {name: [0.5] * 400 for name in known})
    lost = figures["f1_lost"].values()
    assert 0.5 * max(lost) < min(lost) and max(lost) <= 0.01
    assert gate.largest == 8.0
    assert all(figures["refused"][name] > 0.5 for name in off)


def test_what_the_size_does_to_a_weight_ends_at_the_largest_bank_that_was_seen():
    gate = AnswerabilityGate(coefficients=(1.0, 0.0, 0.0, 0.25), slopes=(0.5,), largest=4.0)
    sizes = [0.0, 2.0, 4.0, 9.0]
    features = torch.tensor([[1.0, 0.0, 0.0, size] for size in sizes])
    # 1 + 0.25 size + 0.5 size, up to a size of 4, or without an end.
    for used, last in ((gate, 4.0), (replace(gate, largest=None), 7.75)):
        logits = [math.log(p / (1 - p)) for p in used(features).tolist()]
        assert logits == pytest.approx([1.0, 2.5, 4.0, last], abs=1e-3)


def test_only_questions_with_gold_atoms_are_asked_and_no_more_than_the_limit(monkeypatch):
    seen, stand_in = [], clusters(1.0)

    def banks(library, asks, rng):
        seen.extend(asks)
        return stand_in(library, asks, rng)

    monkeypatch.setattr(training.gate, "ask_banks", banks)
    monkeypatch.setattr(training.gate, "ask_passages", lambda _, asks: Asked(features=torch.zeros(len(asks), 4)))
    _, figures = fit_gate(library_of(river_and_town()), max_questions=4, batch_size=3)
    assert figures["questions"] == len(seen) == 4
    assert all(ask.gold for ask in seen)


def test_near_misses_are_asked_of_their_own_passage_and_weigh_as_a_kind_however_few(monkeypatch):
    records = colours(40)
    missed = make_record("Oland", ["Hen 1 sleeps."], [("Who does not sleep?", "", []), ("Who rests?", "", [])])
    by_rule = replace(missed.qa_pairs[1], is_generated_irrelevant=True)
    library = library_of([*records, replace(missed, qa_pairs=(missed.qa_pairs[0], by_rule))])
    asked = []

    def near(_library, asks):
        asked.extend(asks)
        return Asked(features=torch.tensor([[2.0, 2.0, -1.0, 2.0]]).repeat(len(asks), 1))

    def banks(library, asks, rng):
        found = clusters(2.0)(library, asks, rng)
        for name in NAMES:
            found[name].features[:, 2] = 2.0
        return found

    monkeypatch.setattr(training.gate, "ask_banks", banks)
    monkeypatch.setattr(training.gate, "ask_passages", near)
    gate, figures = fit_gate(library)
    assert [(ask.question.question, ask.passage) for ask in asked] == [("Who does not sleep?", 40), ("Who rests?", 40)]
    # A question each against 120: were rows to count alike, the first two features would part nearly everything.
    weights = [a + s * (gate.largest or 0.0) for a, s in zip(gate.coefficients, gate.slopes, strict=True)]
    assert weights[2] > max(weights[:2])
    assert figures["auroc"]["off_near"] == figures["refused"]["off_near"] == figures["refused"]["off_altered"] == 1.0


def test_a_bank_that_holds_nothing_does_not_weigh_in():
    generator = torch.Generator().manual_seed(0)
    own = torch.rand(100, 4, generator=generator) + torch.tensor([1.0, 0.0, 0.0, 1.0])
    off = torch.rand(100, 4, generator=generator) + torch.tensor([0.0, 0.0, 0.0, 1.0])
    nothing = torch.tensor([[MASKED_SCORE, 0.0, -0.1, 0.0]]).repeat(20, 1)
    fits = [
        fit_to({"passage": own, "off_passage": x}, {"passage": [0.5] * 100}) for x in (off, torch.cat([off, nothing]))
    ]
    assert fits[0] == fits[1]


def test_banks_that_know_nothing_hold_no_atom_of_the_questions_article():
    records = colours(40)
    library = library_over(base_of("llama"), SPECS["d2a"], records)
    asks = [library.asks(passage)[0] for passage in (0, 5, 11)]
    banks = ask_banks(library, asks, random.Random(0))
    assert set(banks) == {*NAMES, *OFF}
    sizes = {name: bank.features[:, 3].exp().round().tolist() for name, bank in banks.items()}
    # 40 passages of 3 atoms in 4 articles of 10 passages: 120 atoms in all, 90 of them of other articles.
    assert sizes["library"] == [120.0] * 3 and sizes["off_library"] == [90.0] * 3
    assert sizes["passage"] == sizes["off_passage"] == [3.0] * 3
    assert sizes["off_atoms"] == [2.0] * 3  # one of the three holds the answer
    # A shelf holds 4 passages drawn at random, and the question's own.
    assert all(12 <= n <= 15 for n in sizes["shelf"]) and max(sizes["off_shelf"]) <= 12
    assert [len(banks[n].f1) for n in NAMES] == [3, 3, 3] and banks["off_library"].f1 == ()


def test_a_passage_without_its_answer_keeps_its_other_atoms_or_gives_way_to_a_stranger():
    library = library_over(base_of("llama"), SPECS["d2a"], river_and_town())
    asks = [library.asks(passage)[0] for passage in (0, 3)]
    lake = asks[0].question
    helped = replace(asks[0], question=replace(lake, supporting_atom_ids=("atom_2",)))
    asks = [asks[0], helped, asks[1]]
    found = banks_of(library, asks, library.query_keys(asks), random.Random(0))
    rows = [candidates.rows.tolist() for candidates in found["off_atoms"].candidates]
    # Atoms 0-2 are the first passage's, of which the first holds the answer; the last passage has its gold atom alone.
    assert lake.gold_atom_ids == ("atom_0",) and rows[:2] == [[1, 2], [1]]
    assert rows[2] == found["off_passage"].candidates[2].rows.tolist() and 9 not in rows[2]
    assert found["off_atoms"].num_atoms == [2, 1, len(rows[2])]
    # The words that only the answer's atom has are evidence no more.
    whole, rest = (found[name].candidates[0].evidence for name in ("passage", "off_atoms"))
    assert rest == library.lexical(0).evidence(lake.question, np.array([False, True, True])) < whole


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
