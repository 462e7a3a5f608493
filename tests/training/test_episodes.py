"""Episodes: gold rows, where probes come from, and the word scores of both kinds of bank."""

from dataclasses import fields

import numpy as np
import pytest

from models.lexical import LexicalIndex
from tests.training.samples import colours, make_record, river_and_town
from training.episodes import (
    ANSWERABLE,
    LIBRARY_CANDIDATES,
    OFF_TOPIC,
    SIBLING,
    UNANSWERABLE,
    Episodes,
    build_episodes,
)


@pytest.fixture(scope="module")
def records():
    return river_and_town()


@pytest.fixture(scope="module")
def episodes(records):
    return build_episodes(records, seed=3)


def rows_of(episodes, kind):
    """Return (question, passage) of the episodes of a kind."""
    chosen = episodes.kind == kind
    return list(zip(episodes.question[chosen].tolist(), episodes.passage[chosen].tolist(), strict=True))


def test_gold_rows_are_flat_rows_of_the_gold_atoms(episodes):
    # Atoms: 0-2 river, 3-4 town, 5-8 physics, 9 shop. Golds: 0; 1 and 2; 3; none; 6; 9.
    assert episodes.atom_start.tolist() == [0, 3, 5, 9, 10]
    assert episodes.gold.tolist() == [[0, -1], [1, 2], [3, -1], [-1, -1], [6, -1], [9, -1]]
    assert episodes.passage_of_question.tolist() == [0, 0, 1, 1, 2, 3]


def test_every_question_is_asked_of_its_own_passage_once(episodes):
    assert rows_of(episodes, ANSWERABLE) == [(0, 0), (1, 0), (2, 1), (4, 2), (5, 3)]
    assert rows_of(episodes, UNANSWERABLE) == [(3, 1)]


def test_siblings_are_other_passages_of_the_same_article(episodes):
    # Only Oland has two passages; its unanswerable question makes no probe.
    assert rows_of(episodes, SIBLING) == [(0, 1), (1, 1), (2, 0)]


@pytest.mark.parametrize("seed", range(8))
def test_off_topic_passages_are_of_another_article_and_untitled_ones_stand_alone(records, seed):
    episodes = build_episodes(records, seed=seed)
    article = ["Oland", "Oland", "Physics", "untitled"]
    for question, passage in rows_of(episodes, OFF_TOPIC):
        assert article[passage] != article[episodes.passage_of_question[question]]


def test_probes_can_be_left_out_and_follow_the_seed():
    records = colours(12)
    assert set(build_episodes(records, probes=False).kind) == {ANSWERABLE}
    passages = [build_episodes(records, seed=seed).passage.tolist() for seed in (1, 1, 2)]
    assert passages[0] == passages[1] != passages[2]


def test_local_scores_are_those_of_a_bank_of_the_asked_passage(records, episodes):
    questions = [q.question for r in records for q in r.qa_pairs]
    for place, (question, passage) in enumerate(zip(episodes.question, episodes.passage, strict=True)):
        texts = [a.content for a in records[passage].atoms]
        expected = LexicalIndex.build(texts).scores(questions[question], np.arange(len(texts)))
        start, stop = episodes.local_start[place : place + 2]
        np.testing.assert_array_equal(episodes.local_lexical[start:stop], expected)


def test_library_rows_are_the_best_of_all_atoms_and_leave_none_of_them_out(records, episodes):
    index = LexicalIndex.build([a.content for r in records for a in r.atoms])
    for number, question in enumerate(q.question for r in records for q in r.qa_pairs):
        scores = index.all_scores(question)
        listed = episodes.library_rows[number]
        assert set(listed[listed >= 0]) == set(np.flatnonzero(scores > 0))  # ten atoms fit into 32 places
        np.testing.assert_array_equal(episodes.library_lexical[number][listed >= 0], scores[listed[listed >= 0]])
        start, stop = episodes.own_library_start[number : number + 2]
        passage = episodes.passage_of_question[number]
        own = slice(episodes.atom_start[passage], episodes.atom_start[passage + 1])
        np.testing.assert_array_equal(episodes.own_library_lexical[start:stop], scores[own])


def test_library_rows_keep_the_32_best_of_many():
    sentences = [f"Otter {number} swims{' far' * (number >= 30)}." for number in range(40)]
    episodes = build_episodes([make_record("Zoo", sentences, [("Which otter swims far?", "Otter 30", [30])])])
    # Ten atoms hold all three words; of the other thirty, equal in score, the first 22 fill the 32 places.
    assert LIBRARY_CANDIDATES == 32
    assert episodes.library_rows.tolist() == [[*range(30, 40), *range(22)]]


def test_saved_episodes_come_back_with_scores_in_half_precision(tmp_path, episodes):
    episodes.save(tmp_path / "e.npz")
    loaded = Episodes.load(tmp_path / "e.npz")
    for name in (f.name for f in fields(Episodes)):
        ours, theirs = getattr(episodes, name), getattr(loaded, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(theirs, ours, rtol=1e-3, atol=0)  # half precision: 11 bits, 2^-11 = 0.0005
