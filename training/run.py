"""`train`: from records to a registered checkpoint, in one call, by one process or several.

python -m training.run --config smollm2 --data build/data --out runs/first
torchrun --nproc_per_node 8 -m training.run --config gemma --data records --out runs/gemma
accelerate launch --config_file training/configs/zero2.yaml -m training.run --config qwen …
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.config import TrainConfig, load_config, parse_overrides
from training.corpus import Annotation

if TYPE_CHECKING:
    from torch import nn

    from models.atoms import AnnotationRecord
    from models.network import MemoryNetwork
    from training.build import Builder, Material
    from training.world import World

Event = dict[str, Any]
Emit = Callable[[Event], None]
# These change how a run is carried out, not what comes out: a state goes on under others.
_HARMLESS = frozenset(
    {
        "micro_batch",
        "max_minutes",
        "log_every",
        "save_every",
        "keep_states",
        "cache_batch_tokens",
        "cache_atom_layers",
        "feature_home",
    }
)


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What to train.

    Args:
        config: Name of a shipped configuration, or the path of a TOML file.
        data: Folder with the records, or with raw sets from which they are made; or one file of records. None
            takes the paper's source sets from the hub.
        out: Folder of the run: configuration, events, training states, report, checkpoint; records made of raw sets.
        recipe: `paper` or `d2a`; None takes the configuration's.
        system: `doc2atom`, `d2l`, `reader` or `blind`; `reads` is what it reads, None for its default.
        overrides: Dotted keys of the configuration and their values.
        resume: `auto` goes on from the newest training state of `out`, `never` starts anew; or the path of one.
        tracker: `tensorboard`, `wandb` or `trackio`, beside the events.
        register: Make the finished checkpoint the one that `ask` and `ingest` use.
        annotation: How records are made of raw sets.
    """

    config: str
    data: Path | None
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
    annotation: Annotation = field(default_factory=Annotation)

    def resolved(self) -> TrainConfig:
        """Return the configuration with every override applied.

        From a document that is read whole no answer can be withheld.
        """
        named = {"model": self.model, "max_steps": self.max_steps, "max_minutes": self.max_minutes, "seed": self.seed}
        given = {k: v for k, v in named.items() if v is not None}
        config = load_config(self.config, recipe=self.recipe, system=self.system)
        config = config.with_overrides({**given, **self.overrides})
        reads_whole = self.system == "d2l" or self.reads == "document"
        return replace(config, share_withheld=0.0) if reads_whole else config


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
    from training.build import Material, episodes_file
    from training.loop import StateFiles, Trainer
    from training.sources import check_enough, data_facts, load_data, split_records

    with world.main_first():
        records, files = load_data(request.data, config, emit, out=request.out, annotation=request.annotation)
        held_out, kept = split_records(records, config)
        check_enough(request.data, held_out, kept)
        cache = episodes_file(files[0].parent, config, kept)
        material = Material.of(kept, seed=config.seed, cache=cache)
    held_material = Material.of(held_out, seed=config.seed)
    builder = _builder(request, config, world, emit)
    module = builder.module()
    _tell_start(request, builder, module, material, held_material, world)
    trainer = Trainer(
        builder.over(module, material),
        builder.sampler(material),
        builder.held_out(builder.over(module, held_material), held_material, world),
        world,
        emit,
        states=StateFiles(folder=request.out / "states", identity=_identity(builder, kept), start=start),
    )
    best = trainer.run()
    del trainer
    if world.is_main:
        data = data_facts(files, config, kept)
        _finish(request, builder, module, held_material, {"config": config.to_dict(), "data": data, "held_out": best})
    return request.out / "checkpoint"


def _builder(request: TrainRequest, config: TrainConfig, world: World, emit: Emit) -> Builder:
    """Load the base; what is trained over it comes from the builder."""
    import torch

    from models.base import load_base
    from models.presets import load_preset
    from training.build import Builder, check_system

    spec = config.memory_spec()
    torch.manual_seed(config.seed)
    torch.set_float32_matmul_precision("high")
    return Builder(
        system=request.system,
        reads=check_system(request.system, request.reads),
        base=load_base(load_preset(config.model), base_path=request.base_path, device=world.device),
        spec=spec,
        config=config,
        emit=emit,
        features_folder=request.out / "features",
        share_features=world.size > 1,
    )


