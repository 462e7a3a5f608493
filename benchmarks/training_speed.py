"""Print how much faster training is with the frozen-feature cache, and how far from what no cache can save.

    python benchmarks/training_speed.py [--model smollm2] [--data FOLDER | --sentences N] [--questions N] [--json]

One process, the same batches and starting weights, distillation on. "Uncached" runs the base's lower layers and the
teacher anew for the rows of each step, from token ids that are ready; "cached" reads them. "Upper stack alone" is the
forward and backward pass of the memory layers and the head over the same targets, with states, adapter and teacher at
hand: what is left when everything else is free. "Adapter, forward" is the way from pooled states to composed adapters,
where the routed atoms pass through the memory layers for their slots. Drawing a batch, with its search for hard
negatives, is timed apart, since it reads the whole library. Without `--data` the questions are about invented stations.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.atoms import AnnotationRecord, Atom, Question
from models.base import FrozenBase, load_base
from models.injection import ComposedAdapter, LayerPrefix
from models.network import MemoryNetwork
from models.presets import load_preset
from models.router import atom_metadata
from training.batches import Batch, Sampler
from training.build import Material
from training.config import TrainConfig, load_config
from training.curriculum import Phase
from training.features import FeatureCache, LiveFeatures, build_cache
from training.losses import distill_topk_loss, lm_loss
from training.records import read_records
from training.step import TrainStep
from training.systems.answers import answer_logits

WARM_UP = 1


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median seconds of one step of each kind, and of making the cache."""

    uncached_s: float
    cached_s: float
    adapter_s: float
    upper_s: float
    draw_s: float
    build_s: float


def station(number: int) -> tuple[str, str, str]:
    """Return a sentence that no other number gives, a question and its answer."""
    year = str(1800 + number * 7 % 200)
    place = f"Station {number}"
    return f"{place} was opened in {year} and has {2 + number % 9} platforms.", f"When was {place} opened?", year


def invented_records(num_questions: int, *, num_sentences: int = 4) -> list[AnnotationRecord]:
    """Return passages of some sentences, with one atom and one question a sentence."""
    records = []
    for begin in range(0, num_questions, num_sentences):
        facts = [station(n) for n in range(begin, min(begin + num_sentences, num_questions))]
        starts = [0, *accumulate(len(f[0]) + 1 for f in facts)]
        atoms = [
            Atom(
                atom_id=f"atom_{i}",
                semantic_type="fact_claim",
                content=sentence,
                source_span=sentence,
                retrieval_text=sentence,
                char_start=start,
                char_end=start + len(sentence),
            )
            for i, ((sentence, _, _), start) in enumerate(zip(facts, starts, strict=False))
        ]
        questions = [
            Question(question=question, answers=(answer,), gold_atom_ids=(f"atom_{i}",))
            for i, (_, question, answer) in enumerate(facts)
        ]
        context = " ".join(f[0] for f in facts)
        records.append(AnnotationRecord(context=context, atoms=tuple(atoms), qa_pairs=tuple(questions)))
    return records


def first_records(records: Sequence[AnnotationRecord], num_questions: int | None) -> list[AnnotationRecord]:
    """Return the first passages that have `num_questions` questions together, or all."""
    total = accumulate(len(r.qa_pairs) for r in records)
    return [r for r, count in zip(records, total, strict=True) if num_questions is None or count <= num_questions]


def seconds_each(prepare: Callable[[Any], Callable[[], object]], items: Sequence[Any], device: torch.device) -> float:
    """Return the median time of what `prepare` returns, over all items but the first."""
    seconds = []
    for item in items:
        action = prepare(item)
        _wait(device)
        start = time.perf_counter()
        action()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def whole_step(step: TrainStep, phase: Phase) -> Callable[[Batch], Callable[[], None]]:
    """Prepare whole optimiser steps: losses, backward pass, clipping and update."""
    network, config = step.network, step.config
    weights = {name: weight for name, weight in phase.weights.items() if name != "rerank"}  # there is no reranker here
    optimiser = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, fused=step.base.device.type == "cuda")

    def run(batch: Batch) -> None:
        sums = step(batch, phase)
        optimiser.zero_grad(set_to_none=True)
        sum(weight * sums[name][0] / sums[name][1].clamp(min=1) for name, weight in weights.items()).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        optimiser.step()

    return lambda batch: partial(run, batch)


