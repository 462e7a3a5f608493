"""One process and several train the same, and what is said of their speed is what was measured."""

import json
import os
import socket
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from benchmarks.scaling import compare, parse

ROOT = Path(__file__).parents[2]


def result(processes: int, each: float, alone: float, losses: list[dict]) -> dict:
    setting = dict.fromkeys(("model", "recipe", "machine", "torch", "passages", "batch", "steps", "log_every"), 1)
    runs = {"same_per_process": {"steps_per_s": each}, "same_global": {"steps_per_s": alone, "losses": losses}}
    return {**setting, "processes": processes, **runs}


ONE = result(1, 4.0, 4.0, [{"step": 10, "lm": 2.0, "route": 0.5}, {"step": 20, "lm": 1.5, "route": 0.4}])
TWO = result(2, 3.6, 6.0, [{"step": 10, "lm": 2.001, "route": 0.5}, {"step": 20, "lm": 1.5, "route": 0.43}])


def test_efficiency_is_the_rate_at_the_same_batch_of_a_process_over_that_of_one():
    found = compare(ONE, TWO)
    # Two processes make 3.6 steps a second where one makes 4, with twice the samples: 0.9. With the same samples 6 / 4.
    assert (found["efficiency"], found["speed_up_same_global"]) == (0.9, 1.5)
    # |0.43 - 0.4| at step 20 is more than |2.001 - 2.0| at step 10.
    assert (found["largest_loss_difference"], found["in"], found["at_step"]) == (0.03, "route", 20)


def test_runs_of_another_setting_or_in_another_order_are_refused():
    other = deepcopy(TWO) | {"batch": 2}
    with pytest.raises(ValueError, match="the runs differ in batch"):
        compare(ONE, other)
    with pytest.raises(ValueError, match="one process first"):
        compare(TWO, ONE)


def test_a_run_without_a_step_to_time_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse(["--steps", "10", "--log-every", "10"])
    assert "twice --log-every" in capsys.readouterr().err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measured(out: Path, *launcher: str) -> dict:
    tiny = ["--tiny", "--device", "cpu", "--batch", "6", "--steps", "4", "--log-every", "2", "--questions", "36"]
    module = ["-m", "benchmarks.scaling", *tiny, "--out", str(out)]
    command = [sys.executable, *(["-m", "torch.distributed.run", *launcher] if launcher else []), *module]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text("utf-8"))


@pytest.mark.slow
def test_two_processes_lose_what_one_does_at_the_same_global_batch(tmp_path):
    one = measured(tmp_path / "one.json")
    two = measured(tmp_path / "two.json", "--nproc_per_node", "2", "--master_port", str(free_port()))
    assert (two["processes"], two["same_global"]["global_batch"], two["same_per_process"]["global_batch"]) == (2, 6, 12)
    found = compare(one, two)
    assert found["largest_loss_difference"] < 0.01 and found["efficiency"] > 0
    # With other samples, losses are others: the comparison above does not hold by itself.
    pairs = zip(one["same_global"]["losses"], two["same_per_process"]["losses"], strict=True)
    assert all(abs(a["contrastive"] - b["contrastive"]) > 0.01 for a, b in pairs)
