"""What is measured: a base with a memory, trained or with random weights, and the machine that it runs on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from models.base import FrozenBase, free_gpu_memory, load_base, pick_device
from models.checkpoint import CheckpointMeta, find_checkpoint, load_network, read_meta
from models.engine import Engine
from models.errors import CheckpointError
from models.network import MemoryNetwork
from models.presets import MemorySpec, Preset, load_preset
from models.router import AnswerabilityGate
from training.bench.efficiency.bases import TINY_SPEC, random_base
from training.bench.efficiency.request import EfficiencyRequest
from training.features.store import free_host_bytes

GIB = 2**30
PACKAGES = ("torch", "transformers", "bm25s", "numpy", "lancedb")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A loaded base with a memory, and whether the memory's weights are trained; they cost the same."""

    engine: Engine
    is_trained: bool

    @property
    def base(self) -> FrozenBase:
        """The frozen base."""
        return self.engine.base

    @property
    def spec(self) -> MemorySpec:
        """The memory's shape."""
        return self.engine.spec

    def facts(self) -> dict[str, Any]:
        """Return what a reader must know of it."""
        base, network = self.base, self.engine.network
        return {
            "recipe": self.spec.recipe,
            "memory": "trained" if self.is_trained else "random weights",
            "dtype": str(base.dtype).removeprefix("torch."),
            "attention": base.attention,
            "base_parameters": sum(p.numel() for p in base.model.parameters()),
            "base_gib": round(sum(p.nbytes for p in base.model.parameters()) / GIB, 3),
            "memory_parameters": sum(p.numel() for p in network.parameters()),
            "memory_gib": round(sum(p.nbytes for p in network.parameters()) / GIB, 3),
            "spec": self.spec.to_dict(),
        }


def make_subject(request: EfficiencyRequest) -> Subject:
    """Load or make the base and memory that a request names.

    Raises:
        ConfigError, BaseModelError, CheckpointError: One of them is unknown, missing or broken.
    """
    preset, device = load_preset(request.model), pick_device(request.device)
    torch.manual_seed(request.seed)
    if request.size == "trained":
        return _trained(request, preset)
    base = random_base(request.model, device, tiny=request.size == "tiny", seed=request.seed)
    spec = preset.spec(request.recipe)
    if request.size == "tiny":
        spec = replace(spec, **TINY_SPEC, kv=replace(spec.kv, num_slots=min(spec.kv.num_slots, 24)))
    return Subject(engine=_untrained(base, preset, spec), is_trained=False)


def machine(device: torch.device) -> dict[str, Any]:
    """Return hardware and versions."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"{platform.machine()} CPU",
        "device_memory_gib": round(torch.cuda.get_device_properties(device).total_memory / GIB, 1) if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": versions,
    }


def free_bytes(device: torch.device) -> int:
    """Return the memory that a call may still take."""
    return free_gpu_memory(device) if device.type == "cuda" else free_host_bytes()


def _trained(request: EfficiencyRequest, preset: Preset) -> Subject:
    base = load_base(preset, base_path=request.base_path, device=request.device)
    spec = preset.spec(request.recipe)
    try:
        folder = find_checkpoint(preset, request.checkpoint)
    except CheckpointError:
        folder = None
    if folder is None or read_meta(folder).spec.recipe != spec.recipe:
        return Subject(engine=_untrained(base, preset, spec), is_trained=False)
    network, meta = load_network(folder, base)
    return Subject(engine=Engine(base, network, meta), is_trained=True)


def _untrained(base: FrozenBase, preset: Preset, spec: MemorySpec) -> Engine:
    with torch.device(base.device):
        network = MemoryNetwork(spec, base)
    network.to(base.device).requires_grad_(False).eval()
    gate = asdict(AnswerabilityGate())
    return Engine(base, network, CheckpointMeta(preset=preset.name, spec=spec, base_fingerprint="", gate=gate))
