"""Doc-to-LoRA, the reader and the blind control: what they read, what they train on, and that they learn."""

import functools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from models.baselines.d2l import D2LConfig, HyperLora
from models.encoder import pad
from models.errors import ConfigError
from models.prompts import prompt_ids
from models.static_lora import StaticLora
from tests.models.tiny import FAMILIES, tiny_base, tiny_spec, whole_logits
from tests.training.asked import CONFIG, LAKES, RECORDS, answerable, drawn, passages
from tests.training.samples import make_record
from training.curriculum import Phase
from training.features import LiveFeatures, Texts
from training.losses import TeacherTopK
from training.systems.answers import AnswerLogits
from training.systems.d2l import D2LSystem, mean_by_row, topk_cross_entropy
from training.systems.documents import Documents
from training.systems.evidence import best_atoms
from training.systems.prompts import BarePrompts, TextPrompts
from training.systems.reader import StaticSystem
from training.systems.sensitivity import context_sensitivity

PHASE = Phase(stage=1, is_last=True, top_k=2, weights={"lm": 1.0})
TEACHER_PHASE = replace(PHASE, weights={"lm": 1.0, "distill": 1.0})
HYPER = D2LConfig(width=16, head_dim=4, num_encoder_blocks=2, rank=4, max_chunk_tokens=40)
SYSTEMS = ("d2l", "reader with atoms", "reader with document", "blind")
RATES = {"d2l": 0.003, "reader with atoms": 0.03, "reader with document": 0.03, "blind": 0.03}
base_of = functools.cache(tiny_base)


def texts_of(records) -> Texts:
    """Return the words of some records, with the passage as what the teacher reads."""
    pairs = [(r, q) for r in records for q in r.qa_pairs]
    return Texts(
        atoms=[a.content for r in records for a in r.atoms],
        questions=[q.question for _, q in pairs],
        answers=[q.answers[0] if q.answers else "unanswerable" for _, q in pairs],
        contexts=[r.context for r, _ in pairs],
    )


def system_of(name, base, records=RECORDS, *, form="raw", seed=5):
    """Return an untrained system over some records."""
    torch.manual_seed(seed)
    texts, documents = texts_of(records), Documents.of(records, form=form)
    if name == "d2l":
        spec = tiny_spec(num_memory_layers=base.num_layers)
        return D2LSystem(base, HyperLora.over(base, HYPER), LiveFeatures(base, spec, CONFIG, texts), documents)
    lora = StaticLora(tiny_spec(), base)
    if name == "blind":
        return StaticSystem(base, lora, BarePrompts(LiveFeatures(base, tiny_spec(), CONFIG, texts)))
    evidence = name.removeprefix("reader with ")
    prompts = TextPrompts(base, CONFIG, texts, documents, first_layer=lora.first_layer, evidence=evidence)
    return StaticSystem(base, lora, prompts)


def trained(system, batch, *, steps, rate):
    """Train on one batch; return the language-model loss, nats a token, of every step."""
    optimiser = torch.optim.Adam(system.parameters(), lr=rate)
    history = []
    for _ in range(steps):
        means = {name: total / count for name, (total, count) in system(batch, PHASE).items()}
        optimiser.zero_grad()
        sum(weight * means[name] for name, weight in system.loss_weights.items() if name in means).backward()
        optimiser.step()
        history.append(means["lm"].item())
    return history


@functools.cache
def learnt(name):
    """Return a system after some training on four lakes, and its losses."""
    system = system_of(name, base_of("llama"), LAKES)
    return system, trained(system, answerable(LAKES), steps=36, rate=RATES[name])


def sensitivity_of(system, batch, records):
    """Return what another article's document changes."""
    articles = torch.tensor(Documents.of(records).article_of_atom)
    return context_sensitivity(lambda asked: system.answer(asked, top_k=2), batch, articles)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_loss_falls_on_a_handful_of_documents(name):
    _, history = learnt(name)
    assert history[-1] < 0.5 * history[0]


