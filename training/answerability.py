"""Measure how well a checkpoint tells what a passage answers from what people wrote to look as if it did.

    d2a annotate DATA/dev-v2.0.json --dataset squad_v2 --split dev --probes 0 --shard-size 2000 --out build/squad_v2
    python -m training.answerability --records build/squad_v2/shard-00000.jsonl --batch 512

One bank a passage; nothing is generated. Beside the gate stand three of the figures that it weighs: the router's best
score, the refusal's log-probability, and the best BM25 score, which needs no model. `d2a bench refusal` answers the
questions too, and takes of a passage at most as many without an answer as with one.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.evaluate import PASSAGE_K, opened, options
from training.metrics import auroc

# Whatever says that a question can be answered, from a result of the evaluation; higher is surer.
SIGNALS = {
    "gate": lambda result: result["answerability"],
    "router": lambda result: result["gate_features"][0],
    "bm25": lambda result: result["gate_features"][1],
    "refusal": lambda result: -result["gate_features"][2],
}


def summarize(
    answerable: Sequence[dict[str, Any]], unanswerable: Sequence[dict[str, Any]], threshold: float
) -> dict[str, Any]:
    """Return in percent the area under the ROC curve of each signal, and what the gate refuses of either kind."""
    kinds = {"answerable": answerable, "unanswerable": unanswerable}
    return {
        "n": {kind: len(results) for kind, results in kinds.items()},
        "auroc": {
            name: 100 * auroc([read(r) for r in answerable], [read(r) for r in unanswerable])
            for name, read in SIGNALS.items()
        },
        "refused": {
            kind: 100 * sum(r["answerability"] < threshold for r in results) / len(results) if results else None
            for kind, results in kinds.items()
        },
    }


def main() -> None:
    """Parse the command line, ask every question of its passage, and print the figures as JSON."""
    parser = options(__doc__)
    parser.add_argument("--out", type=Path, help="file for a line of JSON a question")
    args = parser.parse_args()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    evaluation, meta = opened(args, max_new_tokens=0)
    library = evaluation.library
    asks = [a for passage in range(len(library.records)) for a in library.asks(passage)]
    if args.limit:
        asks = random.Random(args.seed).sample(asks, min(args.limit, len(asks)))
    started = time.monotonic()
    results: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for start in range(0, len(asks), args.batch):
        some = asks[start : start + args.batch]
        for ask, result in zip(some, evaluation.run(some, ["passage"])["passage"], strict=True):
            results[ask.question.is_irrelevant].append(result)
    figures = {
        "checkpoint": meta.fingerprint,
        "device": str(library.base.device),
        "k": PASSAGE_K,
        "threshold": evaluation.gate.threshold,
        "seconds": round(time.monotonic() - started, 1),
        **summarize(results[False], results[True], evaluation.gate.threshold),
    }
    print(json.dumps(figures, indent=2))
    if args.out:
        rows = [{"is_answerable": not kind, **result} for kind in (False, True) for result in results[kind]]
        args.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


if __name__ == "__main__":
    main()
