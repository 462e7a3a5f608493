"""A composed micro-LoRA as a PEFT folder: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path

from models.base import FrozenBase
from models.engine import RoutedRows
from models.errors import ConfigError
from models.injection import ComposedAdapter
from models.presets import MemorySpec


def single_atom() -> RoutedRows:
    """Return the routing of one atom on its own, with weight 1."""
    return RoutedRows(score=[0.0], rows=[0], weight=[1.0], log_weight=[0.0], top_lexical=0.0)


def write_peft(folder: Path, adapter: ComposedAdapter, base: FrozenBase, spec: MemorySpec, *, base_name: str) -> int:
    """Write the micro-LoRA of `adapter`, gate and scale folded in, so that PEFT's own scale is 1.

    Returns:
        The rank: r, or K * r where factors were concatenated.

    Raises:
        ConfigError: The folder exists and is not empty.
    """
    import torch
    from safetensors.torch import save_file

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder", hint="Name a new folder")
    paths = {id(module): name for name, module in base.model.named_modules()}
    tensors: dict[str, torch.Tensor] = {}
    rank = 0
    for site, (a_BRI, b_BOR) in adapter.lora.items():
        name = f"base_model.model.{paths[id(base.module(site))]}"
        tensors[f"{name}.lora_A.weight"] = a_BRI[0].float().cpu().contiguous()
        tensors[f"{name}.lora_B.weight"] = b_BOR[0].float().cpu().contiguous()
        rank = a_BRI.shape[1]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name.removeprefix("wheel:"),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": list(spec.target_modules),
        "layers_to_transform": sorted({s.layer for s in adapter.lora}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return rank
