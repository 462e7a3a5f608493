"""Mixtures: shares of sources, and passes that fill them."""

import subprocess
import sys
from collections import Counter

import pytest

from models.errors import ConfigError
from training.datasets.mixture import mix, mixture_shares


def test_shares_follow_the_sizes():
    assert mixture_shares({"a": 30, "b": 10, "c": 0}) == {"a": 0.75, "b": 0.25}


def test_the_floor_raises_small_sources_at_the_cost_of_the_others():
    # b is at 1/100 and rises to 0.1; a and c share the remaining 0.9 as 80 : 19.
    shares = mixture_shares({"a": 80, "b": 1, "c": 19}, floor=0.1)
    assert shares == pytest.approx({"a": 0.9 * 80 / 99, "b": 0.1, "c": 0.9 * 19 / 99})


def test_raising_one_source_may_bring_another_to_the_floor():
    # c has 0.2 of 100, but 0.75 * 20 / 99 = 0.15 once b is raised to 0.25.
    assert mixture_shares({"a": 79, "b": 1, "c": 20}, floor=0.25) == pytest.approx({"a": 0.5, "b": 0.25, "c": 0.25})
    # The same with c above the floor at first: 0.2 > 0.19, then (1 - 0.19) * 20 / 99 = 0.164 < 0.19.
    assert mixture_shares({"a": 79, "b": 1, "c": 20}, floor=0.19) == pytest.approx({"a": 0.62, "b": 0.19, "c": 0.19})


def test_raising_goes_on_until_nobody_is_below_the_floor():
    # b is below 0.2; then c with 0.8 * 20 / 99 = 0.162, while d has 0.202; then d with 0.6 * 25 / 79 = 0.19.
    shares = mixture_shares({"a": 54, "b": 1, "c": 20, "d": 25}, floor=0.2)
    assert shares == pytest.approx({"a": 0.4, "b": 0.2, "c": 0.2, "d": 0.2})


def test_explicit_weights_are_shares_whatever_the_sizes():
    assert mixture_shares({"a": 1, "b": 900, "c": 5}, {"a": 3, "b": 1}) == {"a": 0.75, "b": 0.25}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"z": 1.0}, r"z must be one of the sources \['a', 'b'\]"),
        ({"a": -1.0}, "a must be at least 0, got -1.0"),
        ({"a": float("nan")}, "a must be at least 0, got nan"),
        ({"a": 0.0}, "sum must be above 0"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        mixture_shares({"a": 1, "b": 1}, weights)


def test_a_floor_that_leaves_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"floor must be in \[0, 1/2\], got 0.6"):
        mixture_shares({"a": 1, "b": 1}, floor=0.6)


def test_a_pass_fills_each_share_and_no_context_comes_again_before_all_have_come():
    drawn = mix({"a": 3, "b": 100}, {"a": 0.7, "b": 0.3}, seed=1, total=10)
    assert Counter(name for name, _ in drawn) == {"a": 7, "b": 3}
    # Seven draws of three contexts: two rounds of each and one more.
    assert sorted(Counter(place for name, place in drawn if name == "a").values()) == [2, 2, 3]
    assert len({place for name, place in drawn if name == "b"}) == 3


def test_thirds_sum_to_the_total():
    third = 1 / 3
    counts = Counter(n for n, _ in mix({"a": 9, "b": 9, "c": 9}, dict.fromkeys("abc", third), seed=0, total=10))
    assert sorted(counts.values()) == [3, 3, 4]


def test_a_pass_depends_on_the_seed_and_on_no_process():
    code = (
        "from training.datasets.mixture import mix;"
        "print(mix({'a': 5, 'b': 9}, {'a': 0.5, 'b': 0.5}, seed={seed}, total=12))"
    )
    here = mix({"a": 5, "b": 9}, {"a": 0.5, "b": 0.5}, seed=7, total=12)
    other = subprocess.run(
        [sys.executable, "-c", code.replace("{seed}", "7")], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == str(here)
    assert mix({"a": 5, "b": 9}, {"a": 0.5, "b": 0.5}, seed=8, total=12) != here
