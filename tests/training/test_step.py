"""One training step: the cached path equals the whole model, and every loss sees the rows that it should."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models.base import FrozenBase
from models.encoder import pad
from models.errors import ConfigError
from models.injection import attached
from models.prompts import prompt_ids
from models.router import Router
from tests.models.tiny import FAMILIES, tiny_model, tiny_network, tiny_spec, tiny_tokenizer, whole_logits
from tests.training.samples import colours
from tests.training.worlds import CONFIG, SPECS, base_of, losses_of, step_of, world
from training.batches import MAX_IRRELEVANT, Batch
from training.curriculum import LOSSES, Phase
from training.losses import sparse_loss
from training.step import gold_alone, with_gold

RECORDS = colours(8)
QUESTIONS = [q for r in RECORDS for q in r.qa_pairs]
TEACHERS = ("distill",)
# A record whose atoms conflict, with a question that two atoms answer and whose confidences differ.
CONTESTED = [
    replace(
        record,
        atoms=tuple(
            replace(a, conflict_group="g", confidence=c) for a, c in zip(record.atoms, (0.9, 0.3, 0.6), strict=True)
        ),
        qa_pairs=(replace(record.qa_pairs[0], gold_atom_ids=("atom_0", "atom_1")), *record.qa_pairs[1:]),
    )
    for record in RECORDS
]


def phase(*losses, top_k=3, gold_forcing=0.0):
    return Phase(
        stage=1, is_last=False, top_k=top_k, weights=dict.fromkeys(losses or LOSSES, 1.0), gold_forcing=gold_forcing
    )


def drawn(step, sampler, number=0):
    return sampler.collate(sampler.plan(number), step.nearest)


def value(step, batch, name, **options):
    total, count = step(batch, phase(name, **options))[name]
    return total.item(), int(count)


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
    batch = drawn(step, sampler)
    with torch.no_grad():
        routed = step.route(batch, top_k=3)
        routing = routed.routing
        adapter = step.adapter(routed, routing.index_BK[:6], routing.log_weight_BK[:6])
        rows = step.features.target_rows(batch.question_B[:6], batch.refuse_B[:6])
        answer = step.answer_under(adapter, rows)
        ours = F.cross_entropy(answer.logits_TV, answer.target_T, reduction="sum").item()
        bare = step.answer_under(None, rows)
    theirs, count = uncached(step.base, adapter, batch)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert len(answer.target_T) == count
    assert (answer.logits_TV - bare.logits_TV).abs().max() > 0.01  # the adapter does something


def test_padding_of_a_batch_changes_no_row():
    step, sampler = world("qwen3", "d2a", RECORDS)
    batch = drawn(step, sampler)
    rows = step.features.target_rows(batch.question_B[:6], batch.refuse_B[:6])
    with torch.no_grad():
        routed = step.route(batch, top_k=3)
        index_BK, log_weight_BK = routed.routing.index_BK[:6], routed.routing.log_weight_BK[:6]
        together = step.answer_under(step.adapter(routed, index_BK, log_weight_BK), rows)
        alone = []
        for i in range(6):
            single = replace(routed, column_BC=routed.column_BC[i : i + 1])
            adapter = step.adapter(single, index_BK[i : i + 1], log_weight_BK[i : i + 1])
            alone.append(step.answer_under(adapter, rows[i : i + 1]).logits_TV)
    assert together.row_T.unique().tolist() == list(range(6))
    torch.testing.assert_close(together.logits_TV, torch.cat(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("recipe", SPECS)
def test_every_weight_of_the_memory_is_trained(recipe):
    step, sampler = world("gemma2", recipe, RECORDS)
    step.network.zero_grad()
    sums = step(drawn(step, sampler), phase("lm", "route", "null_slot", "contrastive", "irrelevant"))
    sum(total / count.clamp(min=1) for name, (total, count) in sums.items() if name in LOSSES).backward()
    untouched = [name for name, p in step.network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    expected = ["router.rerank", "router.stretch", "router.reading"]
    expected += [] if recipe.startswith("d2a") else ["router.lexical"]
    assert sorted(untouched) == sorted(expected)
    assert all(torch.isfinite(p.grad).all() for p in step.network.parameters() if p.grad is not None)


@pytest.mark.parametrize("recipe", SPECS)
def test_each_loss_is_computed_when_it_is_on_and_only_then(recipe):
    step, sampler = world("llama", recipe, CONTESTED, teacher=True)
    batch = drawn(step, sampler)
    everything = step(batch, phase(*losses_of(recipe)))
    on = {*losses_of(recipe)} - {"rerank"}  # there is no reranker here
    assert everything.keys() == on | {"top1", "tokens"}
    for name in on:
        alone = step(batch, phase(name))
        assert alone.keys() & set(LOSSES) == {name}
        torch.testing.assert_close(alone[name][0], everything[name][0])
        assert everything[name][0].isfinite() and everything[name][1] > 0, name


def test_a_small_gradient_of_protection_is_not_lost_over_a_half_precision_base():
    base = FrozenBase(tiny_model("llama").to(torch.bfloat16), tiny_tokenizer())
    step, sampler = step_of(base, tiny_network(base, SPECS["paper"]), RECORDS)
    batch, weights = drawn(step, sampler), [head.weight for head in step.network.compiler.b_heads.heads]

    def gradient(**scales):
        sums = step(batch, phase(*scales))
        total = sum(scale * sums[name][0] for name, scale in scales.items())
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, weights)])

    language, protection = gradient(lm=1.0), gradient(protect=1.0)
    scale = float(1e-4 * language.norm() / protection.norm())  # bfloat16 rounds to one part in 256
    added = gradient(lm=1.0, protect=scale) - language
    torch.testing.assert_close(added / scale, protection, rtol=0.05, atol=0.05 * float(protection.abs().max()))


def test_the_reranker_enters_the_scores_and_its_loss():
    step, sampler = world("llama", "paper", RECORDS)
    batch = drawn(step, sampler)
    batch = replace(batch, rerank_BC=torch.where(batch.gold_BC, 2.0, -2.0))
    before, count = value(step, batch, "rerank")
    with torch.no_grad():
        step.network.router.rerank.fill_(1.0)
    after, _ = value(step, batch, "rerank")
    step.network.router.rerank.data.zero_()
    assert after < before and count == int(batch.gold_BC.any(-1).sum())


@pytest.mark.parametrize("recipe", SPECS)
def test_the_parts_of_a_batch_add_up_to_it(recipe):
    step, sampler = world("qwen3", recipe, CONTESTED, teacher=True)
    plan, on = sampler.plan(0), phase(*losses_of(recipe))
    with torch.no_grad():
        whole = step(sampler.collate(plan, step.nearest), on)
        parts = [sampler.collate(plan.part(i, 3), step.nearest) for i in range(3)]
        shared = [step.shared(part, on) for part in parts]
        total = {name: sum(s[name] for s in shared) for name in shared[0]}
        mean_gate_G = total["gates"] / total["sparse"] if "gates" in total else None
        found = [step(part, on, mean_gate_G=mean_gate_G) for part in parts]
    assert total.keys() - {"gates"} == {*losses_of(recipe)} - {"rerank"}
    for name in total.keys() - {"gates"}:
        assert int(total[name]) == int(whole[name][1]) == sum(int(f[name][1]) for f in found), name
        assert sum(f[name][0].item() for f in found) == pytest.approx(whole[name][0].item(), rel=1e-4, abs=1e-5), name


def test_sparsity_looks_at_the_candidates_of_the_language_models_questions():
    step, sampler = world("llama", "d2a", RECORDS, replace(CONFIG, target_density=0.3))
    batch = drawn(step, sampler)
    atoms = batch.candidate_BC[: batch.num_lm][batch.valid_BC[: batch.num_lm]]
    with torch.no_grad():
        _, latent_NZ = step.network.compile_atoms(step.features.atom_pooled(atoms))
        expected, _ = sparse_loss(step.network.compiler.mask_head(latent_NZ), density=0.3)
    total, count = value(step, batch, "sparse")
    assert (total, count) == (pytest.approx(expected.item(), rel=1e-4), len(atoms))


def test_composition_is_zero_where_the_router_chose_the_gold_atoms_alone():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = drawn(step, sampler)
    assert value(step, batch, "composition")[0] > 0.01
    only_gold = replace(batch, valid_BC=batch.gold_BC | ~batch.gold_BC.any(-1, keepdim=True))
    with torch.no_grad():
        step.network.router.bias.fill_(50.0)  # the null slot gets nothing
    assert value(step, only_gold, "composition", top_k=1)[0] == pytest.approx(0.0, abs=1e-4)


def test_supporting_atoms_are_negatives_of_the_paper_and_nothing_to_d2a():
    counts = []
    for as_negative in (False, True):
        step, sampler = world("llama", "d2a", RECORDS, replace(CONFIG, supporting_as_negative=as_negative))
        batch = drawn(step, sampler)
        batch = replace(batch, supporting_BC=batch.valid_BC & ~batch.gold_BC)
        counts.append((value(step, batch, "route")[1], int(batch.gold_BC.sum()), int(batch.valid_BC.sum())))
    (few, gold, _), (many, _, valid) = counts
    assert (few, many) == (gold, valid)


def test_the_frozen_base_gets_no_gradient_and_is_no_part_of_the_module():
    step, sampler = world("llama", "d2a", RECORDS)
    step(drawn(step, sampler), phase("lm"))["lm"][0].backward()
    assert all(p.grad is None and not p.requires_grad for p in step.base.model.parameters())
    assert {id(p) for p in step.parameters()} == {id(p) for p in step.network.parameters()}


def test_scores_are_those_of_the_router_over_keys_words_and_metadata():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = drawn(step, sampler)
    with torch.no_grad():
        score_BC = step.route(batch, top_k=3).routing.score_BC
        row, column = (int(i) for i in batch.valid_BC.nonzero()[5])
        atom, network = int(batch.candidate_BC[row, column]), step.network
        key_E = network.compile_atoms(step.features.atom_pooled_ND[atom][None])[0][0]
        query_E = network.query_keys(step.features.question_pooled_QD[batch.question_B[row]][None])[0]
        router = network.router
        expected = router.log_scale.exp() * (key_E @ query_E) + router.bias
        expected += router.lexical * batch.lexical_BC[row, column] + step.metadata_NM[atom] @ router.metadata
    torch.testing.assert_close(score_BC[row, column], expected)


def test_the_cosine_is_trained_against_random_atoms_of_other_passages_too():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = drawn(step, sampler)
    assert sorted(batch.random_R.tolist()) == list(range(24))  # all of so small a library
    row = int(batch.gold_BC.any(-1).nonzero()[0])
    with torch.no_grad():
        key_NE, _ = step.network.compile_atoms(step.features.atom_pooled_ND)
        query_E = step.network.query_keys(step.features.question_pooled(batch.question_B[row : row + 1]))[0]
        logit_N = 20.0 * (key_NE @ query_E)
        gold = batch.candidate_BC[row][batch.gold_BC[row]].tolist()
        near = batch.candidate_BC[row][batch.contrast_BC[row]]
        home = batch.question_B[row].item() // 3  # three questions and three atoms a passage
        others = torch.tensor([atom for atom in batch.random_R.tolist() if atom // 3 != home])
        # One term an atom of the passage or near the question, and one a random atom from elsewhere.
        expected = torch.cat([logit_N[near], logit_N[others]]).logsumexp(0) - logit_N[gold].logsumexp(0)
        alone = replace(batch, gold_BC=batch.gold_BC & (torch.arange(len(batch.question_B)) == row)[:, None])
    total, count = value(step, alone, "contrastive")
    assert (total, count) == (pytest.approx(expected.item(), rel=1e-4), 1)
    none = replace(alone, random_R=batch.random_R[:0], random_BR=batch.random_BR[:, :0])
    assert value(step, none, "contrastive")[0] < total


def test_the_marked_rows_alone_take_part_in_the_irrelevance_loss():
    step, sampler = world("llama", "d2a", RECORDS, replace(CONFIG, batch_route=120))
    batch = drawn(step, sampler)
    # 6 for the language model, 40 off-topic, 40 absent, 40 answerable: 80 vanish, every third counts.
    total, count = value(step, batch, "irrelevant")
    assert 0 < count == 27 <= MAX_IRRELEVANT
    for part, matters in ((slice(6, 46), True), (slice(46, 86), True), (slice(86, 126), False)):
        raised = batch.lexical_BC.clone()
        raised[part] = 1.0
        changed, _ = value(step, replace(batch, lexical_BC=raised), "irrelevant")
        assert (changed != pytest.approx(total, rel=1e-4)) == matters


def test_a_batch_without_off_topic_rows_has_no_irrelevance_loss():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = drawn(step, sampler)
    assert value(step, replace(batch, suppress=batch.suppress[:0]), "irrelevant") == (0.0, 0)


def test_a_batch_without_questions_for_the_language_model_still_trains_the_router():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = replace(drawn(step, sampler), num_lm=0)
    assert step(batch, phase("lm", "route")).keys() == {"route", "top1"}


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
        random_R=torch.zeros(0, dtype=torch.long),
        random_BR=torch.zeros(1, 0, dtype=torch.bool),
        lexical_BC=torch.zeros(1, len(scores)),
        gold_BC=gold_BC,
        supporting_BC=flags,
        distractor_BC=flags,
        group_BC=flags.long() - 1,
        refuse_B=flags[:, 0],
        coin_B=torch.zeros(1),
        suppress=torch.zeros(0, dtype=torch.long),
        num_lm=1,
    )


def rescued(scores, gold, *, null_slot=True, top_k=2):
    """Return the candidates that `with_gold` gives, with their weights."""
    score_BC, batch = one_question(scores, gold)
    router = Router(tiny_spec("d2a", router={"null_slot": null_slot}))
    routing = router.select(score_BC, batch.valid_BC, top_k=top_k)
    index, log_weight = with_gold(router, routing, batch, slice(0, 1))
    return dict(zip(index[0].tolist(), log_weight[0].exp().tolist(), strict=True))


def test_a_missed_gold_atom_takes_the_last_place_with_the_routers_weight():
    # Candidates 0 and 3 of scores ln 4 and ln 1 beside the null slot's 1: 4/6 and 1/6.
    logs = torch.tensor([4.0, 3.0, 2.0, 1.0]).log().tolist()
    assert rescued(logs, [3]) == pytest.approx({0: 4 / 6, 3: 1 / 6})
    # Without a null slot 4/5 and 1/5.
    assert rescued(logs, [3], null_slot=False) == pytest.approx({0: 4 / 5, 3: 1 / 5})


def test_the_best_of_several_missed_gold_atoms_is_taken():
    assert set(rescued([4.0, 3.0, 1.0, 2.0], [2, 3])) == {0, 3}


def test_the_routers_choice_stands_where_it_holds_a_gold_atom_or_there_is_none():
    logs = torch.tensor([4.0, 3.0, 2.0]).log().tolist()
    for gold in ([1], []):
        assert rescued(logs, gold) == pytest.approx({0: 4 / 8, 1: 3 / 8})


def test_gold_atoms_alone_share_the_weight_in_equal_parts():
    _, batch = one_question([4.0, 3.0, 2.0, 1.0], [1, 3])
    chosen = torch.tensor([[0, 1, 2]]), torch.full((1, 3), 1 / 3).log()
    index, log_weight = gold_alone(batch, slice(0, 1), *chosen)
    weights = dict(zip(index[0].tolist(), log_weight[0].exp().tolist(), strict=True))
    assert {i: w for i, w in weights.items() if w > 0} == pytest.approx({1: 0.5, 3: 0.5})
    _, batch = one_question([4.0, 3.0, 2.0, 1.0], [])
    assert all(torch.equal(a, b) for a, b in zip(gold_alone(batch, slice(0, 1), *chosen), chosen, strict=True))


def test_gold_forcing_and_rescue_follow_the_coin_and_the_configuration():
    step, sampler = world("llama", "d2a", RECORDS)
    batch = drawn(step, sampler)
    with torch.no_grad():
        step.network.router.lexical.fill_(-50.0)  # the router now avoids whatever matches
        routed = step.route(batch, top_k=1)
    rows = batch.gold_BC[: batch.num_lm].any(-1)

    def hits(config, gold_forcing, coin):
        step.config = replace(CONFIG, **config)
        marked = replace(batch, coin_B=torch.full_like(batch.coin_B, coin))
        index_BK, _ = step._choice(routed, marked, phase("lm", top_k=1, gold_forcing=gold_forcing))
        return batch.gold_BC[: batch.num_lm].gather(1, index_BK)[rows].float().mean().item()

    assert hits({"rescue_gold": False}, 0.0, 0.0) < 1.0
    assert hits({"rescue_gold": True}, 0.0, 0.0) == 1.0
    assert hits({"rescue_gold": False}, 0.5, 0.4) == 1.0
    assert hits({"rescue_gold": False}, 0.5, 0.6) < 1.0


def test_a_lora_that_atoms_share_takes_no_loss_that_shapes_theirs():
    base = base_of("llama")
    config = replace(CONFIG, loss=replace(CONFIG.loss, protect=0.1))
    with pytest.raises(ConfigError, match=r"loss protect shapes what atoms write.*Set loss\.protect to 0"):
        step_of(base, tiny_network(base, SPECS["d2a with one LoRA"]), RECORDS, config)


def test_a_lora_that_atoms_share_is_no_memory_without_micro_kv():
    base = base_of("llama")
    with pytest.raises(ConfigError, match=r"static needs micro-KV.*kv\.source to tokens or latent"):
        step_of(base, tiny_network(base, tiny_spec("d2a", lora="static", kv={"source": "none"})), RECORDS)
