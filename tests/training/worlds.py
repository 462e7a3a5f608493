"""A tiny base with a memory over some records, ready for a training step."""

import functools
from dataclasses import replace

import torch

from models.base import FrozenBase
from models.network import MemoryNetwork
from models.presets import MemorySpec
from models.router import atom_metadata
from tests.models.tiny import tiny_base, tiny_network, tiny_spec
from training.batches import Sampler
from training.config import TrainConfig
from training.curriculum import LOSSES
from training.episodes import build_episodes
from training.features import FeatureCache, build_cache
from training.library import Library
from training.step import TrainStep

SPECS = {
    "d2a": tiny_spec("d2a"),
    "d2a with one LoRA": tiny_spec("d2a", lora="static"),
    "paper": tiny_spec("paper"),
    "paper with latent micro-KV": tiny_spec("paper", kv={"source": "latent"}),
}
CONFIG = TrainConfig(global_batch=6, batch_route=18, share_sibling=0.34, share_absent=0.17)
base_of = functools.cache(tiny_base)


def losses_of(recipe: str) -> tuple[str, ...]:
    """Return the losses that a memory of `SPECS` can have; two shape LoRAs that atoms do not share."""
    own = SPECS[recipe].lora == "atom"
    return tuple(name for name in LOSSES if own or name not in ("sparse", "protect"))


def cache_of(
    base: FrozenBase, spec: MemorySpec, records: list, *, teacher: bool = False, **config: int
) -> FeatureCache:
    """Return the frozen features of some records."""
    questions = [(r, q) for r in records for q in r.qa_pairs]
    return build_cache(
        base,
        spec,
        TrainConfig(**config),
        atoms=[a.content for r in records for a in r.atoms],
        questions=[q.question for _, q in questions],
        answers=[q.answers[0] if q.answers else "unanswerable" for _, q in questions],
        contexts=[r.context for r, _ in questions] if teacher else None,
    )


def step_of(
    base: FrozenBase, network: MemoryNetwork, records: list, config: TrainConfig = CONFIG, *, teacher: bool = False
) -> tuple[TrainStep, Sampler]:
    """Return a training step and its sampler over some records."""
    metadata = atom_metadata([a for r in records for a in r.atoms])
    step = TrainStep(base, network, cache_of(base, network.spec, records, teacher=teacher), metadata, config)
    return step, Sampler(build_episodes(records), config, base.device)


def world(
    family: str, recipe: str, records: list, config: TrainConfig = CONFIG, *, teacher: bool = False
) -> tuple[TrainStep, Sampler]:
    """Return a step over a seeded random memory; `recipe` names one of `SPECS`."""
    base = base_of(family)
    return step_of(base, tiny_network(base, SPECS[recipe]).train(), records, config, teacher=teacher)


def over(step: TrainStep, network: MemoryNetwork, **config: object) -> TrainStep:
    """Return a step over another memory, on the same features."""
    return TrainStep(step.base, network, step.features, step.metadata_NM, replace(step.config, **config))


def articles_of(records: list) -> torch.Tensor:
    """Return the number of the article that each atom is from."""
    titles = [r.title or str(i) for i, r in enumerate(records)]
    return torch.tensor([titles.index(t) for t, r in zip(titles, records, strict=True) for _ in r.atoms])


def library_over(base: FrozenBase, spec: MemorySpec, records: list) -> Library:
    """Return a compiled library of some records over a seeded random memory."""
    library = Library(base, tiny_network(base, spec).requires_grad_(False), records)
    library.compile()
    return library
