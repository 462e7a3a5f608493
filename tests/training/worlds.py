"""A tiny base with a memory over some records, ready for a training step."""

import functools

from models.base import FrozenBase
from models.network import MemoryNetwork
from models.presets import MemorySpec
from models.router import atom_metadata
from tests.models.tiny import tiny_base, tiny_network, tiny_spec
from training.batches import Sampler
from training.config import TrainConfig
from training.episodes import build_episodes
from training.features import FeatureCache, build_cache
from training.library import Library
from training.step import TrainStep

SPECS = {
    "d2a": tiny_spec("d2a"),
    "paper": tiny_spec("paper"),
    "paper with latent micro-KV": tiny_spec("paper", kv={"source": "latent"}),
}
base_of = functools.cache(tiny_base)


def cache_of(base: FrozenBase, spec: MemorySpec, records: list, **config: int) -> FeatureCache:
    """Return the frozen features of some records."""
    questions = [q for r in records for q in r.qa_pairs]
    return build_cache(
        base,
        spec,
        TrainConfig(**config),
        atoms=[a.content for r in records for a in r.atoms],
        questions=[q.question for q in questions],
        answers=[q.answers[0] if q.answers else "unanswerable" for q in questions],
    )


def step_of(base: FrozenBase, network: MemoryNetwork, records: list) -> tuple[TrainStep, Sampler]:
    """Return a training step and its sampler over some records."""
    metadata = atom_metadata([a for r in records for a in r.atoms])
    step = TrainStep(base, network, cache_of(base, network.spec, records), metadata)
    return step, Sampler(build_episodes(records), base.device)


def world(family: str, recipe: str, records: list) -> tuple[TrainStep, Sampler]:
    """Return a step over a seeded random memory; `recipe` names one of `SPECS`."""
    base = base_of(family)
    return step_of(base, tiny_network(base, SPECS[recipe]).train(), records)


def library_over(base: FrozenBase, spec: MemorySpec, records: list) -> Library:
    """Return a compiled library of some records over a seeded random memory."""
    library = Library(base, tiny_network(base, spec).requires_grad_(False), records)
    library.compile()
    return library
