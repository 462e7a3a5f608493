"""Several processes train what one does, over one node or two, and go on from each other's states after a kill."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.models.worlds import SPECS, base_folder, write_preset
from tests.training.samples import colours
from training.records import write_records

ROOT = Path(__file__).parents[2]
# Every loss is on, and six samples do not part evenly among processes and parts.
CONFIG = """
records = "r.jsonl"
global_batch = 6
micro_batch = 2
max_steps = 6
max_epochs = 1000
eval_every = 3
save_every = 2
log_every = 2
warmup_steps = 2
learning_rate = 1e-3
probe_from_step = 1000
holdout_passages = 3
[[stages]]
until_step = 3
top_k = 1
losses = ["lm", "distill", "route", "irrelevant", "protect"]
[[stages]]
top_k = 3
[loss]
distill = 0.5
protect = 1e-3
sparse = 0.5
composition = 0.2
conflict = 0.2
confidence = 0.2
"""


def records() -> list:
    """Return small passages whose atoms conflict and whose questions are of both kinds."""
    found = []
    for record in colours(12):
        atoms = tuple(
            replace(a, conflict_group="g", confidence=c) for a, c in zip(record.atoms, (0.9, 0.3, 0.6), strict=True)
        )
        first, second, third = record.qa_pairs
        both = replace(first, gold_atom_ids=("atom_0", "atom_1"))
        none = replace(third, answers=(), gold_atom_ids=(), is_irrelevant=True, question_type="irrelevant")
        found.append(replace(record, atoms=atoms, qa_pairs=(both, second, none)))
    return found


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> Path:
    """Return a folder with preset, configuration and records."""
    folder = tmp_path_factory.mktemp("distributed")
    preset = write_preset(folder, "llama", {r: SPECS[r] for r in ("d2a", "paper")})
    (folder / "c.toml").write_text(f'model = "{preset}"\n{CONFIG}', "utf-8")
    write_records(folder / "data" / "r.jsonl", records())
    return folder


def start(setting, out, recipe, *launcher, **popen):
    """Start a run; `launcher` are the options of torchrun, none for a plain process."""
    run = ["-m", "tests.training.launched", "--config", str(setting / "c.toml"), "--recipe", recipe]
    run += ["--data", str(setting / "data"), "--out", str(setting / out), "--device", "cpu"]
    run += ["--base", str(base_folder("llama"))]
    command = [sys.executable, *(["-m", "torch.distributed.run", *launcher] if launcher else []), *run]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, **popen)


def finished(*processes):
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]


def end_of(setting, out):
    """Return the last training state's weights and the run's events."""
    events = [json.loads(line) for line in (setting / out / "events.jsonl").read_text().splitlines()]
    return load_file(setting / out / "states" / "step-00000006" / "weights.safetensors"), events


def assert_same(setting, one, other):
    (expected, events), (found, other_events) = end_of(setting, one), end_of(setting, other)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
    for kind in ("step", "eval"):
        ours, theirs = ([e for e in list_ if e["event"] == kind][-1] for list_ in (events, other_events))
        for name in ours.keys() - {"seconds", "tokens_per_s", "step_seconds", "eta_seconds", "lr"}:
            assert theirs[name] == pytest.approx(ours[name], abs=2e-3), (kind, name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_processes_end_with_the_weights_of_one(setting):
    finished(start(setting, "two", "d2a", "--nproc_per_node", "2", "--master_port", str(free_port())))
    finished(start(setting, "one", "d2a"))
    assert_same(setting, "one", "two")
    begun = next(e for e in end_of(setting, "two")[1] if e["event"] == "start")
    assert (begun["processes"], begun["parts"]) == (2, 2)  # 3 samples a process, 2 at once


@pytest.mark.slow
def test_two_nodes_and_a_killed_run_that_another_number_of_processes_goes_on_with_do_as_well(setting):
    finished(start(setting, "whole", "paper"))
    meeting = ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    nodes = [start(setting, "nodes", "paper", "--nnodes", "2", "--node_rank", str(rank), *meeting) for rank in (0, 1)]
    finished(*nodes)
    assert_same(setting, "whole", "nodes")
    with start(setting, "killed", "paper", stdout=subprocess.PIPE) as doomed:
        for line in doomed.stdout:
            if json.loads(line).get("event") == "state":
                doomed.send_signal(signal.SIGKILL)
                break
    assert doomed.returncode == -signal.SIGKILL
    assert not (setting / "killed" / "checkpoint").exists()
    finished(start(setting, "killed", "paper", "--nproc_per_node", "2", "--master_port", str(free_port())))
    assert_same(setting, "whole", "killed")
    [resumed] = [e for e in end_of(setting, "killed")[1] if e["event"] == "resume"]
    assert resumed["step"] in (2, 4)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs `pip install deepspeed`")
def test_parts_clipping_and_rates_come_out_of_deepspeed_as_out_of_one_process():
    launch = ["--nproc_per_node", "2", "--master_port", str(free_port()), "-m", "tests.training.under_deepspeed"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-m", "torch.distributed.run", *launch]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("same weights") == 2, done.stderr[-3000:]
