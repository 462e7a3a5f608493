"""Intervals over suites: what is certain in each, how suites weigh, and agreement with the plain bootstrap."""

from __future__ import annotations

import pytest

from training.bench.intervals import stratified_interval
from training.metrics import bootstrap_interval


def test_suites_without_spread_leave_no_doubt():
    # (0.2 + 0.8) / 2, and (3 * 0.2 + 0.8) / 4.
    assert stratified_interval([[0.2] * 5, [0.8] * 3]) == pytest.approx((0.5, 0.5))
    assert stratified_interval([[0.2] * 5, [0.8] * 3], [3, 1]) == pytest.approx((0.35, 0.35))


def test_one_suite_has_the_interval_of_the_plain_bootstrap():
    values = [i / 40 for i in range(41)]
    assert stratified_interval([values]) == bootstrap_interval(values)


def test_a_suite_is_never_resampled_from_another():
    # Pooled, the mean of ten zeros and ten ones would vary; within suites nothing does.
    assert stratified_interval([[0.0] * 10, [1.0] * 10]) == (0.5, 0.5)
