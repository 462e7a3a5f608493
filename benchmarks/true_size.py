"""Train a base of true size with random weights for a few steps: memory, time of a step, and what a whole run takes.

    python -m benchmarks.true_size --model gemma|qwen [--recipe paper|d2a] [--steps N] [--longest] [--tiny]

One process does what each of `--gpus` processes does under the shipped configuration: its share of the global batch,
`micro_batch` samples at once, through the feature cache and the loop of `d2a train`. Every stage of the curriculum runs
`--steps` steps that count; then the held-out loss is asked for once, over the chunk of questions that falls to one
process. Documents are invented: 64 atoms of up to 96 tokens, 8 questions, answers of up to 128 tokens. Where the recipe
distils, the teacher reads the whole document, up to `--context-tokens`.

The schedule's hours are the stages' median steps times their lengths, and the evaluations; the exchange of gradients
among processes and the making of the cache are left out. What does not fit into memory is tried again at half the size,
and the result shows it. Progress goes to stderr, an event a line; a table and then one line of JSON go to stdout.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from benchmarks.synthetic import DocumentShape, NotAsked, documents
from models.base import FrozenBase, pick_device
from training.bench.efficiency.bases import TINY_SPEC, random_base
from training.build import Builder, Material
from training.config import TrainConfig, load_config, parse_overrides
from training.loop import Trainer, num_parts
from training.world import World

Figures = dict[str, Any]
T = TypeVar("T")
WARM_UP = 3  # steps before those that count
GIB = 2**30
EVALUATED = 128  # questions that one of eight processes evaluates of the held-out ones
TINY_SHAPE = DocumentShape(atoms=6, atom_tokens=12, questions=4, answer_tokens=8)
TINY_WORDS = 500


class Log:
    """Tell events on stderr, with the seconds since the start, and keep those of steps."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.steps: list[Figures] = []

    def __call__(self, event: Figures) -> None:
        """Take an event; that of a step comes when its figures have been read from the device."""
        event = {"at": time.perf_counter() - self.started, **event}
        if event["event"] == "step":
            self.steps.append(event)
        print(json.dumps({**event, "at": round(event["at"], 2)}), file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured: a base, one process's share of a configuration, and invented documents."""

    base: FrozenBase
    config: TrainConfig
    train: Material
    held_out: Material
    num_steps: int
    log: Log

    def measure(self) -> Figures:
        """Fill the cache, run every stage, evaluate once, and return all figures."""
        torch.manual_seed(self.config.seed)
        builder = self.builder(self.config)
        module = builder.module()
        found: Figures = {
            "base_parameters": sum(p.numel() for p in self.base.model.parameters()),
            "trained_parameters": sum(p.numel() for p in module.parameters()),
            "base_gib": round(sum(p.nbytes for p in self.base.model.parameters()) / GIB, 2),
        }
        self.log({"event": "built", **found})
        system, found["cache"] = self.cache(module)
        self.log({"event": "cached", **found["cache"]})
        found["stages"] = [self.stage(system, number) for number in range(len(self.config.stages))]
        found["evaluation"] = self.evaluation(module)
        self.log({"event": "evaluated", **found["evaluation"]})
        return found

    def builder(self, config: TrainConfig) -> Builder:
        """Return the builder of `d2a train` under some configuration."""
        spec = config.memory_spec()
        return Builder(system="doc2atom", reads="atoms", base=self.base, spec=spec, config=config, emit=self.log)

    def cache(self, module: nn.Module) -> tuple[nn.Module, Figures]:
        """Return the system over its frozen features, and what making them took."""

        def build(tokens: int) -> tuple[nn.Module, float]:
            config = replace(self.config, cache_batch_tokens=tokens)
            return timed(lambda: self.builder(config).over(module, self.train), self.base.device)

        reset_peak(self.base.device)
        limit = self.config.cache_batch_tokens
        tokens, (system, seconds) = fitting(build, limit, "cache_batch_tokens", self.log)
        features = system.features
        return system, {
            "gib": round(features.num_bytes / GIB, 3),
            "home": features.home,
            "seconds": round(seconds, 2),
            "batch_tokens": tokens,
            "peak_gib": peak_gib(self.base.device),
        }

    def stage(self, system: nn.Module, number: int) -> Figures:
        """Run one stage of the curriculum."""
        own = replace(self.config.stages[number], until_step=None, until_share=None)

        def run(micro_batch: int) -> Figures:
            steps = {"max_steps": WARM_UP + self.num_steps, "micro_batch": micro_batch}
            config = replace(self.config, stages=(own,), **steps)
            self.log.steps.clear()
            reset_peak(self.base.device)
            sampler = self.builder(config).sampler(self.train)
            Trainer(system, sampler, NotAsked(), World(self.base.device.type), self.log).run()
            seconds = np.diff([event["at"] for event in self.log.steps])[WARM_UP - 1 :]
            tokens = [event["tokens_per_s"] for event in self.log.steps[WARM_UP:]]
            return {
                "parts": num_parts(config, 1),
                "step_s_p50": round(float(np.percentile(seconds, 50)), 4),
                "step_s_p95": round(float(np.percentile(seconds, 95)), 4),
                "tokens_per_s": round(float(np.median(tokens))),
                "peak_gib": peak_gib(self.base.device),
            }

        found: Figures = {"stage": number + 1, "top_k": own.top_k}
        try:
            size, figures = fitting(run, self.config.micro_batch or self.config.global_batch, "micro_batch", self.log)
            found |= {"micro_batch": size, **figures}
        except torch.OutOfMemoryError:
            found |= {"micro_batch": 1, "step_s_p50": None}
        self.log({"event": "stage", **found})
        return found

    @torch.no_grad()
    def evaluation(self, module: nn.Module) -> Figures:
        """Ask the held-out questions once; their teacher, whom nobody asks there, is left out."""
        builder = self.builder(self.config.with_overrides({"loss.distill": 0.0}))
        module.eval()
        system = builder.over(module, self.held_out)
        held_out = builder.held_out(system, self.held_out, World(self.base.device.type))
        reset_peak(self.base.device)
        questions = sum(not q.is_irrelevant for r in self.held_out.records for q in r.qa_pairs)
        try:
            figures, seconds = timed(held_out.evaluate, self.base.device)
        except torch.OutOfMemoryError:
            return {"questions": questions, "out_of_memory": True, "seconds": None}
        peak = peak_gib(self.base.device)
        return {"questions": questions, "loss": figures["loss"], "seconds": round(seconds, 2), "peak_gib": peak}


def fitting(action: Callable[[int], T], size: int, name: str, log: Log) -> tuple[int, T]:
    """Return the largest of `size`, its half, and so on, that fits into memory, and what `action` gives there.

    Raises:
        OutOfMemoryError: Not even 1 fits.
    """
    while True:
        try:
            return size, action(size)
        except torch.OutOfMemoryError:
            log({"event": "out of memory", name: size})
            if size == 1:
                raise
        size //= 2
        gc.collect()  # a failed step's tensors hang in a cycle with its frames
        torch.cuda.empty_cache()


def timed(action: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return what `action` gives, and its seconds until the device is done."""
    start = time.perf_counter()
    found = action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return found, time.perf_counter() - start


def reset_peak(device: torch.device) -> None:
    """Begin to measure the peak of device memory anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """Return the peak of device memory, the base included; None on a CPU, where nothing counts it."""
    return round(torch.cuda.max_memory_allocated(device) / GIB, 2) if device.type == "cuda" else None


def share_of(config: TrainConfig, num_gpus: int) -> TrainConfig:
    """Return the configuration of one process's share of the global batch, told of step by step, never at its end."""
    return replace(
        config,
        global_batch=max(1, config.global_batch // num_gpus),
        batch_route=config.batch_route // num_gpus,
        max_epochs=10**6,
        max_minutes=None,
        log_every=1,
        eval_every=10**9,
    )


def stage_lengths(config: TrainConfig) -> list[int]:
    """Return the optimiser steps of each stage of a whole run."""
    ends = []
    for stage in config.stages[:-1]:
        end = stage.until_step if stage.until_step is not None else round(stage.until_share * config.max_steps)
        ends.append(min(end, config.max_steps))
    return [end - begin for begin, end in zip([0, *ends], [*ends, config.max_steps], strict=True)]


def schedule(config: TrainConfig, found: Figures) -> Figures:
    """Extrapolate to a whole run: hours of the stages, and of the evaluations."""
    lengths, seconds = stage_lengths(config), [stage["step_s_p50"] for stage in found["stages"]]
    steps = None if None in seconds else sum(n * s for n, s in zip(lengths, seconds, strict=True)) / 3600
    once = found["evaluation"]["seconds"]
    count = -(-config.max_steps // config.eval_every)
    return {
        "steps": config.max_steps,
        "global_batch": config.global_batch,
        "stage_steps": lengths,
        "hours_steps": None if steps is None else round(steps, 2),
        "evaluations": count,
        "hours_evaluations": None if once is None else round(count * once / 3600, 2),
    }


def show(found: Figures) -> None:
    """Print the table, then everything as one line of JSON."""
    for key in ("machine", "torch", "model", "base_parameters", "trained_parameters", "base_gib", "cache"):
        print(f"{key:<20} {found[key]}")
    columns = ("stage", "top_k", "micro_batch", "parts", "step_s_p50", "step_s_p95", "tokens_per_s", "peak_gib")
    print("".join(f"{name:>13}" for name in columns))
    for stage in found["stages"]:
        print("".join(f"{stage.get(name) if stage.get(name) is not None else '-':>13}" for name in columns))
    for key in ("evaluation", "schedule"):
        print(f"{key:<20} {found[key]}")
    print(json.dumps(found), flush=True)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("gemma", "qwen"), required=True)
    parser.add_argument("--recipe", choices=("paper", "d2a"), default="paper")
    parser.add_argument("--steps", type=int, default=20, help=f"steps that count, after {WARM_UP} that do not")
    parser.add_argument("--gpus", type=int, default=8, help="processes of the whole run, of which one is measured")
    parser.add_argument("--documents", type=int, default=32, help="documents to train on")
    parser.add_argument("--context-tokens", type=int, help="of the document that the teacher reads")
    parser.add_argument("--longest", action="store_true", help="all atoms and answers at their limit: the worst case")
    parser.add_argument("--tokenizer", type=Path, help="folder of one to use instead of a token a word")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="override, e.g. micro_batch=2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="the same over a tiny base, for a CPU")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    options = parse(arguments)
    overrides = parse_overrides(options.set)
    if options.context_tokens:
        overrides["max_context_tokens"] = options.context_tokens
    shape, held_out = replace(DocumentShape(), longest=options.longest), EVALUATED // 7
    vocabulary = {}
    if options.tiny:
        overrides = {**{f"memory.{name}": n for name, n in TINY_SPEC.items()}, **overrides}
        shape, held_out, vocabulary = replace(TINY_SHAPE, longest=options.longest), 4, {"num_words": TINY_WORDS}
    torch.set_float32_matmul_precision("high")
    config = load_config(options.model, recipe=options.recipe).with_overrides(overrides)
    log = Log()
    base = random_base(options.model, pick_device(options.device), tokenizer=options.tokenizer, tiny=options.tiny)
    bench = Bench(
        base=base,
        config=share_of(config, options.gpus),
        train=Material.of(documents(options.documents, shape, **vocabulary), seed=config.seed),
        held_out=Material.of(documents(held_out, shape, seed=1, **vocabulary), seed=config.seed),
        num_steps=options.steps,
        log=log,
    )
    found = bench.measure()
    cuda = base.device.type == "cuda"
    show(
        {
            "machine": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, CPU",
            "torch": torch.__version__,
            "model": f"{options.model}{', tiny' if options.tiny else ''}, random weights",
            "dtype": str(base.dtype).removeprefix("torch."),
            "attention": base.attention,
            "recipe": options.recipe,
            "processes": options.gpus,
            "samples_a_process": bench.config.global_batch,
            "documents": {"count": options.documents, **vars(shape)},
            "max_context_tokens": config.max_context_tokens,
            **found,
            "schedule": schedule(config, found),
        }
    )


if __name__ == "__main__":
    main()
