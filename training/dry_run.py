"""What a run would be, without running it: the configuration and data checked, sizes counted, time estimated.

The base is built without its weights, so that its shape is known and nothing is loaded. Memory of weights, optimiser
and features is counted; that of activations and the time are estimates, and say on what they rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training.config import TrainConfig

if TYPE_CHECKING:
    from models.base import FrozenBase
    from models.presets import MemorySpec
    from training.batches import Sampler
    from training.features import LiveFeatures
    from training.run import TrainRequest

Emit = Callable[[dict[str, Any]], None]
# Of what a large matrix product reaches, attention, gathers and small products leave about this share.
SUSTAINED = 0.3
PROBE_SECONDS, PROBE_SIZE = 0.3, {"cuda": 4096}


def dry_run(request: TrainRequest, *, on_event: Emit = lambda event: None) -> dict[str, Any]:
    """Check a request as `train` would, and describe the run.

    Of raw sets the records are made, for they say how long the run is; the run then finds them.

    Raises:
        ConfigError, DataError, BaseModelError: As `train` does, before any work.
    """
    import torch

    from training.batches import Sampler
    from training.build import Builder, Material, check_system
    from training.features import LiveFeatures
    from training.loop import num_parts
    from training.sources import check_enough, load_data, split_records
    from training.state import find_state
    from training.world import World

    config = request.resolved()
    reads = check_system(request.system, request.reads)
    spec, world = config.memory_spec(), World(request.device)
    base = shape_of_base(request, config)  # first, for it may be missing, and making records takes minutes
    records, files = load_data(request.data, config, on_event, out=request.out, annotation=request.annotation)
    held_out, kept = split_records(records, config)
    check_enough(request.data, held_out, kept)
    # The reranker is frozen and no part of what is counted; with its loss on it would be loaded.
    light = config.with_overrides({"loss.rerank": 0.0})
    builder = Builder(system=request.system, reads=reads, base=base, spec=spec, config=light, emit=on_event)
    with torch.device("meta"):
        module = builder.module()
    material = Material.of(kept, seed=config.seed)
    sampler = Sampler(material.episodes, config, "cpu")
    parts = num_parts(config, world.size)
    steps = planned_steps(config, sampler)
    live = LiveFeatures(base, spec, config, material.spoken(teacher=builder.distils))
    tokens = tokens_per_part(live, sampler, parts * world.size)
    trained = sum(p.numel() for p in module.parameters())
    return {
        "model": config.model,
        "recipe": config.recipe,
        "system": f"{request.system} {reads}".strip(),
        "device": world.device,
        "processes": world.size,
        "resume": str(find_state(request.out / "states", request.resume) or "from the start"),
        "data": {
            "files": len(files),
            "passages": len(kept),
            "held_out": len(held_out),
            "atoms": sum(len(r.atoms) for r in kept),
            "questions": sum(len(r.qa_pairs) for r in kept),
            "samples": len(sampler.samples_SQ),
        },
        "schedule": {
            "steps": steps,
            "max_minutes": config.max_minutes,
            "epochs": float(sampler.epochs(steps)),
            "stages": [f"K {s.top_k} until {s.until_step or s.until_share or 'the end'}" for s in config.stages],
            "warnings": schedule_warnings(config, steps),
            "parts_per_step": parts,
            "tokens_per_part": tokens,
        },
        "memory": memory_bytes(live, trained, tokens, world.device, caches=builder.caches),
        "time": estimated_time(base, spec, trained, tokens * parts, steps, world.device),
    }


def shape_of_base(request: TrainRequest, config: TrainConfig) -> FrozenBase:
    """Return the base with its tokenizer and without its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from models.base import FrozenBase, pick_dtype, quiet_transformers
    from models.errors import BaseModelError
    from models.presets import load_preset
    from models.weights import resolve_base

    quiet_transformers()
    preset = load_preset(config.model)
    source = resolve_base(preset, request.base_path)
    try:
        shape, tokenizer = AutoConfig.from_pretrained(source), AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise BaseModelError(
            f"cannot read the base model {source}: {reason}", hint=f"Fetch it with: {preset.install}"
        ) from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=pick_dtype(_device_of(request)))
    return FrozenBase(model, tokenizer, attention="eager")


