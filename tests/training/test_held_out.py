"""Evaluation during training: figures that can be known beforehand, and runs that do not use their memory."""

from dataclasses import replace

import pytest
import torch

from tests.training.samples import colours
from tests.training.worlds import articles_of, world
from training.config import TrainConfig
from training.held_out import HeldOut, UnusedMemoryError, check_use

RECORDS = colours(12)


def held_out(recipe="d2a", *, records=RECORDS, **changes):
    step, sampler = world("llama", recipe, records)
    router = step if changes.pop("routes", True) else None
    return step, HeldOut(
        system=step, sampler=sampler, article_N=changes.pop("articles", articles_of(RECORDS)), router=router
    )


def test_figures_are_exact_where_routing_is_forced():
    step, made = held_out()
    with torch.no_grad():
        router = step.network.router
        router.log_scale.fill_(-20.0)
        router.metadata.zero_()
        router.lexical.fill_(100.0)
    figures = made.evaluate()
    # Words alone decide, and each question names its place, which one atom of all holds.
    assert (figures["top1_passage"], figures["top1_library"], figures["auroc"]) == (1.0, 1.0, 1.0)
    assert figures["lm_passage"] == pytest.approx(figures["lm_gold"], abs=0.05)
    assert figures["loss"] == pytest.approx((figures["lm_passage"] + figures["lm_library"]) / 2)
    assert figures["distinct"] > 0.5 and figures["correct"] != figures["shuffled"]
    # Every question has a stranger here, so the right documents are the same questions once more.
    assert figures["correct"] == pytest.approx(figures["lm_passage"], abs=2e-4)


def test_a_memory_that_gets_no_weight_answers_alike_whatever_the_document():
    step, made = held_out()
    with torch.no_grad():
        step.network.router.bias.fill_(-1e3)  # the null slot takes all weight
    figures = made.evaluate()
    assert figures["correct"] == figures["shuffled"] == figures["lm_passage"]
    assert figures["distinct"] == 0.0
    with pytest.raises(UnusedMemoryError, match=r"at step 7 .* 0\.000 nats"):
        check_use(figures, 7, TrainConfig(probe_from_step=7))


def test_questions_without_a_reference_answer_have_no_part_in_the_loss(monkeypatch):
    records = [replace(r, qa_pairs=(replace(r.qa_pairs[0], answers=()), *r.qa_pairs[1:])) for r in RECORDS]
    step, made = held_out(records=records)
    asked, answer = [], step.answer
    monkeypatch.setattr(step, "answer", lambda b, **k: asked.extend(b.question_B.tolist()) or answer(b, **k))
    made.evaluate()
    assert set(asked) == {q for q in range(36) if q % 3}


def test_systems_without_a_router_or_a_document_have_fewer_figures():
    _, made = held_out(routes=False)
    assert made.evaluate().keys() == {"loss", "lm_passage", "lm_library", "correct", "shuffled", "distinct"}
    _, made = held_out(routes=False, articles=None)
    assert made.evaluate().keys() == {"loss", "lm_passage", "lm_library"}


def test_a_run_that_does_not_use_its_memory_is_stopped_in_one_line():
    config = TrainConfig(probe_margin=0.1, probe_from_step=100)
    unused, used = {"correct": 2.0, "shuffled": 2.05}, {"correct": 2.0, "shuffled": 2.2}
    check_use(unused, 99, config)
    check_use(used, 100, config)
    check_use({"loss": 1.0}, 100, config)
    with pytest.raises(UnusedMemoryError, match=r"step 100 another document's memory costs 0\.050 nats.*0\.1: the"):
        check_use(unused, 100, config)
