"""Make the atoms of a benchmark's documents, and nothing else, for a machine that lacks the atomizer's packages.

    D2A_CACHE=FOLDER python -m training.bench.prepare squad drop refusal --data DIR

The same suites, `--limit`, `--seed` and `--bank` as of the run find them in `FOLDER/bench`, on any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.errors import D2AError
from training.bench.bank import BANKS, documents_read, strangers
from training.bench.records import bench_records, records_root
from training.bench.run import BenchRequest, load_suites


def prepare(request: BenchRequest) -> Iterator[dict[str, Any]]:
    """Make the atoms that a run of `request` reads; yield the numbers of each suite when it is done."""
    for suite in load_suites(request):
        begin = time.monotonic()
        documents = documents_read(suite, request.bank, strangers(suite, request.seed))
        records = bench_records([suite.contexts[document] for document in documents])
        numbers = {"documents": len(records), "atoms": sum(len(record.atoms) for record in records)}
        yield {"suite": suite.name, **numbers, "seconds": round(time.monotonic() - begin, 1)}


def main(arguments: list[str] | None = None) -> int:
    """Make them from a shell, a JSON line a suite; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.bench.prepare", description=__doc__)
    parser.add_argument("suites", nargs="+", help="as of d2a bench: squad, drop, longbench, refusal, all")
    parser.add_argument("--data", type=Path, help="folder of the sets; the Hugging Face hub if not named")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bank", choices=BANKS, default="document")
    options = parser.parse_args(arguments)
    request = BenchRequest(
        suites=tuple(options.suites),
        data=options.data,
        limit=options.limit,
        seed=options.seed,
        bank=options.bank,
        out=records_root(),
    )
    try:
        for event in prepare(request):
            print(json.dumps(event), flush=True)
    except D2AError as error:
        print(f"{error.message}. {error.hint}" if error.hint else error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