@pytest.mark.parametrize("name", ["reader with atoms", "reader with document"])
def test_a_batch_read_in_parts_by_length_is_the_batch(name, monkeypatch):
    system, batch = system_of(name, base_of("llama")), drawn()
    torch.nn.init.normal_(system.lora.b_1OR[0])
    whole, figures = system.answer(batch, top_k=2), system(batch, PHASE)
    monkeypatch.setattr("training.systems.prompts.PART_TOKENS", 64)
    row_B = [row_B for row_B, _ in system.prompts.parts(batch, top_k=2)]
    assert len(row_B) > 2
    assert torch.cat(row_B).tolist() != sorted(torch.cat(row_B).tolist())
    parts, in_parts = system.answer(batch, top_k=2), system(batch, PHASE)
    assert parts.row_T.tolist() == whole.row_T.tolist() == sorted(whole.row_T.tolist())
    assert parts.target_T.tolist() == whole.target_T.tolist()
    torch.testing.assert_close(parts.logits_TV, whole.logits_TV)
    assert figures.keys() == in_parts.keys() == {"lm", "tokens"}
    for (total, count), (total_of_parts, count_of_parts) in zip(figures.values(), in_parts.values(), strict=True):
        torch.testing.assert_close(total_of_parts, total)
        assert count_of_parts == count


@pytest.mark.parametrize("name", SYSTEMS[:-1])
def test_what_learnt_to_read_answers_worse_under_another_document(name):
    found = sensitivity_of(learnt(name)[0], answerable(LAKES), LAKES)
    assert found.num_questions == 4
    assert found.margin_nats > 0.2
    assert found.moved >= 0.5


def test_the_blind_control_answers_alike_under_any_document():
    found = sensitivity_of(learnt("blind")[0], answerable(LAKES), LAKES)
    assert (found.margin_nats, found.moved) == (0.0, 0.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SYSTEMS)
def test_an_untrained_system_has_the_loss_of_the_bare_base(name, family):
    base, batch, records = base_of(family), drawn(), RECORDS
    questions = [q for r in records for q in r.qa_pairs]
    atoms = [a.content for r in records for a in r.atoms]
    contexts = [None] * batch.num_lm
    if name == "reader with document":
        contexts = [records[p].context for p in passages(batch).tolist()]
    if name == "reader with atoms":
        contexts = [" ".join(atoms[a] for a in rows) for rows in best_atoms(batch, top_k=PHASE.top_k)]
    total, tokens = 0.0, 0
    for row, context in enumerate(contexts):
        question = questions[batch.question_B[row]]
        reply = base.tokenizer("unanswerable" if batch.refuse_B[row] else question.answers[0])["input_ids"]
        prompt, reply = prompt_ids(base.tokenizer, question.question, context), [*reply, base.tokenizer.eos_token_id]
        logits = whole_logits(base, *pad([prompt + reply], "cpu"))[0, len(prompt) - 1 : -1]
        total += F.cross_entropy(logits, torch.tensor(reply), reduction="sum").item()
        tokens += len(reply)
    loss, count = system_of(name, base)(batch, PHASE)["lm"]
    assert loss.item() == pytest.approx(total, rel=1e-4)
    assert count == tokens


def test_with_a_teacher_only_refusals_train_the_language_model():
    system, batch = system_of("d2l", base_of("llama")), drawn()
    refused = batch.refuse_B[: batch.num_lm]
    assert 0 < refused.sum() < batch.num_lm
    out, bare = system(batch, TEACHER_PHASE), system(batch, PHASE)
    assert "distill" not in bare
    assert out["distill"][1] == (~refused).sum()
    assert out["lm"][1] == refused.sum() * (len("unanswerable") + 1)  # a token a character, and the end
    assert out["lm"][0] < bare["lm"][0]


