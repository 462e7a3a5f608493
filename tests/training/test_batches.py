"""Batches: gold masks follow the records, nothing is gold where the passage is absent, no atom is listed twice."""

import pytest
import torch

from tests.training.samples import colours, make_record, river_and_town
from training.batches import MAX_PASSAGE_ATOMS, Sampler
from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC, SIBLING, UNANSWERABLE, build_episodes

CPU = torch.device("cpu")


def sampler_of(records, **options):
    return Sampler(build_episodes(records, **options), CPU)


def first(sampler):
    """Return a stand-in for the nearest atoms: always the library's first two."""
    count = min(2, int(sampler.e["atom_start"][-1]))
    return lambda question_B: torch.arange(count).repeat(len(question_B), 1)


def collate_all(sampler, *, library=False, absent=False):
    """Collate every answerable episode alike."""
    rows = sampler.rows[ANSWERABLE]
    library_B = torch.full_like(rows, library, dtype=torch.bool)
    absent_B = torch.full_like(rows, absent, dtype=torch.bool)
    return sampler.collate(rows, library_B, absent_B, first(sampler), num_lm=0)


def listed(batch, row):
    """Return the valid candidates of a row, in order."""
    return batch.candidate_BC[row][batch.valid_BC[row]].tolist()


@pytest.fixture(scope="module")
def drawn():
    """Return a sampler and a batch of every kind of row."""
    sampler = sampler_of(colours(40))
    config = TrainConfig(batch_lm=20, batch_route=60, share_sibling=0.2, share_library=0.5)
    return sampler, sampler.draw(config, torch.Generator().manual_seed(0), first(sampler))


def test_a_passage_lists_its_own_atoms_with_the_gold_ones_marked():
    batch = collate_all(sampler_of(river_and_town()))
    # Questions 0 and 1 ask passage 0 (atoms 0-2), 2 asks passage 1 (3-4), 4 asks 2 (5-8), 5 asks 3 (9).
    assert batch.question_B.tolist() == [0, 1, 2, 4, 5]
    assert [listed(batch, row) for row in range(5)] == [[0, 1, 2], [0, 1, 2], [3, 4], [5, 6, 7, 8], [9]]
    gold = [batch.candidate_BC[row][batch.gold_BC[row]].tolist() for row in range(5)]
    assert gold == [[0], [1, 2], [3], [6], [9]]


def test_padding_is_invalid_has_no_score_and_points_to_row_0():
    batch = collate_all(sampler_of(river_and_town()))
    padding = ~batch.valid_BC
    assert padding.any()
    assert not batch.candidate_BC[~batch.contrast_BC].any() and not batch.lexical_BC[padding].any()
    assert not (batch.gold_BC & padding).any() and not (batch.distractor_BC & padding).any()


def test_word_scores_are_those_of_the_bank_that_the_row_stands_for():
    records = river_and_town()
    episodes = build_episodes(records)
    sampler = Sampler(episodes, CPU)
    small, large = collate_all(sampler), collate_all(sampler, library=True)
    assert small.lexical_BC[0, :3].tolist() == episodes.local_lexical[:3].tolist()
    assert large.lexical_BC[0, :3].tolist() == episodes.own_library_lexical[:3].tolist()
    assert small.lexical_BC[0, 0] != large.lexical_BC[0, 0]  # document frequencies differ


