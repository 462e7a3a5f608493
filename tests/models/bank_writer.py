"""A writer that is there to be killed: forks a child a command, since importing takes seconds and forking none.

Commands on standard input, one a line, JSON: {"bank": PATH, "kill_after_s": S} runs puts until the kill, S
after the first one;
{"bank": PATH, "writers": N, "name": NAME} lets N children put the same document at once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import lancedb  # noqa: F401  imported before the fork
import torch  # noqa: F401

from models.bank import Bank
from tests.models.bank_samples import IDENTITY, put


def put_until_killed(path: Path, started: int) -> None:
    bank = Bank.open(path, IDENTITY, create=False)
    for number in range(10_000):
        put(bank, f"doc{number % 7}", num_atoms=20 + number % 7, seed=number)
        os.write(started, b".")


def put_once(path: Path, name: str, writer: int) -> None:
    put(Bank.open(path, IDENTITY, create=True), name, num_atoms=20, seed=writer)


def fork(work, *args) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work(*args)
            os._exit(0)
        except BaseException as error:
            print(f"writer: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid


for line in sys.stdin:
    command = json.loads(line)
    bank_path = Path(command["bank"])
    if "kill_after_s" in command:
        reading, writing = os.pipe()
        child = fork(put_until_killed, bank_path, writing)
        os.read(reading, 1)
        time.sleep(command["kill_after_s"])
        os.kill(child, signal.SIGKILL)
        os.close(reading)
        os.close(writing)
        print(os.waitpid(child, 0)[1], flush=True)
    else:
        children = [fork(put_once, bank_path, command["name"], n) for n in range(command["writers"])]
        print(max(os.waitpid(child, 0)[1] for child in children), flush=True)
