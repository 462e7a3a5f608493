"""Batches: gold masks follow the records, nothing is gold where the passage is absent, no atom is listed twice."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.samples import colours, make_record, river_and_town
from training.batches import MAX_IRRELEVANT, MAX_PASSAGE_ATOMS, Sampler, fixed_plan
from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC, SIBLING, UNANSWERABLE, build_episodes

CONFIG = TrainConfig(global_batch=20, batch_route=60, share_sibling=0.2, share_library=0.5)
PAPER = TrainConfig(
    global_batch=4,
    questions_per_document=2,
    batch_route=0,
    share_library=0.0,
    share_sibling=0.0,
    share_absent=0.0,
    refuse_near_miss=False,
)


def sampler_of(records, config=CONFIG):
    return Sampler(build_episodes(records), config, "cpu")


def first(sampler):
    """Return a stand-in for the nearest atoms: always the library's first two."""
    count = min(2, int(sampler.e["atom_start"][-1]))
    return lambda question_B: torch.arange(count).repeat(len(question_B), 1)


def collate_all(sampler, *, library=False, absent=False):
    """Collate every answerable episode alike."""
    plan = fixed_plan(sampler.rows[ANSWERABLE], library=library)
    return sampler.collate(replace(plan, absent_B=plan.absent_B | absent, num_lm=0), first(sampler))


def listed(batch, row):
    """Return the valid candidates of a row, in order."""
    return batch.candidate_BC[row][batch.valid_BC[row]].tolist()


