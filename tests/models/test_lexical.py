"""Lexical scores: hand-computed values, tokens of several scripts, and a save that answers the same."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.derived import cached
from models.lexical import LexicalIndex, best_rows, stretches_of, tokenize

TEXTS = ["red fox", "red red dog house"]


def test_scores_equal_the_formula():
    index = LexicalIndex.build(TEXTS)
    # N = 2, avgdl = 3. idf(red) = ln(1 + 0.5 / 2.5) = 0.182322, idf(fox) = ln(1 + 1.5 / 1.5) = 0.693147,
    # idf(blimp), df 0, = ln(1 + 2.5 / 0.5) = 1.791759; they sum to 2.667228.
    # Row 0, length 2: tf / (tf + 1.2 (0.25 + 0.75 * 2/3)) = 1 / 1.9 for both words,
    #   (0.182322 + 0.693147) / 1.9 / 2.667228 = 0.172753.
    # Row 1, length 4: red 2 / (2 + 1.2 (0.25 + 0.75 * 4/3)) = 2 / 3.5, 0.182322 * 2 / 3.5 / 2.667228 = 0.039061.
    np.testing.assert_allclose(index.scores("Red fox, blimp?", np.array([1, 0])), [0.039061, 0.172753], atol=1e-6)
    rows, scores = index.top("the red red fox blimp", 5)
    assert (rows.tolist(), rows.dtype, scores.dtype) == ([0, 1], np.int64, np.float32)
    np.testing.assert_allclose(scores, [0.172753, 0.039061], atol=1e-6)


def test_a_word_that_no_text_knows_lowers_the_score():
    index = LexicalIndex.build(TEXTS)
    known, diluted = index.scores("fox", np.array([0]))[0], index.scores("fox blimp", np.array([0]))[0]
    # 0.693147 / (0.693147 + 1.791759) = 0.278943 of the undiluted score is left.
    assert diluted / known == pytest.approx(0.278943, abs=1e-5)


def test_scores_stay_below_one_even_for_a_text_of_repetitions():
    index = LexicalIndex.build(["fox " * 500, "dog", "cat"])
    # 500 / (500 + 1.2 (0.25 + 0.75 * 500 / (502 / 3))) = 0.99406
    assert index.scores("fox", np.array([0]))[0] == pytest.approx(0.99406, abs=1e-5)
    assert index.scores("fox", np.array([1, 2])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("query", ["", "  ?!", "what is the", "blimp"])
def test_a_query_without_known_words_scores_zero(query):
    index = LexicalIndex.build(TEXTS)
    assert index.scores(query, np.array([0, 1])).tolist() == [0.0, 0.0]
    assert [part.size for part in index.top(query, 3)] == [0, 0]


@pytest.mark.parametrize("texts", [[], ["", "the"]])
def test_an_index_without_words_scores_zero_and_can_be_saved(tmp_path, texts):
    LexicalIndex.build(texts).save(tmp_path / "index")
    index = LexicalIndex.load(tmp_path / "index")
    assert (index.num_rows, index.scores("fox", np.arange(len(texts))).tolist()) == (len(texts), [0.0] * len(texts))
    assert index.top("fox", 3)[0].size == 0


def test_only_positive_scores_are_returned_and_ties_go_by_row():
    rows, scores = LexicalIndex.build(["fox a1", "dog a2", "fox a3", "fox a4"]).top("fox", 2)
    assert rows.tolist() == [0, 2]
    assert scores[0] == scores[1] > 0


@pytest.mark.parametrize(("query", "row"), [("学习", 0), ("テキスト", 1), ("日本", 1), ("모델", 2)])
def test_a_word_inside_a_run_without_spaces_is_found(query, row):
    index = LexicalIndex.build(["机器学习模型", "日本語のテキスト", "언어모델을", "an English text"])
    assert index.top(query, 1)[0].tolist() == [row]


def test_tokens_are_normalised_stemmed_and_free_of_stop_words():
    assert tokenize("The ＡＢＣ generations weren't Straße-like; the eﬃcient generation is") == [
        "abc",
        "generat",
        "strass",
        "like",
        "effici",
        "generat",
    ]
    assert tokenize("x学习y") == ["x", "学", "习", "学习", "y"]


@pytest.mark.parametrize("mmap", [True, False])
def test_a_saved_index_answers_the_same(tmp_path, mmap):
    index = LexicalIndex.build(TEXTS, uids=["a-000000", "b-000000"], documents=["a", "b"])
    index.save(tmp_path / "index é")
    loaded = LexicalIndex.load(tmp_path / "index é", mmap=mmap)
    rows = np.array([0, 1])
    np.testing.assert_array_equal(loaded.scores("red fox blimp", rows), index.scores("red fox blimp", rows))
    np.testing.assert_array_equal(loaded.stretch_scores("red fox"), index.stretch_scores("red fox"))
    assert (loaded.uids, loaded.rows_of(["b-000000", "a-000000"]).tolist()) == (("a-000000", "b-000000"), [1, 0])


def test_a_cached_index_is_built_once_and_again_when_it_is_damaged(tmp_path):
    built = []

    def build() -> LexicalIndex:
        built.append(1)
        return LexicalIndex.build(TEXTS)

    folder = tmp_path / "cache" / "index"
    for _ in range(2):
        assert cached(folder, LexicalIndex.load, build).top("fox", 1)[0].tolist() == [0]
    assert len(built) == 1
    (folder / "data.csc.index.npy").write_bytes(b"")
    assert cached(folder, LexicalIndex.load, build).top("fox", 1)[0].tolist() == [0]
    assert cached(folder, LexicalIndex.load, build).top("fox", 1)[0].tolist() == [0]
    assert (len(built), [p.name for p in folder.parent.iterdir()]) == (2, ["index"])


def test_every_score_equals_a_direct_computation_on_random_texts():
    rng = np.random.default_rng(0)
    texts = [[f"w{n}" for n in rng.zipf(1.5, size=rng.integers(1, 30)) if n < 50] or ["w1"] for _ in range(40)]
    index = LexicalIndex.build([" ".join(words) for words in texts])
    mean = sum(map(len, texts)) / 40
    for query in (["w1", "w3", "w7"], ["w2", "w9", "zzz"]):
        idf = {t: math.log(1 + (40 - df + 0.5) / (df + 0.5)) for t in query for df in [sum(t in d for d in texts)]}
        expected = [
            sum(idf[t] * d.count(t) / (d.count(t) + 1.2 * (0.25 + 0.75 * len(d) / mean)) for t in query)
            / sum(idf.values())
            for d in texts
        ]
        np.testing.assert_allclose(index.scores(" ".join(query), np.arange(40)), expected, atol=1e-6)


def test_stretches_overlap_by_half_and_stay_in_their_document():
    assert stretches_of(["a"] * 3 + ["b"] * 13) == [(0, 3), (3, 15), (9, 16)]
    assert [stretches_of(["a"] * n) for n in (0, 12, 18)] == [[], [(0, 12)], [(0, 12), (6, 18)]]
    assert stretches_of(["a"] * 19) == [(0, 12), (6, 18), (12, 19)]


def test_a_row_has_the_score_of_the_better_stretch_that_holds_it_and_a_share_of_its_own():
    texts, query = [f"word{n} common" for n in range(20)], "word3 word14 word19"
    index = LexicalIndex.build(texts, documents=["a"] * 17 + ["b"] * 3)
    spans = [(0, 12), (6, 17), (17, 20)]
    first, second, third = LexicalIndex.build([" ".join(texts[a:b]) for a, b in spans]).all_scores(query)
    better = np.array([first] * 6 + [max(first, second)] * 6 + [second] * 5 + [third] * 3)
    assert len({float(first), float(second), float(third)}) == 3 and min(first, second, third) > 0
    np.testing.assert_allclose(index.stretch_scores(query), (2 * better + index.all_scores(query)) / 3, atol=1e-6)


def test_a_bank_of_one_stretch_leaves_its_rows_their_own_scores():
    index = LexicalIndex.build(TEXTS, documents=["a", "a"])
    np.testing.assert_allclose(index.stretch_scores("red fox"), index.all_scores("red fox"), atol=1e-6)


def test_words_of_another_document_do_not_count_for_a_row():
    texts = ["Lake Tor is deep.", "Its water is green.", "Its water is blue."]
    scores = [LexicalIndex.build(texts, documents=d).stretch_scores("the lake Tor") for d in ([1, 1, 2], [1, 2, 2])]
    assert scores[0][1] > scores[0][2] == 0.0 and scores[1][1] == 0.0
    assert LexicalIndex.build([], documents=[]).stretch_scores("water").tolist() == []


def test_evidence_is_the_best_stretchs_words_in_words_of_a_single_row():
    texts = ["Lake Tor is deep.", "Its water is green.", "Its water is blue.", "A ferry sank."]
    index = LexicalIndex.build(texts, documents=[1, 1, 2, 3])
    # N = 4: idf(1) = ln(1 + 3.5 / 1.5) = 1.20397, idf(2) = ln(1 + 2.5 / 2.5) = 0.69315, 0.57571 of a single row's word.
    assert index.evidence("Is the ferry new?") == pytest.approx(1.0)
    assert index.evidence("How deep is the water of Lake Tor?") == pytest.approx(3 + 0.57571, abs=1e-5)
    assert index.evidence("Is the blue water deep?") == pytest.approx(1 + 0.57571, abs=1e-5)  # either document's
    # Of the rows 0, 2 and 3 a single one has water: 3 words in the first, and "water" alone is 1 in the second.
    visible = np.array([True, False, True, True])
    assert index.evidence("How deep is the water of Lake Tor?", visible) == pytest.approx(3.0)
    assert index.evidence("Which water?", visible) == pytest.approx(1.0)
    assert index.evidence("Which water?", np.zeros(4, dtype=bool)) == index.evidence("Who?") == 0.0


def test_evidence_of_a_row_counts_in_both_stretches_that_hold_it():
    index = LexicalIndex.build([f"word{n}" for n in range(18)], documents=["a"] * 18)
    # Stretches 0-11 and 6-17: words 3 and 11 share the first, 11 and 17 the second, 3 and 17 none.
    queries = ("word3 word11", "word11 word17", "word3 word17")
    assert [index.evidence(query) for query in queries] == pytest.approx([2.0, 2.0, 1.0])


def test_best_rows_are_positive_and_ties_go_by_row():
    assert best_rows(np.array([0.2, 0.0, 0.5, 0.2]), 9).tolist() == [2, 0, 3]
    assert best_rows(np.array([0.2, 0.0, 0.5, 0.2]), 2).tolist() == [2, 0]


@pytest.mark.parametrize("limit", [0, 1, 5, 32, 60, 400])
def test_best_rows_are_the_first_of_a_full_sort_whatever_the_ties(limit):
    scores = np.random.default_rng(0).integers(-3, 8, size=300).astype(np.float32)
    by_hand = sorted((r for r in range(300) if scores[r] > 0), key=lambda r: (-scores[r], r))
    assert best_rows(scores, limit).tolist() == by_hand[:limit]


def test_stretch_scores_are_the_same_with_the_rows_own_scores_given():
    index = LexicalIndex.build([f"word{n} common" for n in range(20)], documents=["a"] * 17 + ["b"] * 3)
    query = "word3 word14"
    with_own = index.stretch_scores(query, own=index.all_scores(query))
    np.testing.assert_array_equal(with_own, index.stretch_scores(query))


def test_importing_it_loads_neither_torch_nor_lancedb():
    code = (
        "import sys; from models.lexical import LexicalIndex; LexicalIndex.build(['a fox']).top('fox', 1);"
        "print([m for m in ('torch', 'lancedb', 'pyarrow') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scores_can_be_rebuilt_from_the_rows_terms():
    texts = ["Otters swim in cold rivers.", "A river otter eats fish, fish and crabs.", "", "Stars are hot."]
    index, query = LexicalIndex.build(texts), "Which otters eat fish in a warm river?"
    start, term, weight = index.terms_by_row()
    known, bound = index.query_terms(query)
    rebuilt = [weight[a:b][np.isin(term[a:b], known)].sum() / bound for a, b in itertools.pairwise(start)]
    assert rebuilt == pytest.approx(index.all_scores(query).tolist(), abs=1e-6)
    assert rebuilt[1] > rebuilt[0] > rebuilt[3] == 0.0


def test_characters_of_a_script_without_spaces_are_no_evidence():
    index = LexicalIndex.build(["灯塔建于一六九八年。", "The tower was lit in 1698."], documents=[0, 1])
    assert index.evidence("灯塔建于何年?") == 0.0
    assert index.evidence("灯塔 tower?") == index.evidence("tower?") > 0.0