def _tell_start(
    request: TrainRequest, builder: Builder, module: nn.Module, material: Material, held_out: Material, world: World
) -> None:
    from training.loop import num_parts

    builder.emit(
        {
            "event": "start",
            "system": request.system,
            "device": str(builder.base.device),
            "dtype": str(builder.base.dtype),
            "processes": world.size,
            "parts": num_parts(builder.config, world.size),
            "passages": len(material.records),
            "held_out": len(held_out.records),
            "episodes": len(material.episodes.kind),
            "parameters": sum(p.numel() for p in module.parameters()),
            "spec": builder.spec.to_dict(),
        }
    )


def _finish(
    request: TrainRequest,
    builder: Builder,
    module: nn.Module,
    held_out: Material,
    facts: dict[str, Any],
) -> None:
    """Write and register the checkpoint, and the report."""
    from models.checkpoint import register_checkpoint
    from models.presets import load_preset
    from training.report import write_report

    config, emit = builder.config, builder.emit
    folder, preset = request.out / "checkpoint", load_preset(config.model).name
    module.eval().requires_grad_(False)
    save = _save_memory if request.system == "doc2atom" else _save_baseline
    save(folder, builder, module, preset, held_out.records, facts)
    if request.register and request.system == "doc2atom":
        register_checkpoint(folder, preset)
    emit({"event": "report", **write_report(request.out)})
    emit({"event": "done", "checkpoint": str(folder), **facts["held_out"]})


def _save_memory(
    folder: Path,
    builder: Builder,
    network: MemoryNetwork,
    preset: str,
    held_out: Sequence[AnnotationRecord],
    facts: dict[str, Any],
) -> None:
    """Calibrate the memory on the held-out passages and write it."""
    from models.checkpoint import CheckpointMeta, save_network
    from training.calibration import calibrate
    from training.library import Library

    library = Library(builder.base, network, held_out)
    library.compile()
    gate, figures = calibrate(library, seed=builder.config.seed)
    builder.emit({"event": "gate", **figures, "threshold": gate.threshold})
    meta = CheckpointMeta(
        preset=preset,
        spec=builder.spec,
        base_fingerprint=builder.base.fingerprint(),
        gate=vars(gate),
        training={**facts, "gate": figures},
    )
    save_network(folder, network, meta)


def _save_baseline(
    folder: Path,
    builder: Builder,
    module: nn.Module,
    preset: str,
    held_out: Sequence[AnnotationRecord],
    facts: dict[str, Any],
) -> None:
    """Write a baseline, which has no gate to fit."""
    from models.baselines.checkpoint import BaselineMeta, save_baseline

    shape = module.config if builder.system == "d2l" else builder.spec
    meta = BaselineMeta(
        system=builder.system,
        preset=preset,
        base_fingerprint=builder.base.fingerprint(),
        shape=shape.to_dict(),
        reads=builder.reads,
        training=facts,
    )
    save_baseline(folder, module, meta)


def _identity(builder: Builder, records: Sequence[AnnotationRecord]) -> str:
    """Name a run by all that its result depends on."""
    from training.sources import fingerprint

    settings = {k: v for k, v in builder.config.to_dict().items() if k not in _HARMLESS}
    parts = (builder.system, builder.reads, builder.base.fingerprint(), sorted(settings.items()))
    return fingerprint(*parts, *records)[:16]


def main() -> None:
    """Parse the command line, train, and print events as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="smollm2")
    parser.add_argument("--recipe", choices=("paper", "d2a"))
    parser.add_argument("--data", type=Path, help="default: the paper's source sets, from the hub")
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
        overrides=parse_overrides(args.set),
    )
    train(request, on_event=lambda e: print(json.dumps(e), file=sys.stdout, flush=True))


if __name__ == "__main__":
    main()
