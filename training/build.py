"""From records to what the loop takes: episodes, frozen features and one of the trained systems.

`doc2atom` is the memory; `d2l`, `reader` and `blind` are what it is measured against. All see the same batches. The
systems themselves are `training.step` and `training.systems`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.atoms import AnnotationRecord
from models.base import FrozenBase
from models.baselines.d2l import HyperLora
from models.errors import ConfigError
from models.lexical import FORMAT_VERSION as LEXICAL_VERSION
from models.network import MemoryNetwork
from models.presets import MemorySpec
from models.prompts import REFUSAL
from models.reranker import CrossEncoder, find_reranker
from models.router import atom_metadata
from models.static_lora import StaticLora
from training.batches import Sampler
from training.config import READS, TrainConfig
from training.episodes import FORMAT_VERSION as EPISODES_VERSION
from training.episodes import Episodes, build_episodes
from training.features import FeatureCache, LiveFeatures, Texts, build_cache
from training.held_out import HeldOut
from training.losses import input_bases
from training.rerank import rerank_scores
from training.sources import fingerprint
from training.step import TrainStep
from training.systems.d2l import TEACHER_TEMPERATURE, TEACHER_TOKENS, D2LSystem
from training.systems.documents import Documents
from training.systems.prompts import BarePrompts, TextPrompts
from training.systems.reader import StaticSystem
from training.world import World

Emit = Callable[[dict[str, Any]], None]
BASIS_TEXTS = 64
RERANK_WEIGHT = 1.0  # alpha_r, as published; without a reranker it stays 0


@dataclass(frozen=True, kw_only=True)
class Material:
    """Records as training needs them, before any model has seen them."""

    records: Sequence[AnnotationRecord]
    episodes: Episodes

    @classmethod
    def of(cls, records: Sequence[AnnotationRecord], *, seed: int, cache: Path | None = None) -> Material:
        """Build the episodes, or find them where an earlier run left them.

        Args:
            cache: File for the episodes; None keeps none.
        """
        if cache is None:
            return cls(records=records, episodes=build_episodes(records, seed=seed))
        if not cache.is_file():
            build_episodes(records, seed=seed).save(cache)
        return cls(records=records, episodes=Episodes.load(cache))  # scores are kept in half precision

    @cached_property
    def texts(self) -> Texts:
        """What is tokenised: one target a question, the shortest answer or the refusal.

        Answerable questions without a reference are never asked of the language model.
        """
        pairs = [(r, q) for r in self.records for q in r.qa_pairs]
        return Texts(
            atoms=[a.content for r in self.records for a in r.atoms],
            questions=[q.question for _, q in pairs],
            answers=[min(q.answers, key=len) if q.answers else REFUSAL for _, q in pairs],
            contexts=[r.context for r, _ in pairs],
        )

    def spoken(self, *, teacher: bool) -> Texts:
        """Return the texts, without the contexts where nothing is distilled."""
        return self.texts if teacher else replace(self.texts, contexts=None)


def episodes_file(folder: Path, config: TrainConfig, records: Sequence[AnnotationRecord]) -> Path:
    """Return where the episodes of exactly these records, seed and word matching are kept."""
    name = fingerprint(LEXICAL_VERSION, EPISODES_VERSION, config.seed, *records)
    return folder / f"{config.records}.{name[:12]}.episodes.npz"


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Makes systems of one kind over one base.

    Args:
        reads: Of `READS[system]`.
        features_folder: Where frozen features go that fit no memory; None has no room for them.
        share_features: Keep them there in any case, so that of several processes one computes.
    """

    system: str
    reads: str
    base: FrozenBase
    spec: MemorySpec
    config: TrainConfig
    emit: Emit
    features_folder: Path | None = None
    share_features: bool = False

    def module(self) -> nn.Module:
        """Return what is trained and saved, untrained."""
        if self.system == "doc2atom":
            network = MemoryNetwork(self.spec, self.base).to(self.base.device)
            if self._reranker is not None:
                nn.init.constant_(network.router.rerank, RERANK_WEIGHT)
            return network
        if self.system == "d2l":
            return HyperLora.over(self.base)
        return StaticLora(self.spec, self.base)

    def over(self, module: nn.Module, material: Material) -> nn.Module:
        """Return a system that trains `module` on some records."""
        make = {"doc2atom": self._memory, "d2l": self._d2l}.get(self.system, self._static)
        return make(module, material)

    def sampler(self, material: Material) -> Sampler:
        """Return the sampler, with the cross-encoder's scores where there is one and the recipe uses it."""
        rerank = None
        if self._reranker is not None:
            limit = self.spec.router.max_rerank_tokens
            rerank = rerank_scores(self._reranker, material.records, material.episodes, max_tokens=limit)
        return Sampler(material.episodes, self.config, self.base.device, rerank=rerank)

    def held_out(self, system: nn.Module, material: Material, world: World) -> HeldOut:
        """Return the evaluation of a system over held-out records."""
        articles = None
        if self.system != "blind":
            articles = torch.tensor(Documents.of(material.records).article_of_atom, device=self.base.device)
        router = system if isinstance(system, TrainStep) else None
        return HeldOut(system=system, sampler=self.sampler(material), article_N=articles, router=router, world=world)

    def _memory(self, network: nn.Module, material: Material) -> TrainStep:
        features = self._features(self.spec, material)
        metadata = atom_metadata([a for r in material.records for a in r.atoms]).to(self.base.device)
        basis = None
        if self.config.protect_form == "null_space" and "protect" in self.config.active_losses:
            rows = torch.arange(min(BASIS_TEXTS, len(material.texts.questions)), device=self.base.device)
            targets = features.targets(rows)
            sites, size = self.base.sites(self.spec), self.config.protect_size
            basis = input_bases(self.base, sites, targets.state_BLD, targets.mask_BL, size=size)
        return TrainStep(self.base, network, features, metadata, self.config, basis=basis)

    def _d2l(self, hyper: nn.Module, material: Material) -> D2LSystem:
        # Its LoRA stands in every layer, so nothing but the teacher could be kept.
        spec = replace(self.spec, num_memory_layers=self.base.num_layers)
        config = replace(self.config, distill_top_k=TEACHER_TOKENS, distill_temperature=TEACHER_TEMPERATURE)
        features = LiveFeatures(self.base, spec, config, material.spoken(teacher=self.distils))
        return D2LSystem(self.base, hyper, features, self._documents(material, form=self.reads))

    def _static(self, lora: nn.Module, material: Material) -> StaticSystem:
        if self.system == "blind":
            no_atoms = replace(self.spec.kv, source="none")  # it never reads one
            spec = replace(self.spec, num_memory_layers=self.base.num_layers - lora.first_layer, kv=no_atoms)
            return StaticSystem(self.base, lora, BarePrompts(self._features(spec, material)))
        prompts = TextPrompts(
            self.base,
            self.config,
            material.texts,
            self._documents(material, form="raw"),
            first_layer=lora.first_layer,
            evidence=self.reads,
        )
        return StaticSystem(self.base, lora, prompts)

    def _documents(self, material: Material, *, form: str) -> Documents:
        """Return the passages as long as the teacher reads them."""
        documents = Documents.of(material.records, form=form)
        return documents.cut(self.base.tokenizer, self.config.max_context_tokens)

    @cached_property
    def _reranker(self) -> CrossEncoder | None:
        """The cross-encoder, where the recipe wants one and it is on this machine."""
        if self.system != "doc2atom" or "rerank" not in self.config.active_losses:
            return None
        name = self.spec.router.reranker
        reranker = find_reranker(name, self.base.device)
        self.emit({"event": "reranker", "name": name, "state": "on" if reranker else "off: not on this machine"})
        return reranker

    @property
    def distils(self) -> bool:
        """Whether a teacher reads the documents."""
        return "distill" in self.config.active_losses and self.system in ("doc2atom", "d2l")

    @property
    def caches(self) -> bool:
        """Whether frozen features are kept: not where what enters the first trained layer changes with the batch."""
        return self.config.feature_home != "live" and self.system in ("doc2atom", "blind")

    def _features(self, spec: MemorySpec, material: Material) -> FeatureCache | LiveFeatures:
        texts = material.spoken(teacher=self.distils)
        if self.config.feature_home == "live":
            return LiveFeatures(self.base, spec, self.config, texts)
        started = time.monotonic()
        return build_cache(
            self.base,
            spec,
            self.config,
            atoms=texts.atoms,
            questions=texts.questions,
            answers=texts.answers,
            contexts=texts.contexts,
            home=self.config.feature_home,
            folder=self.features_folder,
            share=self.share_features,
            on_progress=lambda part: self.emit(
                {"event": "cache", "done": part, "seconds": round(time.monotonic() - started, 1)}
            ),
        )


def check_system(system: str, reads: str | None) -> str:
    """Return what a system reads: the given choice, or its first one.

    Raises:
        ConfigError: An unknown system, or one that cannot read that.
    """
    if system not in READS:
        raise ConfigError(f"train: system must be one of {', '.join(READS)}, got {system!r}")
    if reads is not None and reads not in READS[system]:
        allowed = " or ".join(filter(None, READS[system])) or "nothing"
        raise ConfigError(f"train: system {system} reads {allowed}, got {reads!r}")
    return reads if reads is not None else READS[system][0]