def test_a_library_row_lists_no_atom_twice_and_holds_all_that_match():
    sampler = sampler_of(colours(40))
    batch = collate_all(sampler, library=True)
    for row, question in enumerate(batch.question_B.tolist()):
        atoms = listed(batch, row)
        assert len(atoms) == len(set(atoms))
        found = sampler.e["library_rows"][question]
        own = range(3 * (question // 3), 3 * (question // 3) + 3)
        assert set(atoms) == {*found[found >= 0].tolist(), *own, 0, 1}


def test_the_nearest_atoms_carry_their_word_score_and_train_the_cosine_in_every_bank():
    sampler = sampler_of(colours(40))
    small, large = collate_all(sampler), collate_all(sampler, library=True)
    for row, question in enumerate(small.question_B.tolist()):
        best = sampler.e["library_rows"][question][:2]
        score = sampler.lexical(small.question_B[row : row + 1], best[None])
        assert score[0].tolist() == pytest.approx(sampler.e["library_lexical"][question][:2].tolist(), abs=1e-5)
        assert score[0, 0] > 0
        assert set(listed(small, row)) < set(small.candidate_BC[row][small.contrast_BC[row]].tolist())
    assert torch.equal(small.contrast_BC, large.contrast_BC)
    assert torch.equal(large.valid_BC, large.contrast_BC)


def test_an_absent_passage_leaves_no_gold_and_none_of_its_atoms():
    batch = collate_all(sampler_of(colours(40)), library=True, absent=True)
    assert not batch.gold_BC.any()
    assert batch.off_topic_B.all() and not batch.refuse_B.any()  # these rows generate nothing
    for row, question in enumerate(batch.question_B.tolist()):
        assert not {3 * (question // 3) + i for i in range(3)} & set(listed(batch, row))


def test_the_distractor_is_the_best_scored_atom_that_is_not_gold():
    sentences = ["Otter Bo swims.", "Otter Bo swims far.", "Otter Al sleeps.", "Hens sleep."]
    batch = collate_all(sampler_of([make_record("Zoo", sentences, [("Which otter Bo swims?", "Bo", [0])])]))
    assert batch.distractor_BC[0].nonzero().tolist() == [[1]]


def test_a_passage_of_gold_atoms_only_has_no_distractor():
    batch = collate_all(sampler_of([make_record("", ["Hens sleep."], [("Who sleeps?", "hens", [0])])]))
    assert not batch.distractor_BC.any()


def test_passages_longer_than_the_limit_are_cut():
    sentences = [f"Otter {n} swims." for n in range(MAX_PASSAGE_ATOMS + 6)]
    batch = collate_all(sampler_of([make_record("", sentences, [("Who?", "Otter 69", [69])])]))
    assert listed(batch, 0) == list(range(MAX_PASSAGE_ATOMS))
    assert not batch.gold_BC.any()


def test_a_drawn_batch_has_its_kinds_in_the_stated_shares(drawn):
    _, batch = drawn
    # 20 rows for the language model: 2 asked of all but their passage and 4 of a sibling, which refuse, and 14
    # answerable ones; then 20 answerable, 20 absent, 20 off-topic.
    assert (batch.num_lm, len(batch.question_B)) == (20, 80)
    assert batch.refuse_B.nonzero().flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.off_topic_B.nonzero().flatten().tolist() == list(range(40, 80))
    assert batch.gold_BC[6:40].any(1).all()
    assert not batch.gold_BC[:6].any() and not batch.gold_BC[40:].any()


def test_off_topic_rows_list_only_another_articles_passage(drawn):
    _, batch = drawn
    for row in range(60, 80):
        article = (batch.question_B[row].item() // 3) % 4
        assert {(atom // 3) % 4 for atom in listed(batch, row)}.isdisjoint({article})


def test_near_misses_list_a_sibling_passage(drawn):
    _, batch = drawn
    for row in range(2, 6):
        passage = batch.question_B[row].item() // 3
        [asked] = {atom // 3 for atom in listed(batch, row)}
        assert asked != passage and asked % 4 == passage % 4


def test_half_of_the_answerable_rows_see_the_library(drawn):
    _, batch = drawn
    wide = (batch.valid_BC[6:20].sum(1) > 3).float().mean().item()
    assert 0.2 < wide < 0.8


def test_drawing_follows_the_generator(drawn):
    sampler, batch = drawn
    config = TrainConfig(batch_lm=20, batch_route=60, share_sibling=0.2, share_library=0.5)
    again = sampler.draw(config, torch.Generator().manual_seed(0), first(sampler))
    other = sampler.draw(config, torch.Generator().manual_seed(1), first(sampler))
    assert torch.equal(again.candidate_BC, batch.candidate_BC)
    assert not torch.equal(other.question_B, batch.question_B)


def test_records_without_siblings_or_other_articles_still_give_batches():
    sampler = sampler_of([make_record("", ["Hens sleep.", "Otters swim."], [("Who sleeps?", "hens", [0])])])
    assert [len(sampler.rows[kind]) for kind in (ANSWERABLE, SIBLING, OFF_TOPIC, UNANSWERABLE)] == [1, 0, 0, 0]
    batch = sampler.draw(TrainConfig(batch_lm=4, batch_route=6), torch.Generator().manual_seed(0), first(sampler))
    assert batch.num_lm == 4 and batch.gold_BC[:4].any(1).all()
