"""Print how fast `d2a` is on this machine, beside what it promises on two cores without a GPU.

    python benchmarks/speed.py [PDF] [--atoms 1000] [--json]

"From the shell" is a new process with files already in the page cache; "warm" is one process that keeps
the base loaded. Everything runs in a throw-away bank, with the default preset and its shipped checkpoint.
The PDF is `paper.pdf` of the shared data where that folder lies beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from models.config import MemoryConfig

PAPER = Path(__file__).parents[2] / "shared" / "data" / "docs" / "paper.pdf"
NUM_RUNS = 3
MIB = 2**20
REGIONS = ("North", "South", "East", "West", "Upper", "Lower", "Great", "Little")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure; `limit` is what the project promises on two cores, None where it promises nothing."""

    name: str
    value: float
    unit: str
    limit: float | None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished process: wall-clock seconds and peak resident memory in MiB."""

    seconds: float
    peak_mib: float


def run_d2a(*arguments: str | Path, bank: Path, expected: tuple[int, ...] = (0,)) -> Run:
    """Run `d2a` in a process of its own.

    Raises:
        SystemExit: It ended in an exit code that was not expected.
    """
    command = [sys.executable, "-m", "d2a_cli.app", *map(str, arguments)]
    start = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "D2A_BANK": str(bank)}, stdout=subprocess.DEVNULL)
    # wait4 tells the peak of this one child; RUSAGE_CHILDREN is the maximum over all of them.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in expected:
        raise SystemExit(f"{' '.join(command)} ended in exit code {process.returncode}")
    return Run(seconds=seconds, peak_mib=usage.ru_maxrss / (MIB if sys.platform == "darwin" else 1024))


def fact(number: int) -> tuple[str, str]:
    """Return a sentence that no other number gives, and the question that it answers."""
    town = f"{REGIONS[number % len(REGIONS)]} Station {number}"
    year = 1800 + number * 7 % 200
    return (
        f"The railway bridge at {town} was opened in {year} and has {2 + number % 9} arches.",
        f"When was the railway bridge at {town} opened?",
    )


def measure(num_atoms: int, pdf: Path | None, folder: Path) -> Iterator[Figure]:
    """Yield the figures one by one, in a bank under `folder`."""
    bank = folder / "bank"
    help_s = statistics.median(run_d2a("--help", bank=bank).seconds for _ in range(2 * NUM_RUNS))
    yield Figure(name="d2a --help", value=help_s, unit="s", limit=0.4)

    document = folder / "bridges.md"
    document.write_text("# Railway bridges\n\n" + "\n\n".join(fact(i)[0] for i in range(num_atoms)), encoding="utf-8")
    ingest = run_d2a("ingest", document, bank=bank)
    yield Figure(name=f"ingest {num_atoms} sentences", value=ingest.seconds, unit="s", limit=None)

    questions = [fact(i * num_atoms // NUM_RUNS)[1] for i in range(NUM_RUNS)]
    cold = [run_d2a("ask", question, bank=bank, expected=(0, 3)) for question in questions]
    yield Figure(name="ask, from the shell", value=statistics.median(r.seconds for r in cold), unit="s", limit=8.0)
    yield Figure(name="ask, peak memory", value=max(r.peak_mib for r in cold), unit="MiB", limit=None)
    yield from measure_warm(bank, num_atoms)

    if pdf is not None:
        ingest = run_d2a("ingest", pdf, bank=folder / "pdf-bank")
        yield Figure(name=f"ingest {pdf.name}", value=ingest.seconds, unit="s", limit=90.0)
        yield Figure(name=f"ingest {pdf.name}, peak memory", value=ingest.peak_mib, unit="MiB", limit=3072.0)


def measure_warm(bank: Path, num_atoms: int) -> Iterator[Figure]:
    """Yield the time of a question in a process that has already answered one."""
    from models.memory import DocumentMemory

    memory = DocumentMemory(MemoryConfig(bank=bank))
    seconds = []
    for i in range(1 + 3 * NUM_RUNS):
        start = time.perf_counter()
        memory.ask(fact((1 + i * 37) % num_atoms)[1])
        seconds.append(time.perf_counter() - start)
    yield Figure(name="ask, warm, median", value=statistics.median(seconds[1:]), unit="s", limit=1.5)
    yield Figure(name="ask, warm, slowest", value=max(seconds[1:]), unit="s", limit=None)
    yield Figure(name="atoms in the bank", value=memory.status().num_atoms, unit="", limit=None)


def show(figure: Figure) -> None:
    """Print a figure as a row of the table."""
    limit = "" if figure.limit is None else f"< {figure.limit:g} {figure.unit}"
    digits = 2 if figure.unit == "s" else 0
    print(f"{figure.name:<32} {figure.value:>9.{digits}f} {figure.unit:<4} {limit}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pdf", nargs="?", type=Path, default=PAPER if PAPER.is_file() else None)
    parser.add_argument("--atoms", type=int, default=1000, help="sentences in the bank that is asked")
    parser.add_argument("--json", action="store_true", help="write JSON instead of the table")
    options = parser.parse_args()

    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    figures = []
    if not options.json:
        print(f"{machine}\n\n{'figure':<32} {'measured':>9}      promised on 2 cores")
    with tempfile.TemporaryDirectory(prefix="d2a-speed-") as folder:
        for figure in measure(options.atoms, options.pdf, Path(folder)):
            figures.append(figure)
            if not options.json:
                show(figure)
    if options.json:
        print(json.dumps({"machine": machine, "figures": [asdict(figure) for figure in figures]}, indent=2))


if __name__ == "__main__":
    main()
