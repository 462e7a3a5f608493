"""Convert the official release of Doc-to-LoRA to a baseline folder, once and explicitly.

    python -m models.baselines.release pytorch_model.bin --model gemma --out FOLDER

The release is a pickle, which `release_pickle` reads in another process; this one sees tensors and JSON alone. Here
are the names of its tensors and what of its configuration `HyperLora` can follow; any other is refused.
Source: the released code of Doc-to-LoRA, whose tensors' names these are. Its evaluation cuts documents
into chunks of 8,192 tokens. As all baselines on disk the weights are rounded to bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.baselines.release_pickle import FACTS, TENSORS, check_present
from models.errors import CheckpointError, D2AError

if TYPE_CHECKING:
    from torch import Tensor

    from models.base import FrozenBase
    from models.baselines.d2l import D2LConfig

MAX_CHUNK_TOKENS = 8192
HEAD_DIM = 128  # a constant of the released code, which no tensor tells
_COMPILED = "_orig_mod."
_PERCEIVER = "aggregator.perceiver."
_BLOCK = {
    "input_latents_layernorm": "query_norm",
    "input_context_layernorm": "context_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "post_attention_layernorm": "attended_norm",
    "pre_ff_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
    "post_ff_layernorm": "out_norm",
}
# Public training splits of the sets that it was trained on, besides web text: contexts and questions.
_TRAINED_ON = {"squad": (18_896, 87_599), "ropes": (1_412, 10_924), "drop": (5_565, 77_409)}


def convert_release(path: Path, folder: Path, base: FrozenBase, *, preset: str) -> None:
    """Write the release as a baseline that `load_baseline` reads.

    Args:
        path: `pytorch_model.bin` of the release for this base.
        folder: Of the baseline.
        preset: Name of the base's preset.

    Raises:
        CheckpointError: The pickle is missing, wants to run code, or holds another system or another base's weights.
    """
    from models.baselines.checkpoint import BaselineMeta, save_baseline
    from models.baselines.d2l import HyperLora

    tensors, facts = _extracted(path)
    config = _config(tensors, facts, path)
    hyper = HyperLora.over(base, config)
    try:
        hyper.load_state_dict(_renamed(tensors, config, base.num_layers))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} does not fit the base of {preset}: {str(error).splitlines()[-1].strip()}",
            hint=f"It was made for {facts.get('base_model_name_or_path')}",
        ) from error
    training = {"data": {"manifest": _manifest()}, "release": facts}
    meta = BaselineMeta(
        system="d2l",
        preset=preset,
        base_fingerprint=base.fingerprint(),
        shape=config.to_dict(),
        reads="raw",
        training=training,
    )
    save_baseline(folder, hyper, meta)


def _extracted(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors.torch import load_file

    check_present(path)
    with tempfile.TemporaryDirectory() as scratch:
        _extract_elsewhere(path, Path(scratch))
        tensors = load_file(Path(scratch) / TENSORS)
        facts = json.loads((Path(scratch) / FACTS).read_text("utf-8"))
    return {name.removeprefix(_COMPILED): tensor for name, tensor in tensors.items()}, facts


def _extract_elsewhere(path: Path, folder: Path) -> None:
    """Run `release_pickle` in another process."""
    command = [sys.executable, "-m", "models.baselines.release_pickle", str(path), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _reported(done.stderr, path)


def _reported(said: str, path: Path) -> CheckpointError:
    last = (said.strip().splitlines() or ["no word of why"])[-1]
    try:
        return CheckpointError(**json.loads(last))
    except (ValueError, TypeError):
        return CheckpointError(f"{path} could not be read: {last}", hint="Download it again")


def _config(tensors: Mapping[str, Tensor], facts: Mapping[str, Any], path: Path) -> D2LConfig:
    """Take the shape from the tensors, and refuse what the hypernetwork here does not have."""
    from models.baselines.d2l import D2LConfig

    described = facts.get("hypernet_config")
    if not isinstance(described, Mapping) or f"{_PERCEIVER}encoder.latents_q" not in tensors:
        raise CheckpointError(f"{path} is no release of Doc-to-LoRA", hint="Pass its pytorch_model.bin")
    lora, aggregator = described["lora_config"], described["aggregator_config"]
    num_latents, width = tensors[f"{_PERCEIVER}encoder.latents_q"].shape
    [target] = lora["target_modules"] if len(lora["target_modules"]) == 1 else [None]
    query, key = (tensors[f"{_PERCEIVER}encoder.layers.0.self_attn.{name}_proj.weight"] for name in "qk")
    config = D2LConfig(
        width=width,
        num_latents=num_latents,
        num_encoder_blocks=aggregator["num_blocks"],
        num_heads=len(query) // HEAD_DIM,
        num_kv_heads=len(key) // HEAD_DIM,
        head_dim=HEAD_DIM,
        rank=lora["r"],
        max_chunk_tokens=MAX_CHUNK_TOKENS,
        target_module=target or "",
        as_released=True,
    )
    needed = {
        "one target module": target is not None,
        f"lora_alpha = {config.scale:.2f}": abs(lora["lora_alpha"] - config.scale) < 0.01,
        "no self-attention between latents": not aggregator["num_self_attn_per_block"],
        "blocks of their own weights": not aggregator["shared_weights"],
        "one block before the head": described.get("num_pre_head_layers") == 1,
        "per_layer_processing": described.get("per_layer_processing") is True,
        "per_rank_gen": described.get("per_rank_gen") is True,
        "use_bias": described.get("use_bias", True) is True,
        "per_layer_activations": str(facts["ctx_encoder_args"]["ctx_encoder_type"]).lower() == "per_layer_activations",
    }
    if missing := [name for name, is_met in needed.items() if not is_met]:
        raise CheckpointError(f"{path} has another shape than is implemented here: it lacks {', '.join(missing)}")
    return config


def _renamed(tensors: Mapping[str, Tensor], config: D2LConfig, num_layers: int) -> dict[str, Tensor]:
    """Bring the tensors of the release under the names of `HyperLora`; each of them has to have one.

    Its head's norms are one for all layers, its biases have dimensions of size 1 for what they are shared over.
    """
    import torch

    rest = dict(tensors)
    take = rest.pop
    found = {
        f"project.{name}.weight": take(f"{_PERCEIVER}modality_projection.{name}_proj.weight")
        for name in ("gate", "up", "down")
    }
    found["perceiver.latents_QD"] = take(f"{_PERCEIVER}encoder.latents_q")
    found["perceiver.queries_QD"] = take(f"{_PERCEIVER}decoder.latents_q")
    blocks = {f"encoder.layers.{i}": f"encoder.{i}" for i in range(config.num_encoder_blocks)}
    for theirs, ours in {**blocks, "decoder.layers.0": "decoder"}.items():
        for part, name in _BLOCK.items():
            found[f"perceiver.{ours}.{name}.weight"] = take(f"{_PERCEIVER}{theirs}.{part}.weight")
    for part in ("encoder", "decoder"):
        found[f"perceiver.{part}_norm.weight"] = take(f"{_PERCEIVER}{part}.layernorm.weight")
    mlp = "layers.0.layers."
    for place, name in (("1", "up"), ("3", "down")):
        found[f"heads.{name}_{'LDE' if name == 'up' else 'LED'}"] = take(f"{mlp}{place}.weight")
        bias = take(f"{mlp}{place}.bias").reshape(num_layers, -1)
        found[f"heads.{name}_bias_{'LE' if name == 'up' else 'LD'}"] = bias
    for kind, name in (("weight", "norms_2LD"), ("bias", "shifts_2LD")):
        both = torch.stack([take(f"{mlp}{place}.{kind}") for place in "04"])
        found[f"heads.{name}"] = both[:, None].expand(-1, num_layers, -1)
    found["heads.out_LDF"] = take("head.weight")
    for side, last in (("a", "I"), ("b", "O")):
        found[f"bias_{side}_LR{last}"] = take(f"bias_{side.upper()}.{config.target_module}")
        found[f"scale_{side}_LR"] = take(f"scaler_{side.upper()}.{config.target_module}").reshape(num_layers, -1)
    if rest:
        raise KeyError(f"tensors without a place here: {', '.join(sorted(rest)[:3])}")
    return found


def _manifest() -> dict[str, Any]:
    """Return the data manifest, by which a benchmark tells the sets that the release was trained on."""
    sources = [
        {"name": name, "split": "train", "files": {}, "num_contexts": contexts, "num_questions": questions}
        for name, (contexts, questions) in _TRAINED_ON.items()
    ]
    warning = "as published by its authors: counts are those of the public splits, and nothing was held out by us"
    return {"sources": sources, "held_out": {}, "warnings": [warning]}


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m models.baselines.release", description=__doc__.splitlines()[0])
    parser.add_argument("pickle", type=Path, help="pytorch_model.bin of the release")
    parser.add_argument("--model", required=True, help="preset whose base it was made for, as gemma or qwen")
    parser.add_argument("--base-path", type=Path, help="folder of the base, where the preset does not find it")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the baseline to")
    given = parser.parse_args()
    from models.base import load_base
    from models.presets import load_preset

    try:
        check_present(given.pickle)  # loading a base takes long
        preset = load_preset(given.model)
        base = load_base(preset, base_path=given.base_path, device="cpu")
        convert_release(given.pickle, given.out, base, preset=preset.name)
    except D2AError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
