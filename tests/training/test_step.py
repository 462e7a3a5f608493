"""One training step: the cached path equals the whole model, and every loss sees the rows that it should."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models.encoder import pad
from models.injection import attached
from models.prompts import prompt_ids
from models.router import Router
from tests.models.tiny import FAMILIES, tiny_spec, whole_logits
from tests.training.samples import colours
from tests.training.worlds import SPECS, world
from training.batches import Batch
from training.config import TrainConfig
from training.step import MAX_IRRELEVANT, with_gold

RECORDS = colours(8)
QUESTIONS = [q for r in RECORDS for q in r.qa_pairs]
CONFIG = TrainConfig(batch_lm=6, batch_route=18, share_sibling=0.34, top_k=((0.0, 3),))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uncached(base, adapter, batch):
    """Return the loss sum of whole sequences run through the whole model, padded on the right."""
    rows = range(batch.num_lm)
    texts = ["unanswerable" if batch.refuse_B[i] else QUESTIONS[batch.question_B[i]].answers[0] for i in rows]
    prompts = [prompt_ids(base.tokenizer, QUESTIONS[batch.question_B[i]].question) for i in rows]
    replies = [base.tokenizer(t, add_special_tokens=False)["input_ids"] + [base.tokenizer.eos_token_id] for t in texts]
    ids, mask = pad([p + r for p, r in zip(prompts, replies, strict=True)], base.device)
    with attached(base, adapter):
        log_p = whole_logits(base, ids, mask).log_softmax(-1)
    total = 0.0
    for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        total -= sum(float(log_p[i, len(prompt) + j - 1, token]) for j, token in enumerate(reply))
    return total, sum(map(len, replies))


@pytest.mark.parametrize("recipe", SPECS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_over_cached_states_equals_the_whole_models(family, recipe):
    step, sampler = world(family, recipe, RECORDS)
    batch = sampler.draw(CONFIG, generator(), step.nearest)
    with torch.no_grad():
        routed = step.route(batch, top_k=3)
        routing = routed.routing
        adapter = step.adapter(routed, routing.index_BK[:6], routing.log_weight_BK[:6])
        rows = step.cache.target_rows(batch.question_B[:6], batch.refuse_B[:6])
        logits, target = step.answer_logits(adapter, rows)
        ours = F.cross_entropy(logits, target, reduction="sum").item()
        bare, _ = step.answer_logits(None, rows)
    theirs, count = uncached(step.base, adapter, batch)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(target) == count
    assert (logits - bare).abs().max() > 0.01  # the adapter does something


def test_padding_of_a_batch_changes_no_row():
    step, sampler = world("qwen3", "d2a", RECORDS)
    batch = sampler.draw(CONFIG, generator(), step.nearest)
    rows = step.cache.target_rows(batch.question_B[:6], batch.refuse_B[:6])
    with torch.no_grad():
        routed = step.route(batch, top_k=3)
        index_BK, log_weight_BK = routed.routing.index_BK[:6], routed.routing.log_weight_BK[:6]
        together, _ = step.answer_logits(step.adapter(routed, index_BK, log_weight_BK), rows)
        alone = []
        for i in range(6):
            single = replace(routed, column_BC=routed.column_BC[i : i + 1])
            adapter = step.adapter(single, index_BK[i : i + 1], log_weight_BK[i : i + 1])
            alone.append(step.answer_logits(adapter, rows[i : i + 1])[0])
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("recipe", SPECS)
def test_every_weight_of_the_memory_is_trained(recipe):
    step, sampler = world("gemma2", recipe, RECORDS)
    step.network.zero_grad()
    losses = step.losses(sampler.draw(CONFIG, generator(), step.nearest), CONFIG, progress=0.9, generator=generator())
    sum(total / count.clamp(min=1) for total, count in losses.values()).backward()
    untouched = [name for name, p in step.network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    expected = ["router.rerank"] + ([] if recipe == "d2a" else ["router.lexical"])
    assert sorted(untouched) == sorted(expected)
    assert all(torch.isfinite(p.grad).all() for p in step.network.parameters() if p.grad is not None)


def test_the_frozen_base_gets_no_gradient():
    step, sampler = world("llama", "d2a", RECORDS)
    losses = step.losses(sampler.draw(CONFIG, generator(), step.nearest), CONFIG, progress=0.0, generator=generator())
    losses["lm"][0].backward()
    assert all(p.grad is None and not p.requires_grad for p in step.base.model.parameters())


def test_scores_are_those_of_the_router_over_keys_words_and_metadata():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = sampler.draw(CONFIG, generator(), step.nearest)
    with torch.no_grad():
        score_BC = step.route(batch, top_k=3).routing.score_BC
        row, column = (int(i) for i in batch.valid_BC.nonzero()[5])
        atom, network = int(batch.candidate_BC[row, column]), step.network
        key_E = network.compile_atoms(step.cache.atom_pooled_ND[atom][None])[0][0]
        query_E = network.query_keys(step.cache.question_pooled_QD[batch.question_B[row]][None])[0]
        router = network.router
        expected = router.log_scale.exp() * (key_E @ query_E) + router.bias
        expected += router.lexical * batch.lexical_BC[row, column] + step.metadata_NM[atom] @ router.metadata
    torch.testing.assert_close(score_BC[row, column], expected)


def test_both_kinds_of_off_topic_row_take_part_in_the_irrelevance_loss():
    step, sampler = world("llama", "d2a", RECORDS)
    config = replace(CONFIG, batch_route=120)
    batch = sampler.draw(config, generator(), step.nearest)
    # 6 for the language model, 40 answerable, 40 absent, 40 off-topic: 80 are off-topic, every third counts.
    total, count = step.losses(batch, config, progress=0.5, generator=generator())["irrelevant"]
    assert 0 < int(count) == 27 <= MAX_IRRELEVANT
    for part in (slice(46, 86), slice(86, 126)):
        raised = batch.lexical_BC.clone()
        raised[part] = 1.0
        changed, _ = step.losses(replace(batch, lexical_BC=raised), config, progress=0.5, generator=generator())[
            "irrelevant"
        ]
        assert changed.item() != pytest.approx(total.item(), rel=1e-4)


def test_a_batch_without_off_topic_rows_has_no_irrelevance_loss():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = sampler.draw(CONFIG, generator(), step.nearest)
    batch = replace(batch, off_topic_B=torch.zeros_like(batch.off_topic_B))
    total, count = step.losses(batch, CONFIG, progress=0.5, generator=generator())["irrelevant"]
    assert (total.item(), count.item()) == (0.0, 0)


def one_question(scores, gold):
    """Return a batch of one question over candidates that are all valid."""
    flags = torch.zeros(1, len(scores), dtype=torch.bool)
    gold_BC = flags.clone()
    gold_BC[0, gold] = True
    return torch.tensor([scores]), Batch(
        question_B=torch.zeros(1, dtype=torch.long),
        candidate_BC=torch.arange(len(scores))[None],
        valid_BC=~flags,
        contrast_BC=~flags,
        lexical_BC=torch.zeros(1, len(scores)),
        gold_BC=gold_BC,
        distractor_BC=flags,
        refuse_B=flags[:, 0],
        off_topic_B=flags[:, 0],
        num_lm=1,
    )


def chosen(scores, gold, *, share, null_slot=True, top_k=2):
    """Return the candidates that `with_gold` gives, with their weights."""
    score_BC, batch = one_question(scores, gold)
    router = Router(tiny_spec("d2a", router={"null_slot": null_slot}))
    routing = router.select(score_BC, batch.valid_BC, top_k=top_k)
    index, log_weight = with_gold(router, routing, batch, slice(0, 1), share=share, generator=generator())
    return dict(zip(index[0].tolist(), log_weight[0].exp().tolist(), strict=True))


def test_a_missed_gold_atom_takes_the_last_place_with_the_routers_weight():
    # Candidates 0 and 3 of scores ln 4 and ln 1 beside the null slot's 1: 4/6 and 1/6.
    logs = torch.tensor([4.0, 3.0, 2.0, 1.0]).log().tolist()
    assert chosen(logs, [3], share=0.0) == pytest.approx({0: 4 / 6, 3: 1 / 6})
    # Without a null slot 4/5 and 1/5.
    assert chosen(logs, [3], share=0.0, null_slot=False) == pytest.approx({0: 4 / 5, 3: 1 / 5})


def test_the_best_of_several_missed_gold_atoms_is_taken():
    assert set(chosen([4.0, 3.0, 1.0, 2.0], [2, 3], share=0.0)) == {0, 3}


def test_the_routers_choice_stands_where_it_holds_a_gold_atom_or_there_is_none():
    logs = torch.tensor([4.0, 3.0, 2.0]).log().tolist()
    for gold in ([1], []):
        assert chosen(logs, gold, share=0.0) == pytest.approx({0: 4 / 8, 1: 3 / 8})
    assert chosen(logs, [], share=1.0) == pytest.approx({0: 4 / 8, 1: 3 / 8})


def test_forced_questions_get_their_gold_atoms_in_equal_parts_and_nothing_else():
    weights = chosen([4.0, 3.0, 2.0, 1.0], [1, 3], share=1.0, top_k=3)
    assert {i: w for i, w in weights.items() if w > 0} == pytest.approx({1: 0.5, 3: 0.5})