@pytest.fixture(scope="module")
def drawn():
    """Return a sampler and a batch of every kind of row."""
    sampler = sampler_of(colours(40))
    return sampler, sampler.collate(sampler.plan(0), first(sampler))


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
    sampler = Sampler(episodes, CONFIG, "cpu")
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
    assert not batch.refuse_B.any()  # these rows generate nothing
    for row, question in enumerate(batch.question_B.tolist()):
        assert not {3 * (question // 3) + i for i in range(3)} & set(listed(batch, row))


def test_withheld_answers_leave_the_rest_of_the_passage_and_a_refusal():
    sampler = sampler_of(river_and_town())
    plan = fixed_plan(sampler.answered, library=False)
    whole = sampler.collate(plan, None)
    batch = sampler.collate(replace(plan, withheld_B=np.ones(len(plan.episode_B), dtype=bool)), None)
    assert whole.gold_BC.any(-1).all() and not whole.refuse_B.any()
    assert batch.refuse_B.all() and not batch.gold_BC.any()
    assert torch.equal(batch.valid_BC, whole.valid_BC & ~whole.gold_BC)
    assert not batch.lexical_BC[whole.gold_BC].any() and not (batch.distractor_BC & whole.gold_BC).any()


def test_the_shares_of_refusals_do_not_overlap_and_only_the_language_model_is_asked_so():
    config = replace(CONFIG, global_batch=20, share_absent=0.1, share_withheld=0.2)
    plan = sampler_of(colours(40), config).plan(3)
    asked = slice(0, plan.num_lm)
    assert (plan.absent_B[asked].sum(), plan.withheld_B.sum()) == (2, 4)
    assert not (plan.absent_B & plan.withheld_B).any() and not plan.withheld_B[plan.num_lm :].any()


def test_a_copy_of_the_passage_is_no_negative_and_does_not_stand_in_for_an_absent_one():
    sampler = sampler_of([*colours(4), *colours(1)])  # passage 4, atoms 12 to 14, is passage 0 once more
    for absent in (False, True):
        batch = collate_all(sampler, library=True, absent=absent)
        for row, question in enumerate(batch.question_B.tolist()):
            contrast = set(batch.candidate_BC[row][batch.contrast_BC[row]].tolist())
            copies = {0: {12, 13, 14}, 4: {0, 1, 2}}.get(question // 3, set())
            assert not copies & contrast and not copies & set(listed(batch, row))


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


def test_annotated_distractors_stand_in_for_the_lexically_nearest():
    sentences = ["Otter Bo swims.", "Otter Bo swims far.", "Otter Al sleeps.", "Hens sleep."]
    record = make_record("Zoo", sentences, [("Which otter Bo swims?", "Bo", [0])])
    marked = replace(record.qa_pairs[0], distractor_atom_ids=("atom_2", "atom_3"), supporting_atom_ids=("atom_1",))
    batch = collate_all(sampler_of([replace(record, qa_pairs=(marked,))]))
    assert batch.distractor_BC[0].nonzero().flatten().tolist() == [2, 3]
    assert batch.supporting_BC[0].nonzero().flatten().tolist() == [1]


def test_conflict_groups_are_told_apart_between_passages():
    records = river_and_town()
    groups = [("g", None, "g"), ("g", "h"), (None,) * 4, (None,)]
    records = [
        replace(r, atoms=tuple(replace(a, conflict_group=g) for a, g in zip(r.atoms, names, strict=True)))
        for r, names in zip(records, groups, strict=True)
    ]
    batch = collate_all(sampler_of(records))
    assert batch.group_BC[:4, :4].tolist() == [[0, -1, 0, -1], [0, -1, 0, -1], [1, 2, -1, -1], [-1] * 4]


def test_a_drawn_batch_has_its_kinds_in_the_stated_shares(drawn):
    _, batch = drawn
    # 20 rows for the language model: 2 asked of all but their passage, 14 answerable ones and 4 of a sibling, of
    # which the first and the last refuse; then 20 off-topic, 20 absent, 20 answerable.
    assert (batch.num_lm, len(batch.question_B)) == (20, 80)
    assert batch.refuse_B.nonzero().flatten().tolist() == [0, 1, 16, 17, 18, 19]
    assert batch.gold_BC[2:16].any(1).all() and batch.gold_BC[60:].any(1).all()
    assert not batch.gold_BC[[0, 1]].any() and not batch.gold_BC[16:60].any()


def test_off_topic_and_absent_rows_suppress_the_adapter_some_of_each(drawn):
    _, batch = drawn
    # Rows 20 to 59 vanish: 40, of which every second one counts.
    assert batch.suppress.tolist() == list(range(20, 60, 2))
    assert len(batch.suppress) <= MAX_IRRELEVANT


def test_off_topic_rows_list_only_another_articles_passage(drawn):
    _, batch = drawn
    for row in range(20, 40):
        article = (batch.question_B[row].item() // 3) % 4
        assert {(atom // 3) % 4 for atom in listed(batch, row)}.isdisjoint({article})


def test_near_misses_list_a_sibling_passage(drawn):
    _, batch = drawn
    for row in range(16, 20):
        passage = batch.question_B[row].item() // 3
        [asked] = {atom // 3 for atom in listed(batch, row)}
        assert asked != passage and asked % 4 == passage % 4


def test_half_of_the_near_misses_ask_a_passage_its_own_unanswerable_questions():
    sampler = sampler_of(river_and_town())  # one unanswerable question, and siblings of three others
    plan = sampler.plan(0)
    assert sampler.host.kind[plan.episode_B[16:20]].tolist() == [SIBLING] * 2 + [UNANSWERABLE] * 2
    batch = sampler.collate(plan, first(sampler))
    assert batch.refuse_B[16:20].all() and listed(batch, 19) == [3, 4]


def test_half_of_the_answerable_rows_see_the_library(drawn):
    _, batch = drawn
    wide = (batch.valid_BC[2:16].sum(1) > 3).float().mean().item()
    assert 0.2 < wide < 0.8


def test_a_plan_is_a_function_of_seed_and_step(drawn):
    sampler, _ = drawn
    same = sampler_of(colours(40)).plan(3)
    assert all(np.array_equal(a, b) for a, b in zip(vars(same).values(), vars(sampler.plan(3)).values(), strict=True))
    other = sampler_of(colours(40), replace(CONFIG, seed=1)).plan(3)
    for changed in (other, sampler.plan(4)):
        assert not np.array_equal(changed.episode_B, same.episode_B)
        assert not np.array_equal(changed.coin_B, same.coin_B)


def test_the_parts_of_a_plan_are_the_plan(drawn):
    sampler, _ = drawn
    plan = sampler.plan(0)
    parts = [plan.part(i, 3) for i in range(3)]
    assert [(p.num_lm, len(p.episode_B)) for p in parts] == [(7, 27), (7, 27), (6, 26)]
    rows = [(p.episode_B[i], p.coin_B[i], p.suppress_B[i]) for p in parts for i in range(len(p.episode_B))]
    assert sorted(rows) == sorted(zip(plan.episode_B, plan.coin_B, plan.suppress_B, strict=True))
    lm = np.concatenate([p.episode_B[: p.num_lm] for p in parts])
    assert sorted(lm) == sorted(plan.episode_B[: plan.num_lm])


def test_every_part_is_held_against_the_same_random_atoms_each_once(drawn, monkeypatch):
    sampler, batch = drawn
    assert sorted(sampler.plan(0).random_R) == list(range(120))  # a library smaller than the limit gives all
    monkeypatch.setattr("training.batches.NUM_RANDOM", 50)
    plan = sampler.plan(0)
    assert len(set(plan.random_R)) == 50 and not np.array_equal(plan.random_R, sampler.plan(1).random_R)
    assert all(np.array_equal(plan.part(i, 3).random_R, plan.random_R) for i in range(3))
    for row, question in enumerate(batch.question_B.tolist()):
        # Left out are the three atoms of the question's own passage, the gold one among them.
        assert sorted(batch.random_R[~batch.random_BR[row]].tolist()) == [question // 3 * 3 + i for i in range(3)]


def test_an_epoch_asks_every_question_once_and_the_next_in_another_order():
    sampler = sampler_of(colours(8), replace(CONFIG, global_batch=6, share_sibling=0.0, batch_route=0))
    # 24 questions: four steps an epoch.
    asked = [sampler.plan(step).episode_B[: sampler.plan(step).num_lm].tolist() for step in range(8)]
    assert sorted(np.concatenate(asked[:4])) == sorted(np.concatenate(asked[4:])) == sampler.rows[ANSWERABLE].tolist()
    assert asked[:4] != asked[4:]
    assert (sampler.epochs(2), sampler.epochs(8)) == (0.5, 2.0)


def test_a_sample_of_the_paper_is_a_document_with_its_questions():
    sampler = sampler_of(colours(8), PAPER)
    plan = sampler.plan(0)
    # Three questions a passage, two a sample: each passage gives two samples an epoch, one of 2 and one of 1.
    assert len(sampler.samples_SQ) == 16
    assert 4 <= plan.num_lm <= 8 and len(plan.episode_B) == plan.num_lm
    assert not plan.library_B.any() and not plan.absent_B.any()
    batch = sampler.collate(plan, None)
    assert batch.candidate_BC.shape[1] == 3
    assert batch.gold_BC.any(1).all()


def test_the_papers_irrelevant_questions_suppress_the_adapter_and_generate_nothing():
    sampler = sampler_of(river_and_town(), replace(PAPER, global_batch=5, questions_per_document=8))
    # Four passages with six questions, one of them unanswerable; a fifth sample begins the next epoch.
    plan = sampler.plan(0)
    kinds = sampler.host.kind[plan.episode_B]
    assert set(kinds[: plan.num_lm]) == {ANSWERABLE}
    assert set(kinds[plan.num_lm :]) == {UNANSWERABLE} and plan.suppress_B[plan.num_lm :].all()
    assert not plan.suppress_B[: plan.num_lm].any()


@pytest.mark.parametrize("config", [CONFIG, PAPER])
def test_an_answerable_question_without_a_reference_trains_the_router_alone(config):
    records = colours(8)
    # The first question of every passage becomes a probe that the annotator found answerable.
    records = [
        replace(r, qa_pairs=(replace(r.qa_pairs[0], answers=(), is_generated_irrelevant=True), *r.qa_pairs[1:]))
        for r in records
    ]
    sampler = sampler_of(records, replace(config, share_sibling=0.0, share_absent=0.0, share_library=0.0))
    assert sorted(sampler.host.question[sampler.answered]) == [q for q in range(24) if q % 3]
    plan = sampler.plan(0)
    rescued = sampler.host.question[plan.episode_B] % 3 == 0
    batch = sampler.collate(plan, None)
    assert not rescued[: plan.num_lm].any()
    asked_at_home = torch.tensor(rescued & (sampler.host.kind[plan.episode_B] == ANSWERABLE) & ~plan.absent_B)
    assert asked_at_home.any() and batch.gold_BC[asked_at_home].any(1).all()
    assert not plan.suppress_B[asked_at_home].any()


def test_records_without_siblings_or_other_articles_still_give_batches():
    record = make_record("", ["Hens sleep.", "Otters swim."], [("Who sleeps?", "hens", [0])])
    sampler = sampler_of([record], TrainConfig(global_batch=4, batch_route=6))
    assert [len(sampler.rows[kind]) for kind in (ANSWERABLE, SIBLING, OFF_TOPIC, UNANSWERABLE)] == [1, 0, 0, 0]
    batch = sampler.collate(sampler.plan(0), first(sampler))
    assert batch.num_lm == 4 and batch.gold_BC[:4].any(1).all()
