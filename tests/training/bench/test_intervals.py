"""Intervals over suites: what is certain in each, how suites weigh, and agreement with the plain bootstrap."""

from __future__ import annotations

import pytest

from training.bench.intervals import stratified_interval
from training.metrics import bootstrap_interval


def test_suites_without_spread_leave_no_doubt():
    # (0.2 + 0.8) / 2, and (3 * 0.2 + 0.8) / 4.
    assert stratified_interval([[0.2] * 5, [0.8] * 3]) == pytest.approx((0.5, 0.5))
    assert stratified_interval([[0.2] * 5, [0.8] * 3], [3, 1]) == pytest.approx((0.35, 0.35))


def test_the_ends_are_means_that_one_draw_in_forty_leaves_outside():
    # Two draws of 0 and 1 have the mean 0, 1/2 or 1 with chances 1/4, 1/2, 1/4: the ends are 0 and 1. With three times
    # the weight of a suite that is always 0.5, they are (3 * 0 + 0.5) / 4 and (3 * 1 + 0.5) / 4.
    assert stratified_interval([[0.0, 1.0]]) == (0.0, 1.0)
    assert stratified_interval([[0.0, 1.0], [0.5]], [3, 1]) == pytest.approx((0.125, 0.875))
    # One of 100 is 1: none is drawn with chance 0.99^100 = 0.37, four or more with 0.018, three or more with 0.079.
    assert stratified_interval([[1.0] + [0.0] * 99]) == pytest.approx((0.0, 0.03))


def test_one_suite_has_the_interval_of_the_plain_bootstrap():
    values = [i / 40 for i in range(41)]
    assert stratified_interval([values]) == bootstrap_interval(values)


def test_a_suite_is_never_resampled_from_another():
    # Pooled, the mean of ten zeros and ten ones would vary; within suites nothing does.
    assert stratified_interval([[0.0] * 10, [1.0] * 10]) == (0.5, 0.5)
