import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import training.bench.answering
import training.bench.protocols
import training.bench.run
from models.errors import CheckpointError, ConfigError, D2AError
from models.router import AnswerabilityGate
from tests.models.worlds import write_checkpoint
from tests.training.bench.worlds import ASKED, request, rows_of, small_suite, with_suites
from training.bench.protocols import Protocol
from training.bench.run import run_bench
from training.gate import judged
from training.library import Library

SYSTEMS = ("no-context", "base+ctx", "doc2atom", "shuffled-document", "retrieval")


@pytest.fixture(autouse=True)
def short_answers_in_chunks_of_two(monkeypatch):
    monkeypatch.setattr(training.bench.run, "CPU_CHUNK", 2)
    monkeypatch.setattr(
        training.bench.protocols, "protocol_for", lambda name, suite: Protocol(name=name, max_new_tokens=5)
    )
    with_suites(monkeypatch, small_suite())


def run(folder, **changes):
    events = []
    out = run_bench(request(folder, **changes), events.append)
    return out, events


def test_rows_come_by_system_in_the_order_of_the_samples(tmp_path):
    out, events = run(tmp_path)
    assert [(r["system"], r["sample_id"]) for r in rows_of(out)] == [
        (system, f"q{number}") for system in SYSTEMS for number in range(len(ASKED))
    ]
    assert events[-1] == {"event": "done", "out": str(out)}
    assert {"event": "rows", "suite": "squad", "system": "doc2atom", "done": 5, "total": 5} in events


