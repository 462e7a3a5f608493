"""`train`: from records to a registered checkpoint, in one call, by one process or several.

python -m training.run --config smollm2 --data build/data --out runs/first
torchrun --nproc_per_node 8 -m training.run --config gemma --data records --out runs/gemma
accelerate launch --config_file training/configs/zero2.yaml -m training.run --config qwen …
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.config import TrainConfig, load_config

if TYPE_CHECKING:
    from torch import nn

    from models.atoms import AnnotationRecord
    from training.build import Builder
    from training.world import World

Event = dict[str, Any]
Emit = Callable[[Event], None]
# These change how a run is carried out, not what comes out: a state goes on under others.
_HARMLESS = frozenset(
    {"micro_batch", "max_minutes", "log_every", "save_every", "keep_states", "cache_batch_tokens", "feature_home"}
)


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train.

    Args:
        config: Name of a shipped configuration, or the path of a TOML file.
        data: Folder with the records, or with raw sets from which they are made; or one file of records.
        out: Folder of the run: configuration, events, training states, report, checkpoint.
        recipe: `paper` or `d2a`; None takes the configuration's.
        system: `doc2atom`, `d2l`, `reader` or `blind`; `reads` is what it reads, None for its default.
        overrides: Dotted keys of the configuration and their values.
        resume: `auto` goes on from the newest training state of `out`, `never` starts anew; or the path of one.
        tracker: `tensorboard`, `wandb` or `trackio`, beside the events.
        register: Make the finished checkpoint the one that `ask` and `ingest` use.
    """

    config: str
    data: Path
    out: Path
    model: str | None = None
    recipe: str | None = None
    system: str = "doc2atom"
    reads: str | None = None
    device: str = "auto"
    max_steps: int | None = None
    max_minutes: float | None = None
    seed: int | None = None
    base_path: Path | None = None
    resume: str = "auto"
    tracker: str | None = None
    register: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    def resolved(self) -> TrainConfig:
        """Return the configuration with every override applied."""
        named = {"model": self.model, "max_steps": self.max_steps, "max_minutes": self.max_minutes, "seed": self.seed}
        given = {k: v for k, v in named.items() if v is not None}
        return load_config(self.config, recipe=self.recipe).with_overrides({**given, **self.overrides})


def train(request: TrainRequest, *, on_event: Emit) -> Path:
    """Train a system and write its checkpoint.

    Every process of a launcher calls this; the first one writes and tells events.

    Returns:
        The checkpoint's folder, complete.

    Raises:
        ConfigError, DataError, BaseModelError, CheckpointError: Before any work is done.
        UnusedMemoryError: The system does not use what it reads.
    """
    from training.build import check_system
    from training.state import find_state
    from training.world import World

    config = request.resolved()
    check_system(request.system, request.reads)
    world = World(request.device)
    start = find_state(request.out / "states", request.resume)
    with _events(request, config, world, on_event, resumed=start is not None) as emit:
        folder = _train(request, config, world, emit, start)
    world.wait()
    world.close()
    return folder


