"""Frozen features: states equal to those of the base, and every home like no cache."""

import json
from dataclasses import replace

import pytest
import torch

import models.prompts
import training.features.cache
from models.encoder import text_features
from models.errors import ConfigError
from models.microkv import layer_inputs, pad_entry
from models.prompts import REFUSAL, prompt_ids
from models.router import atom_metadata
from tests.models.tiny import FAMILIES, NUM_LAYERS, NUM_MEMORY_LAYERS, tiny_base, tiny_network, tiny_spec, whole_logits
from tests.training.samples import colours, river_and_town
from tests.training.worlds import CONFIG, SPECS, base_of, cache_of, losses_of
from training.batches import Sampler
from training.config import TrainConfig
from training.curriculum import LOSSES, LossWeights
from training.episodes import build_episodes
from training.features import FeatureCache, LiveFeatures, Texts, build_cache, store
from training.features.store import choose_home, is_complete, new_file, open_file
from training.features.texts import cache_key
from training.step import TrainStep

RECORDS = river_and_town()
ATOMS = [a.content for r in RECORDS for a in r.atoms]
QUESTIONS = [q.question for r in RECORDS for q in r.qa_pairs]
ANSWERS = [q.answers[0] if q.answers else REFUSAL for r in RECORDS for q in r.qa_pairs]
CONTEXTS = [r.context for r in RECORDS for _ in r.qa_pairs]
UNANSWERABLE = ANSWERS.index(REFUSAL)
HOMES = ("device", "pinned", "disk")


def texts_of(records=RECORDS):
    """Return the texts of some records, documents for the teacher among them."""
    pairs = [(r, q) for r in records for q in r.qa_pairs]
    return Texts(
        atoms=[a.content for r in records for a in r.atoms],
        questions=[q.question for _, q in pairs],
        answers=[q.answers[0] if q.answers else REFUSAL for _, q in pairs],
        contexts=[r.context for r, _ in pairs],
    )


def cached(base, spec, config, texts=None, **options):
    return build_cache(base, spec, config, **vars(texts or texts_of()), **options)


