"""The single-device training loop: schedule, optimiser, held-out loss, early stopping. Events go to a callback."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.errors import ConfigError
from training.batches import Sampler
from training.config import TrainConfig
from training.episodes import ANSWERABLE
from training.step import TrainStep

Event = dict[str, Any]
LOG_EVERY = 50
HELD_OUT_QUESTIONS = 768
HELD_OUT_CHUNK = 128


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Linear warm-up, then a cosine from the peak to 2 % of it over the run."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return config.learning_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def train_loop(
    train: TrainStep,
    sampler: Sampler,
    held_out: TrainStep,
    held_out_sampler: Sampler,
    config: TrainConfig,
    on_event: Callable[[Event], None],
) -> dict[str, float]:
    """Train until steps, minutes or patience run out, and leave the best weights in the network.

    Returns:
        The held-out figures of those weights.

    Raises:
        ConfigError: The run diverged before its first evaluation.
    """
    network = train.network
    optimiser = torch.optim.AdamW(
        network.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=train.base.device.type == "cuda",
    )
    generator = torch.Generator(train.base.device).manual_seed(config.seed)
    best, best_weights, strikes = {"loss": math.inf}, None, 0
    started, step, progress = time.monotonic(), 0, 0.0
    totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=train.base.device))
    while progress < 1.0:
        rate = learning_rate(config, step, progress)
        for group in optimiser.param_groups:
            group["lr"] = rate
        losses = train.losses(
            sampler.draw(config, generator, train.nearest), config, progress=progress, generator=generator
        )
        means = {name: total / count.clamp(min=1) for name, (total, count) in losses.items()}
        loss = sum(getattr(config.loss, name) * mean for name, mean in means.items())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        optimiser.step()
        step += 1
        for name, mean in means.items():
            totals[name] += mean.detach()
        elapsed = time.monotonic() - started
        progress = max(step / config.max_steps, elapsed / (60 * config.max_minutes))
        if step % LOG_EVERY == 0:
            logged = {name: round(float(total) / LOG_EVERY, 4) for name, total in totals.items()}
            on_event(
                {
                    "event": "step",
                    "step": step,
                    "seconds": round(elapsed, 1),
                    "lr": rate,
                    "top_k": config.top_k_at(progress),
                    **logged,
                }
            )
            totals.clear()
        if step % config.eval_every == 0 or progress >= 1.0:
            figures = evaluate_held_out(held_out, held_out_sampler)
            on_event({"event": "eval", "step": step, "seconds": round(elapsed, 1), **figures})
            if figures["loss"] < best["loss"]:
                best, strikes = {**figures, "step": step}, 0
                best_weights = {k: v.detach().to("cpu", copy=True) for k, v in network.state_dict().items()}
            else:
                strikes += 1
            if strikes >= config.patience:
                break
    if best_weights is None:
        raise ConfigError(f"train: the held-out loss is not finite after {step} steps", hint="Lower learning_rate")
    network.load_state_dict(best_weights)
    return best


@torch.no_grad()
def evaluate_held_out(step: TrainStep, sampler: Sampler) -> dict[str, float]:
    """Language-model loss (nats a token) and routing on held-out passages, always the same questions.

    Returns:
        `loss` (mean of the two that follow), `lm_passage` at K = 3, `lm_library` at K = 8, `lm_gold`, and the top-1
        and top-K hit rates of both kinds of bank.
    """
    rows = sampler.rows[ANSWERABLE][:HELD_OUT_QUESTIONS]
    figures: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(rows), HELD_OUT_CHUNK):
        episode_B = rows[start : start + HELD_OUT_CHUNK]
        for name, library, top_k in (("passage", False, 3), ("library", True, 8)):
            flag = torch.full_like(episode_B, library, dtype=torch.bool)
            batch = sampler.collate(episode_B, flag, torch.zeros_like(flag), step.nearest, num_lm=len(episode_B))
            routed = step.route(batch, top_k=top_k)
            index_BK, log_weight_BK = routed.routing.index_BK, routed.routing.log_weight_BK
            figures[f"lm_{name}"].append(_mean_nats(step, routed, batch.question_B, index_BK, log_weight_BK))
            hit_BK = batch.gold_BC.gather(1, index_BK)
            figures[f"top1_{name}"].append(float(hit_BK[:, 0].float().mean()))
            figures[f"top{top_k}_{name}"].append(float(hit_BK.any(-1).float().mean()))
        gold, index_BK = batch.gold_BC.float().topk(3, dim=-1)
        log_weight_BK = (gold / gold.sum(-1, keepdim=True).clamp(min=1)).log()
        figures["lm_gold"].append(_mean_nats(step, routed, batch.question_B, index_BK, log_weight_BK))
    means = {name: round(sum(values) / len(values), 4) for name, values in figures.items()}
    return {"loss": (means["lm_passage"] + means["lm_library"]) / 2, **means}


def _mean_nats(step: TrainStep, routed: Any, question_B: Tensor, index_BK: Tensor, log_weight_BK: Tensor) -> float:
    adapter = step.adapter(routed, index_BK, log_weight_BK)
    logits, target = step.answer_logits(adapter, step.cache.target_rows(question_B, torch.zeros_like(question_B)))
    return float(torch.nn.functional.cross_entropy(logits.float(), target))