@contextmanager
def _events(
    request: TrainRequest, config: TrainConfig, world: World, on_event: Emit, *, resumed: bool
) -> Iterator[Emit]:
    """Give the function that tells events: to the file, the caller and the tracker, from the first process alone."""
    from training.tracking import open_tracker

    if not world.is_main:
        yield lambda event: None
        return
    request.out.mkdir(parents=True, exist_ok=True)
    (request.out / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", "utf-8")
    with (
        (request.out / "events.jsonl").open("a" if resumed else "w", encoding="utf-8") as log,
        open_tracker(request.tracker, request.out, config.to_dict()) as tracker,
    ):

        def emit(event: Event) -> None:
            log.write(json.dumps(event) + "\n")
            log.flush()
            tracker.log(event)
            on_event(event)

        yield emit


def _train(request: TrainRequest, config: TrainConfig, world: World, emit: Emit, start: Path | None) -> Path:
    import torch

    from models.base import load_base
    from models.presets import load_preset
    from training.build import Builder, Material, check_system, episodes_file
    from training.loop import StateFiles, Trainer, num_parts

    records, files = load_data(request.data, config, emit)
    held_out, kept = split_records(records, config)
    check_enough(request.data, held_out, kept)
    preset = load_preset(config.model)
    spec = memory_spec(config)
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    base = load_base(preset, base_path=request.base_path, device=world.device)
    builder = Builder(
        system=request.system,
        reads=check_system(request.system, request.reads),
        base=base,
        spec=spec,
        config=config,
        emit=emit,
        features_folder=request.out / "features",
        share_features=world.size > 1,
    )
    module = builder.module()
    emit(
        {
            "event": "start",
            "system": request.system,
            "device": str(base.device),
            "dtype": str(base.dtype),
            "processes": world.size,
            "parts": num_parts(config, world.size),
            "passages": len(kept),
            "held_out": len(held_out),
            "parameters": sum(p.numel() for p in module.parameters()),
            "spec": spec.to_dict(),
        }
    )
    cache = episodes_file(files[0].parent, config, kept) if world.size == 1 else None
    material = Material.of(kept, seed=config.seed, cache=cache)
    emit({"event": "episodes", "count": len(material.episodes.kind)})
    held_material = Material.of(held_out, seed=config.seed)
    trainer = Trainer(
        builder.over(module, material),
        builder.sampler(material),
        builder.held_out(builder.over(module, held_material), held_material, world),
        world,
        emit,
        states=StateFiles(folder=request.out / "states", identity=_identity(request, config, kept), start=start),
    )
    best = trainer.run()
    del trainer
    module.eval().requires_grad_(False)
    folder = request.out / "checkpoint"
    if world.is_main:
        data = data_facts(request.data, config, kept)
        facts = {"config": config.to_dict(), "data": data, "held_out": best}
        _finish(folder, builder, module, held_out, facts, emit)
        _report(request, emit)
        if request.register and request.system == "doc2atom":
            from models.checkpoint import register_checkpoint

            register_checkpoint(folder, preset.name)
        emit({"event": "done", "checkpoint": str(folder), **best})
    return folder


def _finish(
    folder: Path,
    builder: Builder,
    module: nn.Module,
    held_out: Sequence[AnnotationRecord],
    facts: dict[str, Any],
    emit: Emit,
) -> None:
    """Fit the memory's gate and write the checkpoint; a baseline has no gate."""
    from models.baselines.checkpoint import BaselineMeta, save_baseline
    from models.checkpoint import CheckpointMeta, save_network
    from models.presets import load_preset
    from training.gate import fit_gate
    from training.library import Library

    name = load_preset(builder.config.model).name
    fingerprint = builder.base.fingerprint()
    if builder.system != "doc2atom":
        shape = module.config.to_dict() if builder.system == "d2l" else builder.spec.to_dict()
        meta = BaselineMeta(
            system=builder.system,
            preset=name,
            base_fingerprint=fingerprint,
            shape=shape,
            reads=builder.reads,
            training=facts,
        )
        save_baseline(folder, module, meta)
        return
    library = Library(builder.base, module, held_out)
    library.compile()
    gate, figures = fit_gate(library, seed=builder.config.seed)
    emit({"event": "gate", **figures, "threshold": gate.threshold})
    meta = CheckpointMeta(
        preset=name,
        spec=builder.spec,
        base_fingerprint=fingerprint,
        gate=vars(gate),
        training={**facts, "gate": figures},
    )
    save_network(folder, module, meta)


def _report(request: TrainRequest, emit: Emit) -> None:
    from training.report import write_report

    emit({"event": "report", **write_report(request.out)})


def memory_spec(config: TrainConfig) -> Any:
    """Return the memory's shape: that of preset and recipe, with the configuration's overrides."""
    from models.presets import MemorySpec, load_preset

    spec = load_preset(config.model).spec(config.recipe).to_dict()
    return MemorySpec.from_dict(_merged(spec, config.memory))


def load_data(data: Path, config: TrainConfig, emit: Emit) -> tuple[list[AnnotationRecord], list[Path]]:
    """Read the records of a folder or a file; make them first where the folder has raw sets.

    Returns:
        The records, and the files that they came from.
    """
    from training.records import read_records

    files = record_files(data, config)
    if not files and (data / "train").is_dir():
        from training.prepare import prepare

        emit({"event": "prepare", "out": str(data)})
        if not record_files(data / "records", config):
            prepare(data, data / "records")
        files = record_files(data / "records", config)
    files = files or [data / config.records]
    return [record for file in files for record in read_records(file)], files


def record_files(data: Path, config: TrainConfig) -> list[Path]:
    """Return the files of records: a file itself, the one that the configuration names, or all JSONL shards."""
    if data.is_file():
        return [data]
    if (data / config.records).is_file():
        return [data / config.records]
    return sorted(p for pattern in ("*.jsonl", "*.jsonl.gz") for p in data.glob(pattern))


def split_records(records: list, config: TrainConfig) -> tuple[list, list]:
    """Hold some passages out, those with answerable questions; the same ones for a seed."""
    order = list(range(len(records)))
    random.Random(config.seed).shuffle(order)
    usable = [i for i in order if any(q.gold_atom_ids for q in records[i].qa_pairs)]
    held = set(usable[: min(config.holdout_passages, len(usable) // 4)])
    return [records[i] for i in sorted(held)], [r for i, r in enumerate(records) if i not in held]


def check_enough(data: Path, held_out: Sequence[AnnotationRecord], kept: Sequence[AnnotationRecord]) -> None:
    """Raise DataError unless there is something to train on and something to evaluate on."""
    from training.records import DataError

    if len(held_out) < 2 or not any(q.gold_atom_ids for r in kept for q in r.qa_pairs):
        raise DataError(
            f"{data}: {len(held_out) + len(kept)} passages are too few: one in four with answerable questions is "
            "held out",
            hint="Train on at least 8 passages with answerable questions",
        )


def data_facts(data: Path, config: TrainConfig, records: Sequence[AnnotationRecord]) -> dict[str, Any]:
    """Return what a checkpoint says of its data, with the manifest where the records came with one."""
    facts = {
        "records": config.records,
        "passages": len(records),
        "questions": sum(len(r.qa_pairs) for r in records),
    }
    folder = data.parent if data.is_file() else data
    for manifest in (folder / "manifest.json", folder / "records" / "manifest.json"):
        if manifest.is_file():
            return {**facts, "manifest": json.loads(manifest.read_text("utf-8"))}
    return facts


def _identity(request: TrainRequest, config: TrainConfig, records: Sequence[AnnotationRecord]) -> str:
    """Name a run by all that its result depends on."""
    settings = {k: v for k, v in config.to_dict().items() if k not in _HARMLESS}
    text = repr((request.system, request.reads, sorted(settings.items()), records))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _merged(v, over[k]) if isinstance(v, dict) and k in over else over.get(k, v)
        for k, v in {**over, **base}.items()
    }


def main() -> None:
    """Parse the command line, train, and print events as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--recipe", choices=("paper", "d2a"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--system", default="doc2atom")
    parser.add_argument("--reads", help="what d2l or the reader reads: raw, atoms or document")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--resume", default="auto", metavar="auto|never|PATH")
    parser.add_argument("--tracker", choices=("tensorboard", "wandb", "trackio"))
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="override, e.g. memory.num_memory_layers=18"
    )
    args = parser.parse_args()
    overrides = {k: json.loads(v) for k, _, v in (s.partition("=") for s in args.set)}
    request = TrainRequest(
        config=args.config,
        recipe=args.recipe,
        data=args.data,
        out=args.out,
        system=args.system,
        reads=args.reads,
        device=args.device,
        base_path=args.base,
        resume=args.resume,
        tracker=args.tracker,
        overrides=overrides,
    )
    train(request, on_event=lambda e: print(json.dumps(e), file=sys.stdout, flush=True))


if __name__ == "__main__":
    main()
