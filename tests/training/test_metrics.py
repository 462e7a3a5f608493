"""Metrics: SQuAD's normalisation, F1 and exact match by hand, and AUROC with ties."""

import math

import pytest

from training.metrics import auroc, bootstrap_interval, exact_match, normalize_answer, token_f1


def test_normalisation_drops_case_punctuation_and_articles_but_no_letters_of_words():
    assert normalize_answer("  The U.S. -- an  Aunt's\tanthem, a. ") == "us aunts anthem"


def test_f1_is_the_harmonic_mean_of_word_precision_and_recall():
    # "cat sat on mat" against "cat sat": 2 of 4 predicted words, 2 of 2 expected: 2 * 0.5 * 1 / 1.5 = 0.6667
    assert token_f1("the cat sat on a mat", ["The cat sat."]) == pytest.approx(2 / 3)


def test_f1_counts_repeated_words_no_more_often_than_both_have_them():
    # "new new york" against "new york york": new once, york once: 2 of 3 and 2 of 3.
    assert token_f1("new new york", ["new york york"]) == pytest.approx(2 / 3)


def test_f1_and_exact_match_take_the_best_reference():
    # Against "Denver Broncos of 2015": 2 of 2 and 2 of 4: 2 * 1 * 0.5 / 1.5.
    assert token_f1("Denver Broncos", ["Denver Broncos of 2015"]) == pytest.approx(2 / 3)
    assert token_f1("Denver Broncos", ["Carolina", "the Denver Broncos!"]) == 1.0
    assert exact_match("Denver Broncos", ["Carolina", "the Denver Broncos!"]) == 1.0
    assert exact_match("Denver", ["Denver Broncos"]) == 0.0


def test_an_empty_prediction_or_no_reference_scores_nothing():
    assert token_f1("the", ["Denver"]) == token_f1("", ["Denver"]) == token_f1("Denver", []) == 0.0
    assert exact_match("Denver", []) == 0.0


def test_auroc_counts_pairs_and_ties_half():
    # Pairs (0.9, 0.5) and (0.9, 0.1) won, (0.5, 0.5) tied, (0.5, 0.1) won: 3.5 of 4.
    assert auroc([0.9, 0.5], [0.5, 0.1]) == pytest.approx(3.5 / 4)
    assert auroc([1.0, 1.0, 1.0], [1.0, 1.0]) == pytest.approx(0.5)
    assert auroc([0.2], [0.7, 0.8]) == 0.0


def test_auroc_of_one_side_only_is_undefined():
    assert math.isnan(auroc([], [0.5])) and math.isnan(auroc([0.5], []))


def test_the_bootstrap_interval_is_that_of_a_mean_of_coin_flips():
    low, high = bootstrap_interval([0.0, 1.0] * 50)
    # The mean of 100 fair flips has a standard error of 0.05, so 95 % lie within 0.5 +- 1.96 * 0.05.
    assert abs(low - 0.402) < 0.03 and abs(high - 0.598) < 0.03
    assert bootstrap_interval([0.3] * 4) == pytest.approx((0.3, 0.3))


def test_auroc_of_a_score_that_is_no_number_is_none_either() -> None:
    assert math.isnan(auroc([0.5, math.nan], [0.1]))
