"""The feature cache: ragged rows, and states equal to those of the uncached base."""

import pytest
import torch

from models.encoder import text_features
from models.prompts import REFUSAL, prompt_ids
from tests.models.tiny import FAMILIES, NUM_LAYERS, NUM_MEMORY_LAYERS, tiny_spec
from tests.training.samples import river_and_town
from tests.training.worlds import base_of, cache_of
from training.features import Ragged

RECORDS = river_and_town()
QUESTIONS = [q.question for r in RECORDS for q in r.qa_pairs]
ATOMS = [a.content for r in RECORDS for a in r.atoms]


def test_ragged_rows_come_back_padded_with_zeros_in_the_asked_order():
    rows = [torch.full((n, 2), float(n)) for n in (3, 1, 2)]
    padded, lengths = Ragged.of(rows).padded(torch.tensor([1, 2, 1]))
    assert lengths.tolist() == [1, 2, 1]
    assert padded[..., 0].tolist() == [[1, 0], [2, 2], [1, 0]]


def test_ragged_token_ids_pad_alike():
    padded, _ = Ragged.of([torch.tensor([7, 8]), torch.tensor([9])]).padded(torch.tensor([1, 0]))
    assert padded.tolist() == [[9, 0], [7, 8]]


@pytest.mark.parametrize("family", FAMILIES)
def test_cached_features_equal_those_of_single_texts(family):
    base, spec = base_of(family), tiny_spec("d2a")
    cache = cache_of(base, spec, RECORDS)
    for row in (0, 3, 8):
        alone = text_features(base, spec, [ATOMS[row]], with_entry=True)
        torch.testing.assert_close(cache.atom_pooled_ND[row], alone.pooled_ND[0])
        states, length = cache.atom_entry.padded(torch.tensor([row]))
        assert int(length[0]) == min(len(ATOMS[row]), spec.max_atom_tokens)
        torch.testing.assert_close(states[0], alone.entry[0])
        question = text_features(base, spec, [QUESTIONS[row % 6]], with_entry=False)
        torch.testing.assert_close(cache.question_pooled_QD[row % 6], question.pooled_ND[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_holds_prompt_answer_and_end_and_the_states_below_the_memory(family):
    base = base_of(family)
    cache = cache_of(base, tiny_spec("d2a"), RECORDS, cache_batch_tokens=400)
    targets, tokenizer = cache.targets, base.tokenizer
    rows = cache.target_rows(torch.tensor([4, 4]), torch.tensor([False, True]))
    for row, answer in zip(rows.tolist(), ("gluons", REFUSAL), strict=True):
        ids, length = targets.token.padded(torch.tensor([row]))
        prompt = prompt_ids(tokenizer, QUESTIONS[4])
        start = int(targets.answer_start[row])
        assert ids[0, :start].tolist() == prompt
        assert tokenizer.decode(ids[0, start:-1]) == answer
        assert ids[0, -1] == tokenizer.eos_token_id
        mask = torch.ones(1, int(length[0]), dtype=torch.bool)
        with torch.no_grad():
            expected = base.run_layers(base.embed(ids), mask, start=0, stop=NUM_LAYERS - NUM_MEMORY_LAYERS)
        torch.testing.assert_close(targets.states.padded(torch.tensor([row]))[0], expected)


def test_long_answers_are_cut_and_still_end():
    base = base_of("llama")
    targets = cache_of(base, tiny_spec("d2a"), RECORDS, max_answer_tokens=3).targets
    ids, _ = targets.token.padded(torch.tensor([4]))
    answer = ids[0, int(targets.answer_start[4]) :].tolist()
    assert base.tokenizer.decode(answer[:-1]) == "glu" and answer[-1] == base.tokenizer.eos_token_id


def test_a_memory_without_token_slots_caches_no_atom_states():
    cache = cache_of(base_of("llama"), tiny_spec("paper"), RECORDS)
    assert cache.atom_entry.flat_TD.numel() == 0