def test_a_package_that_a_metric_lacks_is_missed_before_anything_is_loaded(tmp_path, monkeypatch):
    suite = small_suite()
    samples = tuple(replace(s, spans=tuple((r,) for r in s.references)) for s in suite.samples)
    with_suites(monkeypatch, replace(suite, metric="drop", samples=samples))
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    monkeypatch.setattr("models.base.load_base", lambda *_, **__: pytest.fail("the base was loaded"))
    with pytest.raises(D2AError, match="aligned with scipy"):
        run(tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_the_header_says_what_was_measured(tmp_path):
    out, _ = run(tmp_path)
    header = json.loads((out / "run.json").read_text())
    suite = header["suites"]["squad"]
    # 3 + 2 + 3 sentences; five questions over banks of 3, 3, 2, 3 and 3 atoms are 14 / 5 = 2.8.
    assert (suite["n"], suite["num_atoms"], suite["mean_bank_atoms"]) == (5, 8, 2.8)
    # One token a character and 512 positions: 512 - 5 - 256 are left for a text.
    assert (suite["max_new_tokens"], suite["max_context_tokens"]) == (5, 251)
    assert header["k"] == 3
    assert header["systems"]["doc2atom"] == {"status": "ok", "domain": {"squad": "unknown"}}
    assert header["systems"]["base+ctx"] == {"status": "ok", "domain": {}}


@pytest.mark.parametrize("system, after", [("no-context", 1), ("doc2atom", 0), ("doc2atom", 2), ("retrieval", 1)])
def test_a_run_that_is_interrupted_goes_on_to_the_same_file(tmp_path, monkeypatch, system, after):
    whole, _ = run(tmp_path)
    answer = training.bench.answering.Answerer.answer
    calls = []

    def interrupted(self, asked, bank, rows, **more):
        calls.append(asked.name)
        if calls.count(system) > after:
            raise KeyboardInterrupt
        return answer(self, asked, bank, rows, **more)

    with monkeypatch.context() as patch:
        patch.setattr(training.bench.answering.Answerer, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, out=tmp_path / "cut")
    left = rows_of(tmp_path / "cut")
    assert len(left) == SYSTEMS.index(system) * 5 + 2 * after
    run(tmp_path, out=tmp_path / "cut")
    assert (tmp_path / "cut/predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()


@pytest.mark.parametrize("size", [0.1, 0.33, 0.5, 0.71, 0.999])
def test_a_file_that_is_torn_anywhere_is_completed_to_the_same_file(tmp_path, size):
    out, _ = run(tmp_path)
    path = out / "predictions.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(size * len(whole))])
    run(tmp_path)
    assert path.read_bytes() == whole


def test_a_complete_run_asks_nothing_again(tmp_path, monkeypatch):
    out, _ = run(tmp_path)
    whole = (out / "predictions.jsonl").read_bytes()
    header = json.loads((out / "run.json").read_text())
    monkeypatch.setattr(training.bench.answering.Answerer, "answer", None)
    run(tmp_path)
    assert (out / "predictions.jsonl").read_bytes() == whole
    assert json.loads((out / "run.json").read_text()) == header


@pytest.mark.parametrize("change", [{"seed": 1}, {"k": 1}, {"systems": ("no-context",)}, {"bank": "all"}])
def test_a_folder_of_another_run_is_refused_and_kept(tmp_path, change):
    out, _ = run(tmp_path)
    before = (out / "predictions.jsonl").read_bytes()
    with pytest.raises(D2AError, match=r"holds a run with .*--no-resume"):
        run(tmp_path, **change)
    assert (out / "predictions.jsonl").read_bytes() == before
    run(tmp_path, resume=False, **change)


def failing(monkeypatch, question, error):
    """Let decoding fail wherever the prompt of a question is in the batch."""
    decode = training.bench.answering.decode
    sizes = []

    def fails(base, prompts, adapter, **more):
        sizes.append(len(prompts))
        if any(question in base.tokenizer.decode(p) for p in prompts):
            raise error
        return decode(base, prompts, adapter, **more)

    monkeypatch.setattr(training.bench.answering, "decode", fails)
    return sizes


def test_a_sample_that_fails_is_a_row_with_its_error_and_the_others_are_answered(tmp_path, monkeypatch):
    good, _ = run(tmp_path)
    failing(monkeypatch, "When did Marn burn?", RuntimeError("no such kernel\nat 0x0"))
    bad, _ = run(tmp_path, out=tmp_path / "bad")
    for before, after in zip(rows_of(good), rows_of(bad), strict=True):
        if after["sample_id"] == "q1":
            assert after["error"] == "RuntimeError: no such kernel"
            assert after["scores"] == {"f1": 0.0, "em": 0.0, "rouge_l": 0.0, "official": 0.0}
            assert after["refused_by"] is None
        else:
            assert (after["error"], after["prediction"]) == (None, before["prediction"])


def test_a_system_that_fails_on_a_sample_before_the_base_is_asked_is_reported_too(tmp_path, monkeypatch):
    # All of one article: no sample has a stranger.
    with_suites(
        monkeypatch, replace(small_suite(), contexts=small_suite().contexts[:2], samples=small_suite().samples[:3])
    )
    out, _ = run(tmp_path, systems=("shuffled-document", "no-context"))
    errors = [(r["system"], r["error"]) for r in rows_of(out)]
    assert errors[:3] == [("shuffled-document", "LookupError: the suite has no document of another article")] * 3
    assert errors[3:] == [("no-context", None)] * 3


def test_a_batch_that_does_not_fit_is_halved(tmp_path, monkeypatch):
    monkeypatch.setattr(training.bench.run, "CPU_CHUNK", 5)
    sizes = failing(monkeypatch, "When did Marn burn?", torch.OutOfMemoryError("out of memory"))
    out, _ = run(tmp_path, systems=("no-context",))
    # Shortest first q1, q2, q0, q3, q4: 5 fail, 3 of them and then 2 fail, 1 fails alone.
    assert sizes == [5, 3, 2, 1, 1, 1, 2]
    assert [r["error"] for r in rows_of(out)] == [None, "OutOfMemoryError: out of memory", None, None, None]


def test_a_system_without_weights_says_how_to_train_it(tmp_path):
    out, events = run(tmp_path, systems=("no-context", "tuned+atoms", "d2l-ckpt"))
    systems = json.loads((out / "run.json").read_text())["systems"]
    assert "d2a train --model tiny --system reader --prompt atoms" in systems["tuned+atoms"]["why"]
    assert systems["d2l-ckpt"]["status"] == "unavailable"
    assert {r["system"] for r in rows_of(out)} == {"no-context"}
    assert [e["system"] for e in events if e.get("status") == "unavailable"] == ["tuned+atoms", "d2l-ckpt"]


def test_without_a_trained_memory_the_base_is_still_measured(tmp_path):
    out, _ = run(tmp_path, checkpoint=None, systems=("no-context", "doc2atom", "retrieval-bm25"))
    header = json.loads((out / "run.json").read_text())
    assert "d2a train --model tiny" in header["systems"]["doc2atom"]["why"]
    assert header["checkpoint"] is None
    assert {r["system"] for r in rows_of(out)} == {"no-context", "retrieval-bm25"}


def test_an_unknown_system_stops_the_run_before_any_row(tmp_path):
    with pytest.raises(ConfigError, match=r"system must be one of .*, got 'doc2atoms'"):
        run(tmp_path, systems=("doc2atoms",))
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="was trained with recipe d2a, got paper"):
        run(tmp_path, recipe="paper")


def test_the_gates_refusal_keeps_what_the_model_says(tmp_path):
    refusing = {"coefficients": [0.0, 0.0, 0.0, 0.0], "bias": -5.0, "threshold": 0.5}
    open_gate = {**refusing, "bias": 5.0}
    said = {}
    for name, gate in (("shut", refusing), ("open", open_gate)):
        checkpoint = write_checkpoint(tmp_path / name, "llama", gate=gate)
        out, _ = run(tmp_path, checkpoint=checkpoint, out=tmp_path / f"out-{name}", systems=("doc2atom",))
        said[name] = rows_of(out)
    for shut, free in zip(said["shut"], said["open"], strict=True):
        assert (shut["prediction"], shut["refused_by"]) == ("unanswerable", "gate")
        assert shut["extra"]["ungated"] == {"prediction": free["prediction"], "scores": free["scores"]}
        assert shut["answerability"] == pytest.approx(1 / (1 + 2.718281828**5), abs=1e-5)
        assert free["refused_by"] is None


def test_the_gate_of_the_benchmark_sees_what_that_of_the_product_sees(tmp_path, monkeypatch):
    """With what the memory adds to each question, also where a batch did not fit and was halved."""
    coefficients = [0.5, 1.0, 0.1, 0.0, 0.1, -0.2, -0.2, -0.2, -0.1, 0.3, 0.7]
    gate = {"coefficients": coefficients, "bias": -0.5, "threshold": 0.0}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama", gate=gate)
    decode, banks = training.bench.answering.decode, []

    def two_at_most(base, prompts, adapter, **more):
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return decode(base, prompts, adapter, **more)

    def gains(library, *given, compute=Library.gains):
        banks.append(library)
        return compute(library, *given)

    monkeypatch.setattr(training.bench.answering, "decode", two_at_most)
    monkeypatch.setattr(training.bench.run, "CPU_CHUNK", 5)
    monkeypatch.setattr(Library, "gains", gains)
    out, _ = run(tmp_path, checkpoint=checkpoint, systems=("doc2atom",))
    assert len(banks) == 3
    library = banks[0]
    by_id = {a.question.question_id: a for passage in range(3) for a in library.asks(passage)}
    asks = [by_id[row["sample_id"]] for row in rows_of(out)]
    routed = library.route_passages(library.query_keys(asks), asks, top_k=3)
    sure = AnswerabilityGate.of(gate)(judged(routed, library.answer(asks, library.adapter(routed))))
    assert [row["answerability"] for row in rows_of(out)] == pytest.approx(sure.tolist(), abs=1e-3)
    assert sure.std() > 0.01  # states in other batches are rounded otherwise, by less than a thousandth of it


def test_the_process_may_be_killed_at_any_time(tmp_path):
    """Kill a process in the middle of its rows, go on in this one, and compare with an unbroken run."""
    whole, _ = run(tmp_path)
    settings = request(tmp_path, out=tmp_path / "killed")
    script = (
        "import os, torch\n"
        "from pathlib import Path\n"
        "import models.prompts, training.bench.records\n"
        "from training.bench import protocols, run\n"
        "from tests.training.bench.worlds import small_suite\n"
        "torch.set_num_threads(1)\n"
        "models.prompts.INSTRUCTION = 'Answer.'\n"
        f"training.bench.records.records_root = lambda: Path({str(tmp_path / 'records')!r})\n"
        "run.CPU_CHUNK = 2\n"
        "run.load_suites = lambda request: [small_suite()]\n"
        "protocols.protocol_for = lambda name, suite: protocols.Protocol(name=name, max_new_tokens=5)\n"
        f"out = Path({str(settings.out)!r})\n"
        "def on_event(event):\n"
        "    path = out / 'predictions.jsonl'\n"
        "    if path.is_file() and path.read_bytes().count(b'\\n') >= 12: os.kill(os.getpid(), 9)\n"
        f"run.run_bench(run.BenchRequest(suites=('squad',), model={settings.model!r}, device='cpu', out=out,\n"
        f"    checkpoint=Path({str(settings.checkpoint)!r}), base_path=Path({str(settings.base_path)!r})), on_event)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert 12 <= len(rows_of(settings.out)) < 25
    run(tmp_path, out=settings.out)
    assert (settings.out / "predictions.jsonl").read_bytes() == (whole / "predictions.jsonl").read_bytes()