@torch.no_grad()
def composed(step: TrainStep, phase: Phase, batch: Batch) -> ComposedAdapter:
    """Return the adapter of a batch's language-model questions."""
    rows, routed = slice(0, batch.num_lm), step.route(batch, top_k=phase.top_k)
    return step.adapter(routed, routed.routing.index_BK[rows], routed.routing.log_weight_BK[rows])


def upper_stack(step: TrainStep, phase: Phase, batch: Batch) -> Callable[[], None]:
    """Prepare forward and backward pass of the upper layers and the head over one batch, with all else at hand."""
    adapter, rows = leaves(composed(step, phase, batch)), slice(0, batch.num_lm)
    row_B = step.features.target_rows(batch.question_B[rows], batch.refuse_B[rows])
    targets, teacher = step.features.targets(row_B), step.features.teacher(row_B)
    base, start = step.base, step.base.num_layers - step.network.spec.num_memory_layers

    def run() -> None:
        answer = answer_logits(base, targets, adapter, first_layer=start)
        lm, num_tokens = lm_loss(answer.logits_TV, answer.target_T)
        student_TV = answer.logits_TV[teacher.taught_A]
        distill, num_taught = distill_topk_loss(student_TV, teacher.best, temperature=step.config.distill_temperature)
        (lm / num_tokens + distill / num_taught.clamp(min=1)).backward()

    # The composition loss has its second pass, over the gold atoms alone.
    return run if "composition" not in phase.weights else lambda: (run(), run())


