"""Train the same with one process and with several: the efficiency of more, and whether the loss curve stays.

    python -m benchmarks.scaling --out one.json
    torchrun --nproc_per_node 2 -m benchmarks.scaling --out two.json
    python -m benchmarks.scaling --compare one.json two.json

Each start trains `--steps` steps from the same weights with `--batch` samples a process, and again with `--batch`
samples over all processes; for one process these are the same run. Efficiency is the steps a second of several
processes, each with its own batch, over those of one. With the same global batch the samples are the same, and so
should the losses be. Steps are timed from the first logged one on; a logged loss is the mean over `--log-every` steps.

Without `--base` the weights are random at SmolLM2's size, without `--data` the documents are invented. On CPUs:
`ACCELERATE_USE_CPU=1 torchrun … -m benchmarks.scaling --tiny --device cpu`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.synthetic import DocumentShape, NotAsked, documents
from benchmarks.training_speed import first_records
from models.atoms import AnnotationRecord
from models.base import FrozenBase, load_base
from models.presets import load_preset
from training.bench.efficiency.bases import TINY_SPEC, random_base
from training.build import Builder, Material
from training.config import TrainConfig, load_config
from training.curriculum import LOSSES
from training.loop import Trainer, num_parts
from training.records import read_records
from training.state import copied
from training.world import World

Figures = dict[str, Any]
MODEL = "smollm2"
# About what a passage of SQuAD has.
PASSAGE = DocumentShape(atoms=6, atom_tokens=40, questions=5, answer_tokens=8)
TINY_PASSAGE = DocumentShape(atoms=4, atom_tokens=8, questions=3, answer_tokens=3)
SAME = ("model", "recipe", "machine", "torch", "passages", "batch", "steps", "log_every")


@dataclass(kw_only=True)
class Log:
    """Tells events on stderr, in the first process alone, and keeps those of steps with the time they came."""

    is_main: bool
    steps: list[tuple[float, Figures]] = field(default_factory=list)

    def __call__(self, event: Figures) -> None:
        """Take an event; that of a step comes when its figures have been read from the device."""
        if event["event"] == "step":
            self.steps.append((time.perf_counter(), event))
        if self.is_main:
            print(json.dumps(event), file=sys.stderr, flush=True)


class Scaling:
    """One system over one cache, trained again and again from the same weights."""

    def __init__(self, base: FrozenBase, config: TrainConfig, records: list[AnnotationRecord], world: World) -> None:
        self.config, self.world, self.log = config, world, Log(is_main=world.is_main)
        self.material = Material.of(records, seed=config.seed)
        self.builder = Builder(
            system="doc2atom", reads="atoms", base=base, spec=config.memory_spec(), config=config, emit=self.log
        )
        torch.manual_seed(config.seed)
        self.module = self.builder.module()
        self.initial = copied(self.module.state_dict())
        self.system = self.builder.over(self.module, self.material)

    def run(self, global_batch: int) -> Figures:
        """Train with so many samples a step; questions that only route follow in proportion."""
        route = round(self.config.batch_route * global_batch / self.config.global_batch)
        config = replace(self.config, global_batch=global_batch, batch_route=route)
        self.log({"event": "run", "global_batch": global_batch, "processes": self.world.size})
        self.log.steps.clear()
        self.module.load_state_dict(self.initial)
        sampler = replace(self.builder, config=config).sampler(self.material)
        self.world.wait()
        Trainer(self.system, sampler, NotAsked(), self.world, self.log).run()
        (begin, first), (end, last) = self.log.steps[0], self.log.steps[-1]
        names = ("step", *LOSSES, "top1")
        return {
            "global_batch": global_batch,
            "parts": num_parts(config, self.world.size),
            "steps_per_s": round((last["step"] - first["step"]) / (end - begin), 4),
            "losses": [{n: event[n] for n in names if n in event} for _, event in self.log.steps],
        }


def measure(options: argparse.Namespace) -> Figures | None:
    """Run both comparisons; None in all processes but the first."""
    world = World(options.device)  # chooses this process's device, before anything is put there
    torch.set_float32_matmul_precision("high")
    config = load_config(MODEL, recipe=options.recipe)
    config = replace(
        config,
        memory=TINY_SPEC if options.tiny else {},
        micro_batch=options.micro_batch,
        max_steps=options.steps,
        max_epochs=10**6,
        max_minutes=None,
        log_every=options.log_every,
        eval_every=10**9,
    )
    if options.base is None:
        base = random_base(MODEL, world.device, tiny=options.tiny)
    else:
        base = load_base(load_preset(MODEL), base_path=options.base, device=world.device)
    records = passages(options, config, base)
    scaling = Scaling(base, config, records, world)
    alone = scaling.run(options.batch)
    each = alone if world.size == 1 else scaling.run(options.batch * world.size)
    is_main, cuda = world.is_main, base.device.type == "cuda"
    world.wait()
    world.close()
    if not is_main:
        return None
    return {
        "processes": world.size,
        "machine": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, CPU",
        "torch": torch.__version__,
        "model": f"{MODEL}, {'tiny, ' * options.tiny}{'random weights' if options.base is None else 'trained weights'}",
        "dtype": str(base.dtype).removeprefix("torch."),
        "recipe": config.recipe,
        "passages": len(records),
        "batch": options.batch,
        "steps": options.steps,
        "log_every": options.log_every,
        "same_per_process": each,
        "same_global": alone,
    }


def passages(options: argparse.Namespace, config: TrainConfig, base: FrozenBase) -> list[AnnotationRecord]:
    """Return the first records of a folder, or invented ones."""
    if options.data is not None:
        return first_records(read_records(options.data / config.records), options.questions)
    shape, words = (TINY_PASSAGE, 500) if options.tiny else (PASSAGE, 20_000)
    return documents(options.questions // shape.questions, shape, num_words=words)


def compare(one: Figures, several: Figures) -> Figures:
    """Return the efficiency of several processes and how far their losses are from those of one.

    Raises:
        ValueError: The two were not measured alike.
    """
    if other := [name for name in SAME if one[name] != several[name]]:
        raise ValueError(f"the runs differ in {', '.join(other)}")
    if one["processes"] != 1 or several["processes"] < 2:
        raise ValueError("name the run of one process first, then that of several")
    pairs = zip(one["same_global"]["losses"], several["same_global"]["losses"], strict=True)
    gaps = [(abs(a[name] - b[name]), name, a["step"]) for a, b in pairs for name in a.keys() - {"step"}]
    largest, name, step = max(gaps)
    rate = {key: several[key]["steps_per_s"] / one[key]["steps_per_s"] for key in ("same_per_process", "same_global")}
    return {
        "processes": several["processes"],
        "efficiency": round(rate["same_per_process"], 3),
        "steps_per_s": [one["same_per_process"]["steps_per_s"], several["same_per_process"]["steps_per_s"]],
        "speed_up_same_global": round(rate["same_global"], 3),
        "largest_loss_difference": round(largest, 4),
        "in": name,
        "at_step": step,
    }


def show(found: Figures) -> None:
    """Print steps a second and the losses."""
    for name in ("machine", "torch", "model", "dtype", "recipe", "passages", "processes"):
        print(f"{name:<12} {found[name]}")
    for kind in ("same_per_process", "same_global"):
        run = found[kind]
        print(
            f"\n{kind}: global batch {run['global_batch']}, {run['parts']} parts, {run['steps_per_s']} steps a second"
        )
        for losses in run["losses"]:
            print("  ".join(f"{name} {value}" for name, value in losses.items()))
    sys.stdout.flush()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("ONE", "SEVERAL"), help="print how two results relate"
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON too")
    parser.add_argument("--recipe", choices=("paper", "d2a"), help="the configuration's own if not named")
    parser.add_argument("--base", type=Path, help="folder of the base's weights; random ones if not named")
    parser.add_argument("--data", type=Path, help="folder with the configuration's records; invented if not named")
    parser.add_argument("--questions", type=int, default=8000, help="of the first passages")
    parser.add_argument("--batch", type=int, default=128, help="samples a step: of each process, and then of all")
    parser.add_argument(
        "--micro-batch", type=int, help="samples that a process takes at once; its whole share if not named"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="a tiny base, for a CPU")
    options = parser.parse_args(arguments)
    if options.steps < 2 * options.log_every:
        parser.error("--steps must be at least twice --log-every: the first interval warms up")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Measure and print, or compare two results."""
    options = parse(arguments)
    if options.compare:
        one, several = (json.loads(path.read_text("utf-8")) for path in options.compare)
        print(json.dumps(compare(one, several)), flush=True)
        return
    found = measure(options)
    if found is None:
        return
    show(found)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
