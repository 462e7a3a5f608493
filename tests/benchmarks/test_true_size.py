"""Bases of true size have the published shape, and the whole measurement runs over tiny ones."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.synthetic import DocumentShape, documents
from benchmarks.true_size import Log, fitting, main, schedule, share_of, stage_lengths
from models.errors import ConfigError
from models.presets import load_preset
from training.bench.efficiency.bases import base_config, random_base, word_tokenizer
from training.config import load_config


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def num_parameters(model: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AutoModelForCausalLM.from_config(base_config(model)).parameters())


def test_bases_have_as_many_parameters_as_published():
    # Gemma 2 2B: embeddings 256000 * 2304; a layer has queries and output 2 * 2304 * 2048, keys and values
    # 2 * 2304 * 1024, three MLP matrices 2304 * 9216 and four norms of 2304; one last norm.
    layer = 2 * 2304 * 2048 + 2 * 2304 * 1024 + 3 * 2304 * 9216 + 4 * 2304
    assert num_parameters("gemma") == 256_000 * 2304 + 26 * layer + 2304 == 2_614_341_888
    # Qwen 3 4B: queries and output 2 * 2560 * 4096, keys and values 2 * 2560 * 1024, three matrices 2560 * 9728, two
    # norms of 2560 and two of a head's 128.
    layer = 2 * 2560 * 4096 + 2 * 2560 * 1024 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
    assert num_parameters("qwen") == 151_936 * 2560 + 36 * layer + 2560 == 4_022_468_096
    assert num_parameters("smollm2") == 134_515_008


@pytest.mark.parametrize("model", ["gemma", "qwen"])
def test_bases_are_of_the_family_that_their_preset_names(model):
    assert base_config(model).model_type == load_preset(model).family


def test_documents_have_the_tokens_that_were_asked_for():
    shape = DocumentShape(atoms=5, atom_tokens=12, questions=3, answer_tokens=7, longest=True)
    record, _ = documents(2, shape, num_words=50)
    tokenizer = word_tokenizer(64)
    assert [len(tokenizer(a.content)["input_ids"]) for a in record.atoms] == [12] * 5
    assert len(tokenizer(record.context)["input_ids"]) == 5 * 12
    assert tokenizer.unk_token_id not in tokenizer(record.context)["input_ids"]
    assert [len(tokenizer(a)["input_ids"]) for q in record.qa_pairs for a in q.answers] == [7, 7]
    assert all(record.context[a.char_start : a.char_end] == a.content for a in record.atoms)
    shorter = documents(8, DocumentShape(), num_words=50)
    lengths = [len(a.content.split()) for r in shorter for a in r.atoms]
    assert (min(lengths), max(lengths)) == (24, 96)


def test_a_process_gets_its_share_of_the_published_batch():
    config = share_of(load_config("qwen", recipe="d2a"), 8)
    assert (config.global_batch, config.batch_route, config.micro_batch) == (16, 48, 2)
    assert share_of(load_config("gemma"), 8).stages == load_config("gemma").stages


def test_hours_are_the_stages_lengths_times_their_median_steps():
    config = load_config("gemma")
    assert stage_lengths(config) == [2000, 4000, 3000, 3000]
    assert stage_lengths(load_config("gemma", recipe="d2a")) == [1200, 1800, 3000]  # shares 0.2, 0.5, 1 of 6000
    found = {"stages": [{"step_s_p50": s} for s in (0.9, 1.8, 3.6, 3.6)], "evaluation": {"seconds": 30}}
    # 1800 + 7200 + 10800 + 10800 s are 8.5 h; 12000 / 500 = 24 evaluations of 30 s are 0.2 h.
    hours = schedule(config, found)
    assert (hours["hours_steps"], hours["evaluations"], hours["hours_evaluations"]) == (8.5, 24, 0.2)
    found["stages"][2]["step_s_p50"] = found["evaluation"]["seconds"] = None
    assert schedule(config, found)["hours_steps"] is schedule(config, found)["hours_evaluations"] is None


def test_what_does_not_fit_is_tried_at_half_the_size(capsys):
    def run(size: int) -> str:
        if size > 2:
            raise torch.OutOfMemoryError
        return f"ran {size}"

    assert fitting(run, 8, "micro_batch", Log()) == (2, "ran 2")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [e["micro_batch"] for e in told] == [8, 4]

    def never(size: int) -> str:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        fitting(never, 3, "micro_batch", Log())


@pytest.mark.parametrize("recipe", ["paper", "d2a"])
@pytest.mark.parametrize("model", ["gemma", "qwen"])
def test_the_whole_measurement_runs_over_a_tiny_base(model, recipe, capsys):
    arguments = ["--model", model, "--recipe", recipe, "--tiny", "--steps", "2", "--documents", "4", "--device", "cpu"]
    main([*arguments, "--gpus", "32"])  # four samples a step
    out, err = capsys.readouterr()
    found, events = json.loads(out.splitlines()[-1]), [json.loads(line) for line in err.splitlines()]
    assert [s["top_k"] for s in found["stages"]] == ([1, 4, 8, 8] if recipe == "paper" else [2, 4, 8])
    assert all(0 < s["step_s_p50"] <= s["step_s_p95"] and s["tokens_per_s"] > 0 for s in found["stages"])
    steps = [e for e in events if e["event"] == "step"]
    assert len(steps) == len(found["stages"]) * (3 + 2)  # three warm up, two count
    assert "composition" in steps[-1] if recipe == "paper" else "contrastive" in steps[-1]
    assert {e["done"] for e in events if e["event"] == "cache"} >= {"atoms", "questions", "targets"}
    assert any(e.get("done") == "teacher" for e in events) == (recipe == "paper")
    assert found["evaluation"]["seconds"] > 0
    assert found["schedule"]["steps"] == (12_000 if recipe == "paper" else 6_000)


def test_a_stage_that_fits_at_no_size_leaves_the_others(monkeypatch, capsys):
    import benchmarks.true_size as module

    run = module.Trainer.run

    def hungry(trainer):
        if trainer.config.stages[0].top_k > 1:
            raise torch.OutOfMemoryError
        return run(trainer)

    monkeypatch.setattr(module.Trainer, "run", hungry)
    main(["--model", "qwen", "--tiny", "--steps", "1", "--documents", "4", "--device", "cpu", "--gpus", "64"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [s["step_s_p50"] is None for s in found["stages"]] == [False, True, True, True]
    assert found["schedule"]["hours_steps"] is None


def test_another_tokenizer_may_be_given_if_the_base_has_its_tokens(tmp_path):
    word_tokenizer(400).save_pretrained(tmp_path / "small")
    word_tokenizer(513).save_pretrained(tmp_path / "large")
    base = random_base("qwen", "cpu", tokenizer=tmp_path / "small", tiny=True)
    # "Memory", ":" are unknown (1), behind the special tokens come w0, w1, ...: w7 is 6 + 7.
    assert (base.prefix_ids, base.tokenizer("w7")["input_ids"]) == ([1, 1], [13])
    with pytest.raises(ConfigError, match="at most the base's 512 tokens, got 513"):
        random_base("qwen", "cpu", tokenizer=tmp_path / "large", tiny=True)


def test_random_weights_are_the_same_each_time():
    one, other = (random_base("gemma", "cpu", tiny=True) for _ in range(2))
    assert one.fingerprint() == other.fingerprint()
    assert one.fingerprint() != random_base("gemma", "cpu", tiny=True, seed=1).fingerprint()
