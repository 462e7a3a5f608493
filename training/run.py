"""`train`: from records to a registered checkpoint, in one call.

python -m training.run --config smollm2 --data build/data --out runs/first
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.config import TrainConfig, load_config

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train.

    Args:
        config: Name of a shipped configuration, or the path of a TOML file.
        data: Folder with the records, or with raw sets from which they are made.
        out: Folder of the run: configuration, events, checkpoint.
        overrides: Dotted keys of the configuration and their values.
        register: Make the finished checkpoint the one that `ask` and `ingest` use.
    """

    config: str
    data: Path
    out: Path
    model: str | None = None
    device: str = "auto"
    max_steps: int | None = None
    max_minutes: float | None = None
    seed: int | None = None
    base_path: Path | None = None
    register: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    def resolved(self) -> TrainConfig:
        """Return the configuration with every override applied."""
        named = {"model": self.model, "max_steps": self.max_steps, "max_minutes": self.max_minutes, "seed": self.seed}
        given = {k: v for k, v in named.items() if v is not None}
        return load_config(self.config).with_overrides({**given, **self.overrides})


def train(request: TrainRequest, *, on_event: Callable[[Event], None]) -> Path:
    """Train a memory and write its checkpoint.

    Returns:
        The checkpoint's folder, complete.

    Raises:
        ConfigError, DataError, BaseModelError: Before any work is done.
    """
    config = request.resolved()
    request.out.mkdir(parents=True, exist_ok=True)
    (request.out / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", "utf-8")
    with (request.out / "events.jsonl").open("w", encoding="utf-8") as log:

        def emit(event: Event) -> None:
            log.write(json.dumps(event) + "\n")
            log.flush()
            on_event(event)

        return _train(request, config, emit)


def _train(request: TrainRequest, config: TrainConfig, emit: Callable[[Event], None]) -> Path:
    import torch

    from models.base import load_base
    from models.checkpoint import CheckpointMeta, register_checkpoint, save_network
    from models.network import MemoryNetwork
    from models.presets import MemorySpec, load_preset
    from training.batches import Sampler
    from training.gate import fit_gate
    from training.library import Library
    from training.loop import train_loop
    from training.records import DataError

    records = _records(request.data, config, emit)
    held_out, kept = split_records(records, config)
    if len(held_out) < 2 or not any(q.gold_atom_ids for r in kept for q in r.qa_pairs):
        raise DataError(
            f"{request.data}: {len(records)} passages are too few: one in four with answerable questions is held out",
            hint="Train on at least 8 passages with answerable questions",
        )
    preset = load_preset(config.model)
    spec = MemorySpec.from_dict(_merged(preset.spec(config.recipe).to_dict(), config.memory))
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    base = load_base(preset, base_path=request.base_path, device=request.device)
    network = MemoryNetwork(spec, base).to(base.device)
    emit(
        {
            "event": "start",
            "device": str(base.device),
            "dtype": str(base.dtype),
            "passages": len(kept),
            "held_out": len(held_out),
            "parameters": sum(p.numel() for p in network.parameters()),
            "spec": spec.to_dict(),
        }
    )
    train_step, train_episodes = _prepared(
        base, network, config, kept, _episodes_file(request.data, config, kept), emit
    )
    held_step, held_episodes = _prepared(base, network, config, held_out, None, emit)
    best = train_loop(
        train_step, Sampler(train_episodes, base.device), held_step, Sampler(held_episodes, base.device), config, emit
    )
    del train_step, held_step
    network.eval().requires_grad_(False)
    library = Library(base, network, held_out)
    library.compile()
    gate, gate_figures = fit_gate(library, seed=config.seed)
    emit({"event": "gate", **gate_figures, "threshold": gate.threshold})
    manifest = {"records": config.records, "passages": len(kept), "questions": sum(len(r.qa_pairs) for r in kept)}
    meta = CheckpointMeta(
        preset=preset.name,
        spec=spec,
        base_fingerprint=base.fingerprint(),
        gate=vars(gate),
        training={"config": config.to_dict(), "data": manifest, "held_out": best, "gate": gate_figures},
    )
    folder = request.out / "checkpoint"
    save_network(folder, network, meta)
    if request.register:
        register_checkpoint(folder, preset.name)
    emit({"event": "done", "checkpoint": str(folder), **best})
    return folder


def _records(data: Path, config: TrainConfig, emit: Callable[[Event], None]) -> list:
    from training.prepare import prepare
    from training.records import read_records

    if not (data / config.records).is_file() and (data / "train").is_dir():
        emit({"event": "prepare", "out": str(data)})
        raw, data = data, data / "records"
        if not (data / config.records).is_file():
            prepare(raw, data)
    return read_records(data / config.records)


def split_records(records: list, config: TrainConfig) -> tuple[list, list]:
    """Hold some passages out, those with answerable questions; the same ones for a seed."""
    order = list(range(len(records)))
    random.Random(config.seed).shuffle(order)
    usable = [i for i in order if any(q.gold_atom_ids for q in records[i].qa_pairs)]
    held = set(usable[: min(config.holdout_passages, len(usable) // 4)])
    return [records[i] for i in sorted(held)], [r for i, r in enumerate(records) if i not in held]


def _episodes_file(folder: Path, config: TrainConfig, records: Sequence) -> Path:
    """Where the episodes of exactly these records, seed and word matching are kept."""
    from models.lexical import FORMAT_VERSION

    digest = hashlib.sha256(repr((FORMAT_VERSION, config.seed, records)).encode("utf-8", "surrogatepass"))
    return folder / f"{config.records}.{digest.hexdigest()[:12]}.episodes.npz"


def _prepared(
    base: Any, network: Any, config: TrainConfig, records: Sequence, cache: Path | None, emit: Callable[[Event], None]
) -> tuple[Any, Any]:
    from models.router import atom_metadata
    from training.episodes import Episodes, build_episodes
    from training.features import build_cache
    from training.step import TrainStep

    started = time.monotonic()
    if cache is None:
        episodes = build_episodes(records, seed=config.seed)
    else:
        if not cache.is_file():
            build_episodes(records, seed=config.seed).save(cache)
        episodes = Episodes.load(cache)  # also the first time: scores are kept in half precision
    emit({"event": "episodes", "count": len(episodes.kind), "seconds": round(time.monotonic() - started, 1)})
    atoms = [a for r in records for a in r.atoms]
    questions = [q for r in records for q in r.qa_pairs]
    features = build_cache(
        base,
        network.spec,
        config,
        atoms=[a.content for a in atoms],
        questions=[q.question for q in questions],
        answers=[_shortest(q.answers) for q in questions],
        on_progress=lambda what: emit(
            {"event": "cache", "done": what, "seconds": round(time.monotonic() - started, 1)}
        ),
    )
    return TrainStep(base, network, features, atom_metadata(atoms).to(base.device)), episodes


def _shortest(answers: Sequence[str]) -> str:
    from models.prompts import REFUSAL

    return min(answers, key=len) if answers else REFUSAL


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _merged(v, over[k]) if isinstance(v, dict) and k in over else over.get(k, v)
        for k, v in {**over, **base}.items()
    }


def main() -> None:
    """Parse the command line, train, and print events as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--base", type=Path)
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="override, e.g. memory.num_memory_layers=18"
    )
    args = parser.parse_args()
    overrides = {k: json.loads(v) for k, _, v in (s.partition("=") for s in args.set)}
    request = TrainRequest(
        config=args.config, data=args.data, out=args.out, device=args.device, base_path=args.base, overrides=overrides
    )
    train(request, on_event=lambda e: print(json.dumps(e), file=sys.stdout, flush=True))


if __name__ == "__main__":
    main()