def test_distillation_is_the_cross_entropy_against_the_base_that_reads_the_document():
    base, batch = base_of("llama"), answerable(LAKES)
    total, count = system_of("d2l", base, LAKES)(batch, TEACHER_PHASE)["distill"]
    expected = 0.0
    for row in range(4):
        context, colour = LAKES[row].context, LAKES[row].qa_pairs[0].answers[0]
        reply = [*base.tokenizer(colour)["input_ids"], base.tokenizer.eos_token_id]
        logits = []
        for text in (context, None):
            prompt = prompt_ids(base.tokenizer, "Its colour?", text)
            logits.append(whole_logits(base, *pad([prompt + reply], "cpu"))[0, len(prompt) - 1 : -1])
        log_p, best = logits[0].log_softmax(-1).topk(16)
        expected -= (log_p.exp() * logits[1].log_softmax(-1).gather(-1, best)).sum(-1).mean().item()
    assert count == 4
    assert total.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("phase", [PHASE, TEACHER_PHASE])
@pytest.mark.parametrize("name", SYSTEMS)
def test_counts_are_known_before_anything_runs(name, phase):
    system, batch = system_of(name, base_of("llama")), drawn()
    with torch.no_grad():
        found = {n: int(count) for n, (_, count) in system(batch, phase).items() if n in system.loss_weights}
    assert {n: int(count) for n, count in system.shared(batch, phase).items()} == found


@pytest.mark.parametrize("name", SYSTEMS)
def test_parts_of_a_batch_add_up(name):
    system = system_of(name, base_of("llama"))
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = system(drawn(), TEACHER_PHASE)
        parts = [system(drawn(part=(i, 2)), TEACHER_PHASE) for i in range(2)]
    for loss in whole.keys() - {"tokens"}:
        assert whole[loss][1] == sum(part[loss][1] for part in parts)
        torch.testing.assert_close(whole[loss][0], sum(part[loss][0] for part in parts), rtol=1e-4, atol=1e-4)


def test_every_weight_of_the_hypernetwork_is_trained_and_none_of_the_base():
    system = system_of("d2l", base_of("gemma2"))
    for parameter in (system.hyper.scale_b_LR, system.hyper.bias_b_LRO):  # which start at zero
        torch.nn.init.normal_(parameter, std=0.1)
    assert {p.data_ptr() for p in system.parameters()} == {p.data_ptr() for p in system.hyper.parameters()}
    system(drawn(), PHASE)["lm"][0].backward()
    assert not [name for name, p in system.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert all(p.grad is None and not p.requires_grad for p in system.base.model.parameters())


@pytest.mark.parametrize("name", SYSTEMS[1:])
def test_every_weight_of_the_static_lora_is_trained_and_none_of_the_base(name):
    system = system_of(name, base_of("qwen3"))
    for b_1OR in system.lora.b_1OR:
        torch.nn.init.normal_(b_1OR, std=0.1)
    system(drawn(), PHASE)["lm"][0].backward()
    assert len(list(system.parameters())) == 2 * len(system.lora.sites)
    assert not [name for name, p in system.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert all(p.grad is None and not p.requires_grad for p in system.base.model.parameters())


def test_size_of_the_lora_is_the_mean_over_a_documents_chunks_for_each_question():
    system = system_of("d2l", base_of("llama"))
    torch.nn.init.normal_(system.hyper.scale_b_LR)
    sizes = []
    for passage in (3, 5):
        assert len(system.chunks[passage]) == 2  # about 60 characters, in chunks of at most 40
        adapter, size_B = system.adapter(torch.tensor([passage]))
        scale, rank, own = system.hyper.config.scale, system.hyper.config.rank, []
        for a_1SI, b_1OS in adapter.lora.values():
            chunks_a, chunks_b = a_1SI[0, : 2 * rank], b_1OS[0, :, : 2 * rank] / scale
            own.append(chunks_a.abs().mean() + chunks_b.abs().mean())
        torch.testing.assert_close(size_B, torch.stack(own).mean()[None])
        sizes.append(size_B)
    _, size_B = system.adapter(torch.tensor([5, 3, 5]))
    torch.testing.assert_close(size_B, torch.cat([sizes[1], sizes[0], sizes[1]]))


def test_each_question_gets_its_own_documents_update():
    system = system_of("d2l", base_of("llama"))
    torch.nn.init.normal_(system.hyper.scale_b_LR)
    together, _ = system.adapter(torch.tensor([5, 3, 5]))
    alone, _ = system.adapter(torch.tensor([3]))
    site = system.hyper.sites[2]
    update = [b[0] @ a[0] for a, b in ([t[1:2] for t in together.lora[site]], alone.lora[site])]
    torch.testing.assert_close(update[0], update[1], atol=1e-5, rtol=1e-4)
    first, third = (together.lora[site][0][row] for row in (0, 2))
    assert torch.equal(first, third)


@pytest.mark.parametrize(("form", "text"), [("raw", "A b. C d."), ("atoms", "A b.\nC d.")])
def test_a_document_is_read_as_written_or_atom_by_atom(form, text):
    record = make_record("T", ["A b.", "C d."], [])
    assert Documents.of([record], form=form).texts == [text]
    system = system_of("d2l", base_of("llama"), (record, *LAKES), form=form)
    assert text in base_of("llama").tokenizer.decode(system.chunks[0][0])


def test_other_documents_and_prompts_are_refused():
    with pytest.raises(ConfigError, match="documents must be one of raw, atoms"):
        Documents.of(RECORDS, form="pages")
    with pytest.raises(ConfigError, match="prompt must be one of atoms, document"):
        system_of("reader with pictures", base_of("llama"))


def test_the_probe_compares_losses_and_best_tokens_of_fair_rows():
    records = [make_record(title, ["A b."], [("A?", "b", [0])]) for title in ("S", "T", "U")]
    batch = answerable(tuple(records))
    batch = replace(batch, refuse_B=torch.tensor([False, False, True]))
    log_p = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.01, 0.99]]).log()

    def answer(asked):
        # One token a row, whose target is token 0; row 2 is a refusal and has no part.
        right = torch.equal(asked.candidate_BC, batch.candidate_BC)
        logits = log_p if right else log_p[:, [1, 0]]
        return AnswerLogits(logits_TV=logits, target_T=torch.zeros(3, dtype=torch.long), row_T=torch.arange(3))

    found = context_sensitivity(answer, batch, torch.tensor([0, 1, 2]))
    assert found.num_questions == 2
    assert found.correct_nats == pytest.approx(-(math.log(0.5) + math.log(0.75)) / 2)
    assert found.shuffled_nats == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)
    assert found.margin_nats == pytest.approx(math.log(3) / 2)
    assert found.moved == 0.5  # a tie stays where it is, 0.75 against 0.25 turns round


