"""Make the records of the first checkpoint from raw question-answering sets.

    python -m training.prepare --data DATA --out build/data

Writes `train.jsonl.gz`, `squad_dev.jsonl.gz` and the manifest of the training data. Training passages that share a
13-gram with the evaluation set are dropped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence, Set
from itertools import chain
from pathlib import Path

from models.atomizer import build_atomizer
from models.config import AtomizerConfig
from training.corpus import MANIFEST
from training.data import Passage, annotate, read_squad, without_overlap
from training.datasets.files import sha256
from training.datasets.manifest import DataManifest, SourceManifest
from training.records import write_records

TRAIN_SETS = {
    "squad": ("squad/train_44articles.json", "squad/train_subset_a.json", "squad/train_subset_b_flat.json"),
    "squad_v2": ("squad/train-v2.0_11articles.json",),
    "squadshifts": (
        "squadshifts/new_wiki_v1.0.json",
        "squadshifts/reddit_v1.0.json",
        "squadshifts/amazon_reviews_v1.0.json",
    ),
}
DEV_SET = "squad/dev-v1.1.json"


def prepare(data: Path, out: Path) -> dict[str, int]:
    """Write both files and return counts of what went into them."""
    atomizer = build_atomizer(AtomizerConfig())
    dev = list(read_squad(data / "eval" / DEV_SET))
    raw = {name: [p for file in files for p in read_squad(data / "train" / file)] for name, files in TRAIN_SETS.items()}
    train, dropped = without_overlap(chain.from_iterable(raw.values()), (p.context for p in dev))
    records = [annotate(p, atomizer) for p in train]
    write_records(out / "train.jsonl.gz", records)
    write_records(out / "squad_dev.jsonl.gz", (annotate(p, atomizer) for p in dev))
    manifest = DataManifest(
        sources=tuple(_source(data, name, passages, {p.context for p in train}) for name, passages in raw.items()),
        held_out={"squad": len(dev)},
    )
    (out / MANIFEST).write_text(json.dumps(manifest.to_dict(), indent=2) + "\n", "utf-8")
    return {
        "train_passages": len(records),
        "train_questions": sum(len(r.qa_pairs) for r in records),
        "train_atoms": sum(len(r.atoms) for r in records),
        "dropped_overlapping": dropped,
        "dev_passages": len(dev),
    }


def _source(data: Path, name: str, passages: Sequence[Passage], kept: Set[str]) -> SourceManifest:
    left = [p for p in passages if p.context in kept]
    return SourceManifest(
        name=name,
        split="train",
        files={Path(file).name: sha256(data / "train" / file) for file in TRAIN_SETS[name]},
        num_contexts=len({p.context for p in left}),
        num_questions=sum(len(p.questions) for p in left),
        dropped={"overlap": len(passages) - len(left)},
    )


def main() -> None:
    """Parse the command line and print the counts as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train/ and eval/")
    parser.add_argument("--out", type=Path, default=Path("build/data"))
    args = parser.parse_args()
    print(json.dumps(prepare(args.data, args.out)))


if __name__ == "__main__":
    main()
