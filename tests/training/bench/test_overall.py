"""Overall by hand, and the paper's own figures through it."""

import pytest

from training.bench.overall import overall
from training.bench.published import COMPILE_COST, INFERRED_COUNTS, OVERALL, published

COLUMNS = [
    (model, system)
    for model, systems in {
        "gemma": ("base+ctx", "d2l-ckpt", "d2l-raw", "d2l-atom", "doc2atom", "doc2atom+ctx"),
        "qwen": ("base+ctx", "d2l-ckpt", "d2l-raw", "d2l-atom", "doc2atom"),
    }.items()
    for system in systems
]


def column(model: str, system: str, score: str) -> dict[str, float]:
    return {suite: published(model, system, suite, score) for suite in INFERRED_COUNTS}


def test_overall_is_the_mean_of_suites_and_the_mean_by_the_papers_counts() -> None:
    found = overall({"squad": 0.6, "drop": 0.2, "squad_v2": 0.9})
    # (0.6 + 0.2) / 2, and (460 * 0.6 + 223 * 0.2) / 683 = 320.6 / 683; SQuAD 2.0 is not in the paper.
    assert (found.macro, found.weighted) == (pytest.approx(0.4), pytest.approx(0.469400))
    assert found.suites == ("drop", "squad")
    assert len(found.missing) == 11 and "ropes" in found.missing and "squad_v2" not in found.missing


def test_there_is_no_overall_without_a_suite_of_the_paper() -> None:
    assert overall({"squad_v2": 0.9}) is None


@pytest.mark.parametrize("score", ["f1", "rouge_l"])
@pytest.mark.parametrize(("model", "system"), COLUMNS)
def test_the_inferred_counts_reproduce_every_overall_of_the_paper(model: str, system: str, score: str) -> None:
    found = overall(column(model, system, score))
    assert found.weighted == pytest.approx(published(model, system, OVERALL, score), abs=1e-4)
    assert not found.missing


def test_the_papers_overall_is_no_mean_of_its_rows() -> None:
    # The 13 rows of the base with its document, Gemma: 575.59 / 13.
    assert overall(column("gemma", "base+ctx", "f1")).macro == pytest.approx(0.442762, abs=1e-6)


def test_the_papers_rouge_l_never_exceeds_its_f1() -> None:
    for model, system in COLUMNS:
        f1, rouge_l = column(model, system, "f1"), column(model, system, "rouge_l")
        assert all(rouge_l[suite] <= f1[suite] for suite in INFERRED_COUNTS)


def test_published_figures_are_those_of_the_tables() -> None:
    assert published("qwen", "d2l-ckpt", "longbench/triviaqa") == pytest.approx(0.5081)
    assert published("gemma", "doc2atom+ctx", "longbench/multifieldqa_zh", "rouge_l") == pytest.approx(0.1271)
    assert published("gemma", "doc2atom", "qasper", "refusal_f1") == pytest.approx(0.5805)
    assert published("qwen", "doc2atom", "longbench/triviaqa", "refusal_f1") == pytest.approx(0.20)
    assert (COMPILE_COST["qwen"]["doc2atom_s"], COMPILE_COST["qwen"]["doc2atom_gb"]) == (1.10, 5.02)


def test_what_the_paper_did_not_measure_is_none() -> None:
    assert published("smollm2", "doc2atom", "squad") is None
    assert published("gemma", "base+ctx", "squad", "refusal_f1") is None
    assert published("qwen", "doc2atom+ctx", "squad") is None
    assert published("gemma", "doc2atom", "squad", "em") is None