def test_cross_entropy_against_a_teachers_best_tokens_by_hand():
    teacher = TeacherTopK(
        token_TK=torch.tensor([[2, 0]]),
        log_p_TK=torch.tensor([[0.5, 0.25]]).log(),
        log_tail_T=torch.tensor([0.25]).log(),
    )
    logits = torch.tensor([[0.1, 0.3, 0.6]]).log()
    # -(0.5 ln 0.6 + 0.25 ln 0.1): the tail's quarter has no part, and nothing is normalised again
    assert topk_cross_entropy(logits, teacher).item() == pytest.approx(0.831059, abs=1e-5)


def test_only_sixteen_tokens_of_a_teacher_count():
    teacher = TeacherTopK(
        token_TK=torch.arange(20)[None], log_p_TK=torch.full((1, 20), 0.05).log(), log_tail_T=torch.tensor([-90.0])
    )
    loss = topk_cross_entropy(torch.zeros(1, 20), teacher)
    assert loss.item() == pytest.approx(16 * 0.05 * math.log(20))


def test_tokens_are_averaged_before_answers():
    total, count = mean_by_row(torch.tensor([1.0, 3.0, 7.0]), torch.tensor([0, 0, 2]), num_rows=3)
    assert (total.item(), count.item()) == (9.0, 2)  # (1 + 3) / 2 + 7; row 1 has no token


def test_a_prompt_is_rendered_once(monkeypatch):
    system, batch = system_of("reader with document", base_of("llama")), answerable()
    first = system(batch, PHASE)["lm"][0]
    monkeypatch.setattr("training.systems.prompts.all_prompt_ids", lambda _tokenizer, asked, _given: asked)
    torch.testing.assert_close(system(batch, PHASE)["lm"][0], first)
