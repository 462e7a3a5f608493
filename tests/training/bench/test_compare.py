"""Paired comparison of two runs and of two systems, with differences worked out by hand."""

from __future__ import annotations

import pytest

from models.errors import D2AError
from tests.training.bench.rows import row, write_run
from training.bench.compare import compare_runs, compare_systems, warnings
from training.bench.results import read_results


def run(folder, scores, **header):
    """A run of one system over samples s0, s1, ..."""
    return read_results(write_run(folder, [row(f"s{i}", f1) for i, f1 in enumerate(scores)], **header))


def test_only_samples_of_both_runs_are_compared(tmp_path):
    a = read_results(write_run(tmp_path / "a", [row("s0", 0.2), row("s1", 0.4), row("s9", 1.0)]))
    b = read_results(write_run(tmp_path / "b", [row("s1", 0.8), row("s0", 0.5)]))
    [found] = compare_runs(a, b)
    # (0.5 + 0.8) / 2 - (0.2 + 0.4) / 2; s9 is left out.
    assert (found.n, found.only_a, found.only_b) == (2, 1, 0)
    assert (found.a, found.b, found.difference) == pytest.approx((0.3, 0.65, 0.35))
    assert (found.suite, found.system, found.verdict) == ("squad", "doc2atom", "better")


def test_a_constant_difference_is_certain_whatever_the_spread_of_the_scores(tmp_path):
    # Unpaired, scores from 0.0 to 0.9 could not tell a shift of 0.1; paired, its interval has no width.
    scores = [i / 10 for i in range(10)]
    a, b = run(tmp_path / "a", [s + 0.1 for s in scores]), run(tmp_path / "b", scores)
    [found] = compare_runs(a, b)
    assert found.interval == pytest.approx((-0.1, -0.1)) and found.verdict == "worse"


def test_differences_that_cancel_show_nothing(tmp_path):
    a, b = run(tmp_path / "a", [0.0, 1.0] * 10), run(tmp_path / "b", [1.0, 0.0] * 10)
    [found] = compare_runs(a, b)
    assert found.difference == 0.0 and found.interval[0] < 0 < found.interval[1]
    assert found.verdict == "no difference shown"


def test_two_systems_of_one_run_are_compared_on_each_suite(tmp_path):
    rows = [row("a", 0.25), row("a", 1.0, system="base+ctx"), row("x", 0.5, suite="drop")]
    rows += [row("x", 0.5, suite="drop", system="base+ctx"), row("y", 0.5, suite="ropes")]
    found = compare_systems(read_results(write_run(tmp_path, rows)), "base+ctx", "doc2atom")
    # The last one is the mean of the two, each of which counts the same however many samples it has.
    assert [(f.suite, f.system, f.difference, f.n) for f in found] == [
        ("squad", "doc2atom - base+ctx", -0.75, 1),
        ("drop", "doc2atom - base+ctx", 0.0, 1),
        ("mean of suites", "doc2atom - base+ctx", -0.375, 2),
    ]


def test_the_mean_of_suites_leaves_refusal_out(tmp_path):
    rows = [row("a", 0.5), row("a", 0.5, suite="refusal/squad")]
    a, b = (read_results(write_run(tmp_path / name, rows)) for name in "ab")
    assert [found.suite for found in compare_runs(a, b)] == ["squad", "refusal/squad"]


def test_a_row_that_failed_counts_as_zero(tmp_path):
    a = run(tmp_path / "a", [0.5])
    b = read_results(write_run(tmp_path / "b", [row("s0", 0.0, error="out of memory", scores={})]))
    assert compare_runs(a, b)[0].difference == -0.5


def test_another_score_can_be_compared_and_an_unknown_one_is_refused(tmp_path):
    a, b = run(tmp_path / "a", [0.5, 1.0]), run(tmp_path / "b", [1.0, 1.0])
    assert compare_runs(a, b, score="em")[0].difference == 0.5
    with pytest.raises(D2AError, match=r"squad has no score 'bleu'\. It has: f1, rouge_l, em, official"):
        compare_runs(a, b, score="bleu")


def test_what_cannot_be_compared_is_said(tmp_path):
    a = run(tmp_path / "a", [0.5])
    b = read_results(write_run(tmp_path / "b", [row("s0", 0.5, suite="drop")]))
    with pytest.raises(D2AError, match="share no sample of one suite and system"):
        compare_runs(a, b)
    with pytest.raises(D2AError, match=r"has no rows of 'blind'. It has: doc2atom"):
        compare_systems(a, "doc2atom", "blind")


def test_settings_that_differ_are_told(tmp_path):
    a = run(tmp_path / "a", [0.5], protocol="paper", k=3)
    b = run(tmp_path / "b", [0.5], protocol="official", k=3)
    assert warnings(a, b) == ["protocol differs: paper and official"]