def tensors_in(*values):
    """Return all tensors of some features, in order."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        else:
            found += tensors_in(*(value if isinstance(value, tuple) else vars(value).values()))
    return found


@pytest.mark.gpu
def test_every_home_gives_a_gpu_the_same(tmp_path):
    base = tiny_base("llama")
    base.model.to("cuda")
    first, *others = [cached(base, tiny_spec("d2a"), TrainConfig(), home=h, folder=tmp_path, share=True) for h in HOMES]
    assert [c._state_TD.device.type for c in (first, *others)] == ["cuda", "cpu", "cpu"]
    assert others[0]._state_TD.is_pinned() and not others[1]._state_TD.is_pinned()
    for other in others:
        for ours, theirs in zip(everything(other), everything(first), strict=True):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize("layers", [False, True], ids=["entry", "layers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_features_equal_those_of_single_texts(family, layers):
    base, spec = base_of(family), tiny_spec("d2a")
    cache = cache_of(base, spec, RECORDS, cache_batch_tokens=100, cache_atom_layers=layers)
    for row in (0, 3, 8):
        alone = text_features(base, spec, [ATOMS[row]], with_entry=True)
        torch.testing.assert_close(cache.atom_pooled(torch.tensor([row])), alone.pooled_ND)
        inputs_MUSD, length = cache.atom_inputs(torch.tensor([row]))
        assert int(length[0]) == min(len(ATOMS[row]), spec.max_atom_tokens)
        torch.testing.assert_close(inputs_MUSD, layer_inputs(base, spec, pad_entry(base, alone.entry)[0]))
        question = text_features(base, spec, [QUESTIONS[row % 6]], with_entry=False)
        torch.testing.assert_close(cache.question_pooled(torch.tensor([row % 6])), question.pooled_ND)


@pytest.mark.parametrize("num_encoder_layers", [3, 4, 5], ids=["below", "at", "above"])
def test_features_hold_wherever_the_encoder_ends(num_encoder_layers):
    base, spec = base_of("qwen3"), tiny_spec(num_encoder_layers=num_encoder_layers)
    cache, alone = cache_of(base, spec, RECORDS), text_features(base, spec, ATOMS, with_entry=True)
    torch.testing.assert_close(cache.atom_pooled_ND, alone.pooled_ND)
    inputs_MUSD = layer_inputs(base, spec, pad_entry(base, [alone.entry[2]])[0])
    torch.testing.assert_close(cache.atom_inputs(torch.tensor([2]))[0], inputs_MUSD)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_target_holds_prompt_answer_and_end_and_the_states_below_the_memory(family):
    base = base_of(family)
    cache = cache_of(base, tiny_spec("d2a"), RECORDS, cache_batch_tokens=400)
    rows = cache.target_rows(torch.tensor([4, 4]), torch.tensor([False, True]))
    for row, answer in zip(rows, ("gluons", REFUSAL), strict=True):
        targets = cache.targets(row[None])
        ids, prompt = targets.token_BL, prompt_ids(base.tokenizer, QUESTIONS[4])
        assert ids[0, : len(prompt)].tolist() == prompt
        assert targets.answer_BL[0].tolist() == [i >= len(prompt) for i in range(ids.shape[1])]
        assert base.tokenizer.decode(ids[0, len(prompt) : -1]) == answer
        assert ids[0, -1] == base.tokenizer.eos_token_id
        with torch.no_grad():
            expected = base.run_layers(base.embed(ids), start=0, stop=NUM_LAYERS - NUM_MEMORY_LAYERS)
        torch.testing.assert_close(targets.state_BLD, expected)


def test_a_question_that_is_refused_anyway_has_one_target():
    cache = cache_of(base_of("llama"), tiny_spec("d2a"), RECORDS)
    question = torch.tensor([UNANSWERABLE, UNANSWERABLE])
    assert cache.target_rows(question, torch.tensor([False, True])).tolist() == [UNANSWERABLE] * 2


def test_what_all_prompts_begin_with_is_kept_once():
    base = base_of("llama")
    cache = cache_of(base, tiny_spec("d2a"), RECORDS)
    prompts = [prompt_ids(base.tokenizer, q) for q in QUESTIONS]
    head = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    refusals = (len(REFUSAL) + 1) * (len(QUESTIONS) - 1)  # one question has it as its answer
    expected = head + sum(len(p) - head for p in prompts) + sum(len(a) + 1 for a in ANSWERS) + refusals
    assert sum(len(t) for n, t in vars(cache).items() if n == "_state_TD") == expected


def test_long_answers_are_cut_and_still_end():
    base = base_of("llama")
    targets = cache_of(base, tiny_spec("d2a"), RECORDS, max_answer_tokens=3).targets(torch.tensor([4]))
    answer = targets.token_BL[targets.answer_BL].tolist()
    assert base.tokenizer.decode(answer[:-1]) == "glu" and answer[-1] == base.tokenizer.eos_token_id


def test_a_memory_without_token_slots_caches_no_atom_states():
    cache = cache_of(base_of("llama"), tiny_spec("paper"), RECORDS)
    assert cache._atoms.flat_TD.numel() == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_teacher_is_the_whole_base_with_the_document_in_its_prompt(family):
    base = base_of(family)
    config = TrainConfig(distill_top_k=5, distill_temperature=2.0, cache_batch_tokens=300)
    teacher = cached(base, tiny_spec("d2a"), config).teacher(torch.tensor([4, 0]))
    expected = []
    for row in (4, 0):
        prompt = prompt_ids(base.tokenizer, QUESTIONS[row], CONTEXTS[row])
        reply = [*base.tokenizer(ANSWERS[row], add_special_tokens=False)["input_ids"], base.tokenizer.eos_token_id]
        logits = whole_logits(base, torch.tensor([prompt + reply]))[0, len(prompt) - 1 : -1]
        expected.append((logits / 2.0).log_softmax(-1))
    top = torch.cat(expected).topk(5, dim=-1)
    assert teacher.best.token_TK.tolist() == top.indices.tolist()
    torch.testing.assert_close(teacher.best.log_p_TK, top.values, atol=1e-5, rtol=1e-5)
    tail = (1 - top.values.exp().double().sum(-1)).log()
    torch.testing.assert_close(teacher.best.log_tail_T.double(), tail, atol=1e-4, rtol=1e-4)


def test_the_teacher_is_silent_about_added_refusals_alone():
    base, spec, config = base_of("llama"), tiny_spec("d2a"), TrainConfig()
    cache = cached(base, spec, config)
    rows = cache.target_rows(torch.tensor([4, 0, UNANSWERABLE]), torch.tensor([False, True, True]))
    for features in (cache, LiveFeatures(base, spec, config, texts_of())):
        teacher = features.teacher(rows)
        # "gluons" and the end: 7 tokens; the added refusal of question 0 and the true one: 13 each.
        assert teacher.taught_A.tolist() == [True] * 7 + [False] * 13 + [True] * 13
        assert len(teacher.best.token_TK) == 20
        assert features.is_taught(rows).tolist() == [True, False, True]
        assert features.answer_length(rows).tolist() == features.targets(rows).answer_BL.sum(1).tolist() == [7, 13, 13]


def test_a_long_document_is_cut_at_a_number_of_tokens():
    base, spec = base_of("llama"), tiny_spec("d2a")
    short = replace(texts_of(), contexts=[c[:20] for c in CONTEXTS])
    cut = cached(base, spec, TrainConfig(max_context_tokens=20)).teacher(torch.tensor([0, 4]))
    same = cached(base, spec, TrainConfig(), short).teacher(torch.tensor([0, 4]))
    whole = cached(base, spec, TrainConfig()).teacher(torch.tensor([0, 4]))
    torch.testing.assert_close(cut.best.log_p_TK, same.best.log_p_TK, atol=0, rtol=0)
    assert (cut.best.log_p_TK - whole.best.log_p_TK).abs().max() > 0.01


@pytest.mark.parametrize("layers", [False, True], ids=["entry", "layers"])
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("recipe", SPECS)
def test_all_losses_and_gradients_of_a_step_are_equal_with_and_without_a_cache(tmp_path, home, recipe, layers):
    records = colours(8)
    base, spec, texts = base_of("llama"), SPECS[recipe], texts_of(records)
    names = losses_of(recipe)
    losses = LossWeights(**dict.fromkeys(LOSSES, 0.0) | dict.fromkeys(names, 1.0))
    config = replace(CONFIG, loss=losses, cache_batch_tokens=256, cache_atom_layers=layers)
    folder = tmp_path if home == "disk" else None
    kept = cached(base, spec, config, texts, home=home, folder=folder)
    found = []
    for features in (LiveFeatures(base, spec, config, texts), kept):
        network = tiny_network(base, spec).train()
        step = TrainStep(base, network, features, atom_metadata([a for r in records for a in r.atoms]), config)
        sampler = Sampler(build_episodes(records), config, base.device)
        sums = step(sampler.collate(sampler.plan(0), step.nearest), config.phase_at(0, 0.3))
        sum(total / count.clamp(min=1) for name, (total, count) in sums.items() if name in LOSSES).backward()
        figures = {name: (total.item(), count.item()) for name, (total, count) in sums.items()}
        found.append((figures, {n: p.grad for n, p in network.named_parameters() if p.grad is not None}))
    (live, live_grad), (ours, our_grad) = found
    # There is no reranker here. Of the answers' tokens the teacher speaks of those that are no added refusals.
    assert {*names} - live.keys() == {"rerank"} and ours.keys() == live.keys()
    assert live["distill"][0] > 0.1 and 0 < live["distill"][1] < live["lm"][1]
    for name, (total, count) in live.items():
        assert ours[name] == (pytest.approx(total, rel=1e-5), count), name
    for name, gradient in live_grad.items():
        torch.testing.assert_close(our_grad[name], gradient, atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def everything(features):
    device = features.atom_pooled_ND.device
    rows = torch.arange(len(QUESTIONS), device=device)
    targets = features.targets(torch.cat([rows, features.target_rows(rows, torch.ones_like(rows) > 0)]))
    atoms = torch.arange(len(ATOMS), device=device)
    return tensors_in(
        features.atom_pooled_ND,
        features.question_pooled(rows),
        features.atom_inputs(atoms),
        targets,
        features.teacher(rows),
    )


def test_a_second_run_finds_the_file_of_the_first_and_computes_nothing(tmp_path, monkeypatch):
    base, spec, config = base_of("gemma2"), tiny_spec("d2a"), TrainConfig()
    parts = []
    first = cached(base, spec, config, home="disk", folder=tmp_path, on_progress=parts.append)
    assert parts == ["atoms", "questions", "targets", "teacher"]
    monkeypatch.setattr(training.features.cache, "LiveFeatures", None)
    for home in HOMES:
        again = cached(base, spec, config, home=home, folder=tmp_path)
        assert again.home == home
        for ours, theirs in zip(everything(again), everything(first), strict=True):
            torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_file_is_kept_where_it_is_the_home_or_is_shared(tmp_path):
    base, spec, config = base_of("llama"), tiny_spec("d2a"), TrainConfig()
    assert cached(base, spec, config, home="auto", folder=tmp_path).home == "device"
    assert list(tmp_path.iterdir()) == []
    assert cached(base, spec, config, home="auto", folder=tmp_path, share=True).home == "device"
    (path,) = tmp_path.glob("*.safetensors")
    assert is_complete(path)


def test_auto_goes_to_disk_where_memory_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "free_host_bytes", lambda: 1000)
    assert cached(base_of("llama"), tiny_spec("d2a"), TrainConfig(), home="auto", folder=tmp_path).home == "disk"
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_the_file_is_safetensors_and_maps_its_large_tensors(tmp_path):
    base = base_of("llama")
    cache = cached(base, tiny_spec("d2a"), TrainConfig(), home="disk", folder=tmp_path)
    (path,) = tmp_path.glob("*.safetensors")
    from safetensors.torch import load_file

    loaded = load_file(path)
    torch.testing.assert_close(loaded["target_state"], cache._state_TD, atol=0, rtol=0)
    mark = json.loads(path.with_suffix(".complete.json").read_text("utf-8"))
    assert mark["bytes"] == path.stat().st_size and mark["base"] == base.fingerprint()


def test_a_file_written_half_is_never_used(tmp_path):
    path = tmp_path / "k.safetensors"
    layout = {"x": ((3, 2), torch.float32), "n": ((2,), torch.int64), "h": ((5,), torch.bfloat16)}
    with pytest.raises(KeyboardInterrupt), new_file(path, layout, {}) as tensors:
        tensors["x"].fill_(1.0)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [] and not is_complete(path)
    with new_file(path, layout, {}) as tensors:
        for value, name in enumerate(layout):
            tensors[name].fill_(value)
        assert not is_complete(path)
    assert is_complete(path)
    assert {n: t.unique().tolist() for n, t in open_file(path).items()} == {"x": [0], "n": [1], "h": [2]}
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not is_complete(path)
    path.write_bytes(whole)
    path.with_suffix(".complete.json").unlink()
    assert not is_complete(path)


def test_a_run_that_was_killed_is_made_up_for(tmp_path):
    base, spec, config = base_of("llama"), tiny_spec("d2a"), TrainConfig()
    first = cached(base, spec, config, home="disk", folder=tmp_path)
    expected = [t.clone() for t in everything(first)]
    del first  # whoever maps a file must not see it cut short
    (path,) = tmp_path.glob("*.safetensors")
    path.with_suffix(".complete.json").unlink()
    path.write_bytes(b"cut")
    path.with_name(path.name + ".tmp").write_bytes(b"left behind")
    again = cached(base, spec, config, home="disk", folder=tmp_path)
    for ours, theirs in zip(everything(again), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    assert is_complete(path) and not list(tmp_path.glob("*.tmp"))


def test_any_change_of_what_features_depend_on_is_another_key(monkeypatch):
    base, spec, config, texts = base_of("llama"), tiny_spec("d2a"), TrainConfig(), texts_of()
    changed = [
        (tiny_base("llama", seed=1), spec, config, texts),
        (base, replace(spec, num_memory_layers=1), config, texts),
        (base, replace(spec, num_encoder_layers=2), config, texts),
        (base, replace(spec, max_atom_tokens=23), config, texts),
        (base, tiny_spec("d2a", kv={"source": "none"}), config, texts),
        (base, spec, replace(config, cache_atom_layers=True), texts),
        (base, spec, replace(config, max_answer_tokens=31), texts),
        (base, spec, replace(config, max_context_tokens=31), texts),
        (base, spec, replace(config, distill_top_k=31), texts),
        (base, spec, replace(config, distill_temperature=1.4), texts),
        (base, spec, config, replace(texts, contexts=None)),
        (base, spec, config, replace(texts, contexts=[*CONTEXTS[:-1], "Else."])),
        (base, spec, config, replace(texts, answers=[*ANSWERS[:-1], "Else."])),
        (base, spec, config, replace(texts, questions=[*QUESTIONS[:-1], "Else?"])),
        (base, spec, config, replace(texts, atoms=[*ATOMS[:-2], ATOMS[-2] + ATOMS[-1]])),
    ]
    keys = [cache_key(*parts)[0] for parts in changed]
    key = cache_key(base, spec, config, texts)[0]
    with monkeypatch.context() as patch:
        patch.setattr(models.prompts, "INSTRUCTION", "Reply.")
        keys.append(cache_key(base, spec, config, texts)[0])
    with monkeypatch.context() as patch:
        patch.setattr(base.tokenizer, "chat_template", base.tokenizer.chat_template + " ")
        keys.append(cache_key(base, spec, config, texts)[0])
    assert len({key, *keys}) == len(keys) + 1


def test_what_features_do_not_depend_on_keeps_the_key():
    base, spec, config, texts = base_of("llama"), tiny_spec("d2a"), TrainConfig(), texts_of()
    key = cache_key(base, spec, config, texts)
    assert cache_key(base, replace(spec, rank=2, d_latent=5), replace(config, seed=4, max_steps=9), texts) == key


def test_auto_takes_the_fastest_home_that_has_room(monkeypatch):
    device = torch.device("cuda")
    monkeypatch.setattr(store, "free_gpu_memory", lambda _: 100)
    monkeypatch.setattr(store, "free_host_bytes", lambda: 1000)
    sizes = {50: "device", 51: "pinned", 500: "pinned", 501: "disk"}
    assert {n: choose_home("auto", n, device, on_disk=True) for n in sizes} == sizes
    assert choose_home("auto", 500, torch.device("cpu"), on_disk=True) == "device"


def test_free_host_memory_heeds_a_containers_limit_and_is_shared(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("5000\n", "utf-8")
    (tmp_path / "memory.current").write_text("1000\n", "utf-8")
    monkeypatch.setattr(store, "CONTROL_GROUP", tmp_path)
    assert store.free_host_bytes() == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert store.free_host_bytes() == 1000
    (tmp_path / "memory.max").write_text("max\n", "utf-8")
    assert store.free_host_bytes() > 10**6


def test_a_home_that_cannot_be_is_refused_with_the_next_step():
    device = torch.device("cpu")
    with pytest.raises(ConfigError, match=r"feature_home must be live or one of .*pinned.*, got 'attic'"):
        choose_home("attic", 1, device, on_disk=True)
    with pytest.raises(ConfigError, match="Name a folder"):
        choose_home("disk", 1, device, on_disk=False)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("no folder", "utf-8")
    with pytest.raises(ConfigError, match="cannot be written"):
        cached(base_of("llama"), tiny_spec("d2a"), TrainConfig(), home="disk", folder=tmp_path / "file")


def test_a_cache_is_what_it_says():
    cache = cached(base_of("llama"), tiny_spec("d2a"), TrainConfig(), home="auto")
    assert isinstance(cache, FeatureCache) and cache.home == "device"
