"""Measure from a shell, also where there is no lancedb: events go to stderr, the targets as JSON lines to stdout."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import torch

from models.errors import D2AError
from training.bench.efficiency.request import PARTS, SIZES, EfficiencyRequest
from training.bench.efficiency.run import run_efficiency
from training.records import read_records

DEFAULT_SIZES = {"smollm2": "trained"}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    defaults = EfficiencyRequest(model="smollm2")
    parser = argparse.ArgumentParser(prog="python -m training.bench.efficiency", description=__doc__)
    parser.add_argument("--model", nargs="+", required=True, help="smollm2, gemma, qwen: one run each")
    parser.add_argument("--recipe", nargs="+", default=[None], help="paper, d2a; the preset's own if not named")
    parser.add_argument("--size", choices=SIZES, help="trained for smollm2, true (random weights) for the others")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("efficiency.json"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--records", type=Path, help="of a benchmark: its documents are compiled too")
    parser.add_argument("--documents", type=int, default=100, help="at most so many of them")
    parser.add_argument("--budget-s", type=float, default=defaults.budget_s, help="a run, without making weights")
    parser.add_argument("--index-budget-s", type=float, default=defaults.index_budget_s)
    parser.add_argument("--bank-sizes", nargs="+", type=int, default=list(defaults.bank_sizes))
    parser.add_argument("--atoms", type=int, default=defaults.num_atoms, help="of the invented document")
    parser.add_argument("--tokens", type=int, help="of the invented document; 8192 on a GPU, 1024 on a CPU")
    parser.add_argument("--new-tokens", type=int, help="of an answer; 32 on a GPU, 16 on a CPU")
    parser.add_argument("--base", type=Path, help="folder of a trained base's weights")
    parser.add_argument("--checkpoint", type=Path, help="folder of a trained memory")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure every model under every recipe; return the exit code."""
    options = parse(arguments)
    documents = ()
    try:
        if options.records is not None:
            records = [r for r in read_records(options.records) if r.atoms][: options.documents]
            documents = tuple(tuple(a.content for a in r.atoms) for r in records)
        for model in options.model:
            for recipe in options.recipe:
                run = run_efficiency(request_of(options, model, recipe, documents), _tell)
                for target in run["targets"]:
                    print(json.dumps({"model": model, "recipe": run["recipe"], **target}), flush=True)
                del run
                gc.collect()  # the base before, which the next one would not fit beside
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
    except D2AError as error:
        print(f"{error.message}. {error.hint}" if error.hint else error.message, file=sys.stderr)
        return 1
    return 0


def request_of(
    options: argparse.Namespace, model: str, recipe: str | None, documents: tuple[tuple[str, ...], ...]
) -> EfficiencyRequest:
    """Return the request of one run."""
    return EfficiencyRequest(
        model=model,
        recipe=recipe,
        size=options.size or DEFAULT_SIZES.get(model, "true"),
        device=options.device,
        documents=documents,
        num_atoms=options.atoms,
        num_tokens=options.tokens,
        bank_sizes=tuple(options.bank_sizes),
        new_tokens=options.new_tokens,
        parts=tuple(options.parts),
        budget_s=options.budget_s,
        index_budget_s=options.index_budget_s,
        base_path=options.base,
        checkpoint=options.checkpoint,
        out=options.out,
    )


def _tell(event: dict) -> None:
    print(json.dumps(event), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