def leaves(adapter: ComposedAdapter) -> ComposedAdapter:
    """Return an adapter whose gradients end in it."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(True)

    return ComposedAdapter(
        lora={site: (leaf(a), leaf(b)) for site, (a, b) in adapter.lora.items()},
        prefix={
            layer: LayerPrefix(key_BHSF=leaf(p.key_BHSF), value_BHSF=leaf(p.value_BHSF), bias_BS=leaf(p.bias_BS))
            for layer, p in adapter.prefix.items()
        },
    )


def measure(
    base: FrozenBase, config: TrainConfig, records: Sequence[AnnotationRecord], num_steps: int, folder: Path | None
) -> tuple[Timing, FeatureCache]:
    """Time all kinds of step over the same batches."""
    spec = load_preset(config.model).spec(config.recipe)
    metadata_NM = atom_metadata([a for r in records for a in r.atoms]).to(base.device)
    material = Material.of(records, seed=config.seed)
    start = time.perf_counter()
    cache = build_cache(base, spec, config, **vars(material.texts), home=config.feature_home, folder=folder)
    _wait(base.device)
    build_s = time.perf_counter() - start

    def step_with(features: FeatureCache | LiveFeatures) -> TrainStep:
        torch.manual_seed(config.seed)
        return TrainStep(base, MemoryNetwork(spec, base).to(base.device), features, metadata_NM, config)

    cached, live = step_with(cache), step_with(LiveFeatures(base, spec, config, material.texts))
    phase = config.phase_at(config.max_steps, 1.0)
    sampler, batches = Sampler(material.episodes, config, base.device), []

    def draw(number: int) -> Callable[[], None]:
        return lambda: batches.append(sampler.collate(sampler.plan(number), cached.nearest))

    draw_s = seconds_each(draw, range(num_steps + WARM_UP), base.device)
    return Timing(
        uncached_s=seconds_each(whole_step(live, phase), batches, base.device),
        cached_s=seconds_each(whole_step(cached, phase), batches, base.device),
        upper_s=seconds_each(partial(upper_stack, cached, phase), batches, base.device),
        adapter_s=seconds_each(lambda batch: partial(composed, cached, phase, batch), batches, base.device),
        draw_s=draw_s,
        build_s=build_s,
    ), cache


def show(timing: Timing) -> None:
    """Print the table and what it comes to."""
    rows = (
        ("uncached step", timing.uncached_s),
        ("cached step", timing.cached_s),
        ("upper stack alone", timing.upper_s),
        ("adapter, forward", timing.adapter_s),
        ("drawing a batch", timing.draw_s),
    )
    print(f"{'':<20} {'ms':>10} {'a second':>10}")
    for name, seconds in rows:
        print(f"{name:<20} {1000 * seconds:>10.1f} {1 / seconds:>10.2f}")
    print(f"\ncached against uncached: {timing.uncached_s / timing.cached_s:.1f} times the steps a second")
    print(f"of a cached step the upper stack alone takes {100 * timing.upper_s / timing.cached_s:.0f} %")
    print(f"the most that any cache could give: {timing.uncached_s / timing.upper_s:.1f} times")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="shipped training configuration, or a TOML file")
    parser.add_argument("--recipe", help="paper or d2a; the configuration's own if not named")
    parser.add_argument("--base", type=Path, help="folder of the base's weights")
    parser.add_argument("--data", type=Path, help="folder with the configuration's records")
    parser.add_argument("--questions", type=int, help="take the first passages with this many questions")
    parser.add_argument(
        "--sentences", type=int, default=4, help="of an invented passage; the paper's documents have up to 64"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of each kind whose median counts")
    parser.add_argument("--batch", type=int, help="samples a step; questions that only route follow in proportion")
    parser.add_argument("--home", default="auto", help="auto, device, pinned or disk")
    parser.add_argument("--folder", type=Path, help="where the cache's file is kept; a throw-away folder if not named")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="write JSON instead of the table")
    options = parser.parse_args()

    torch.set_float32_matmul_precision("high")
    config = load_config(options.model, recipe=options.recipe)
    base = load_base(load_preset(config.model), base_path=options.base, device=options.device)
    batch = options.batch or (config.global_batch if base.device.type == "cuda" else 2)
    config = config.with_overrides(
        {
            "feature_home": options.home,
            "global_batch": batch,
            "batch_route": round(config.batch_route * batch / config.global_batch),
            "loss.distill": config.loss.distill or 1.0,
        }
    )
    if options.data is None:
        records = invented_records(options.questions or 1000, num_sentences=options.sentences)
    else:
        records = first_records(read_records(options.data / config.records), options.questions)
    with tempfile.TemporaryDirectory(prefix="d2a-features-", ignore_cleanup_errors=True) as scratch:
        folder = options.folder or (Path(scratch) if options.home == "disk" else None)
        timing, cache = measure(base, config, records, options.steps, folder)
        report(base, config, records, timing, cache, as_json=options.json)


def report(
    base: FrozenBase,
    config: TrainConfig,
    records: Sequence[AnnotationRecord],
    timing: Timing,
    cache: FeatureCache,
    *,
    as_json: bool,
) -> None:
    """Print machine, configuration and sizes, then the figures."""
    cuda = base.device.type == "cuda"
    setting = {
        "machine": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "base": f"{config.model}, {str(base.dtype).removeprefix('torch.')}",
        "recipe": config.recipe,
        "batch": f"{config.global_batch} samples, {config.batch_route} questions that only route",
        "teacher": f"top {config.distill_top_k} at temperature {config.distill_temperature:g}",
        "passages": len(records),
        "questions": len(cache.question_pooled_QD),
        "atoms": len(cache.atom_pooled_ND),
        "cache": f"{cache.num_bytes / 2**20:,.0f} MiB, home {cache.home}, made in {timing.build_s:.0f} s",
    }
    if as_json:
        print(json.dumps({**setting, **vars(timing)}, indent=2))
        return
    for name, value in setting.items():
        print(f"{name:<20} {value}")
    print()
    show(timing)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
