"""Tests of the documents and atoms that the questions of a batch are asked of."""

from dataclasses import replace

import torch

from tests.models.tiny import tiny_base
from tests.training.asked import LAKES, answerable, drawn, passages, sampler_of
from tests.training.samples import make_record
from training.systems.documents import Documents
from training.systems.evidence import best_atoms, strangers, swapped


def test_a_long_document_is_cut_after_its_last_token():
    documents = Documents.of([make_record("T", ["A b c.", "D e."], []), make_record("T", ["A b."], [])])
    # a token a character
    assert documents.cut(tiny_base("llama").tokenizer, 4).texts == ["A b ", "A b."]


def test_untitled_passages_are_articles_of_their_own():
    records = [make_record(title, ["A.", "B."], []) for title in ("", "T", "", "T")]
    documents = Documents.of(records)
    assert documents.passage_of_atom == [0, 0, 1, 1, 2, 2, 3, 3]
    assert documents.article_of_atom == [0, 0, 1, 1, 2, 2, 1, 1]


def test_a_row_is_asked_of_the_passage_that_the_episode_names():
    sampler, plan = sampler_of(), sampler_of().plan(0)
    batch, found = drawn(), passages(drawn())
    expected = torch.tensor(sampler.host.passage[plan.episode_B[: plan.num_lm]])
    absent = torch.tensor(plan.absent_B[: plan.num_lm])
    assert absent.any() and not absent.all()
    assert torch.equal(found[~absent], expected[~absent])
    home = sampler.e["passage_of_question"][batch.question_B[: batch.num_lm]]
    assert (found[absent] != home[absent]).all()


def test_a_missing_document_is_replaced_by_the_best_other_one():
    sampler, batch = sampler_of(), drawn()
    for row in sampler.plan(0).absent_B[: batch.num_lm].nonzero()[0]:
        best = batch.candidate_BC[row][batch.lexical_BC[row].argmax()]
        assert passages(batch)[row] == best // 3  # three atoms a passage


def test_text_in_the_prompt_is_the_best_atoms_with_a_gold_one_among_them():
    batch = answerable()
    lexical = torch.zeros_like(batch.lexical_BC)
    lexical[:, :3] = torch.tensor([0.1, 0.3, 0.2])
    chosen = best_atoms(replace(batch, lexical_BC=lexical), top_k=2)
    # Passage 0 holds atoms 0 to 2, and its questions' gold atoms are 0, 1 and 2: the first one is missed by words.
    assert chosen[:3] == [[1, 0], [1, 2], [1, 2]]


def test_text_in_the_prompt_holds_no_more_atoms_than_there_are():
    assert best_atoms(answerable(LAKES), top_k=5) == [[0], [1], [2], [3]]


def test_swapping_gives_every_question_what_its_donor_was_given():
    batch = drawn()
    donor = torch.arange(batch.num_lm).roll(1)
    other = swapped(batch, donor)
    assert torch.equal(passages(other), passages(batch)[donor])
    assert best_atoms(other, top_k=2) == [best_atoms(batch, top_k=2)[d] for d in donor.tolist()]
    assert torch.equal(other.question_B, batch.question_B) and torch.equal(other.refuse_B, batch.refuse_B)
    assert torch.equal(other.candidate_BC[batch.num_lm :], batch.candidate_BC[batch.num_lm :])


def test_a_stranger_is_the_next_row_of_another_article():
    records = [make_record(title, ["A b."], [("A?", "b", [0])]) for title in ("S", "S", "T", "U")]
    batch = answerable(tuple(records))
    # Rows 0 and 1 share an article, so the first one's stranger is row 2; after the last row comes the first.
    assert strangers(batch, torch.tensor(Documents.of(records).article_of_atom)).tolist() == [2, 2, 3, 0]