def planned_steps(config: TrainConfig, sampler: Sampler) -> int:
    """Return the optimiser steps after which the horizon or the epochs end the run; minutes may end it before."""
    by_epochs = -(-config.max_epochs * len(sampler.samples_SQ) // sampler.samples_per_step)
    return min(config.max_steps, by_epochs)


def schedule_warnings(config: TrainConfig, steps: int) -> list[str]:
    """Return what the schedule promises and the length of the run does not keep."""
    found = [
        f"stage {number + 2} begins at step {stage.until_step}, after the end"
        for number, stage in enumerate(config.stages[:-1])
        if stage.until_step is not None and stage.until_step >= steps
    ]
    if config.warmup_steps >= steps:
        found.append(f"the warm-up takes {config.warmup_steps} steps, the run {steps}")
    return found


def tokens_per_part(live: LiveFeatures, sampler: Sampler, num_parts: int) -> int:
    """Return the prompt and answer tokens of the first part of the first step, padding included."""
    plan = sampler.plan(0).part(0, num_parts)
    questions = sampler.host.question[plan.episode_B[: plan.num_lm]]
    lengths = [int(live.tokens.target_length_R[q]) for q in questions]
    return max(lengths, default=0) * len(lengths)


def memory_bytes(live: LiveFeatures, trained: int, tokens: int, device: str, *, caches: bool) -> dict[str, int]:
    """Return bytes a process: weights, training state, features, and an estimate for activations."""
    import torch

    from training.features.cache import layout
    from training.features.store import num_bytes

    base, spec = live.base, live.spec
    weights = sum(p.numel() * p.element_size() for p in base.model.parameters())
    size = base.model.config
    # A layer keeps its input, the attention's and the MLP's; the logits are kept in float32 twice.
    a_layer = tokens * (10 * base.hidden_size + 3 * size.intermediate_size) * base.dtype.itemsize
    answers = tokens // 3
    found = {
        "base_bytes": weights,
        "trained_bytes": trained * 4 * 4,  # float32: weights, gradients and two moments
        "features_bytes": num_bytes(layout(live)) if caches else 0,
        "activations_estimate_bytes": a_layer * spec.num_memory_layers + 2 * 4 * answers * size.vocab_size,
    }
    found["sum_bytes"] = sum(found.values())
    if device == "cuda":
        found["device_bytes"] = torch.cuda.get_device_properties(0).total_memory
    return found


def estimated_time(
    base: FrozenBase, spec: MemorySpec, trained: int, tokens: int, steps: int, device: str
) -> dict[str, Any]:
    """Estimate the loop's time from the operations of a step and this device's speed at large products."""
    layers = [p.numel() for layer in base.layers[-spec.num_memory_layers :] for p in layer.parameters()]
    head = base.model.config.vocab_size * base.hidden_size // 3
    # Forward, and backward through the states; what is trained also gives its own gradients.
    operations = tokens * 4 * (sum(layers) + head) + 6 * trained * 64
    speed = measured_speed(device, base)
    seconds = operations / (speed * SUSTAINED)
    return {
        "operations_per_step": float(operations),
        "measured_tflops": speed / 1e12,
        "assumed_share": SUSTAINED,
        "step_seconds_estimate": seconds,
        "hours_estimate": seconds * steps / 3600,
    }


def measured_speed(device: str, base: FrozenBase) -> float:
    """Return operations a second of a large matrix product in the base's type, measured for a moment."""
    import torch

    size = PROBE_SIZE.get(device, 512)
    x = torch.ones(size, size, device=device, dtype=base.dtype)
    x @ x
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < PROBE_SECONDS:
        (x @ x)[0, 0].item()
        count += 1
    return count * 2 * size**3 / (time.perf_counter() - started)


def _device_of(request: TrainRequest) -> str:
    from models.base import pick_device

    return pick_device(request.device)
