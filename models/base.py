"""The frozen base: a Hugging Face causal model, cut once below its memory layers.

Holds loading, device and attention choice, and running any contiguous run of decoder layers. Memory is
written only in the upper layers, so the states that enter them do not depend on it: training caches
them, and ingest stores them. It holds no trainable parameter and no memory.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from models.errors import BaseModelError, ConfigError
from models.injection import register_attention
from models.presets import FAMILIES, MemorySpec, Preset
from models.weights import resolve_base

logger = logging.getLogger(__name__)

# Atoms are encoded behind these words and their slots are dropped: a first token is an attention sink whose
# state says nothing about the text, and K atoms would bring K of them.
SHARED_PREFIX = "Memory:\n"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A linear layer that carries a micro-LoRA."""

    layer: int
    module: str
    in_features: int
    out_features: int


class FrozenBase:
    """A frozen causal model and its tokenizer; one copy of the weights serves encoder, memory and answer.

    Args:
        model: A Llama, Gemma 2 or Qwen 3 causal model; its parameters are frozen here.
        attention: `eager`, `sdpa` or `flash_attention_2`.

    Raises:
        BaseModelError: Another architecture.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, attention: str = "sdpa") -> None:
        if model.config.model_type not in FAMILIES:
            raise BaseModelError(
                f"architecture {model.config.model_type!r} is not supported", hint=f"Supported: {', '.join(FAMILIES)}"
            )
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.attention = attention
        model.set_attn_implementation(register_attention(attention))
        if self.device.type == "cuda":
            # cuDNN plans its attention anew for every shape, and each new token is another shape.
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.decoder = model.model
        self.layers: Sequence[nn.Module] = self.decoder.layers
        self.num_layers = len(self.layers)
        self.hidden_size: int = model.config.hidden_size
        self._segments: dict[tuple[int, int], nn.Module] = {}
        self.prefix_states: dict[int, Tensor] = {}  # of SHARED_PREFIX, by layer; filled on demand
        self.prefix_ids: list[int] = tokenizer(SHARED_PREFIX)["input_ids"]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights and hidden states."""
        return self.model.dtype

    def attention_module(self, layer: int) -> nn.Module:
        """Return the self-attention of decoder layer `layer`."""
        return self.layers[layer].self_attn

    def module(self, site: Site) -> nn.Module:
        """Return the linear layer at `site`."""
        matches = [m for name, m in self.layers[site.layer].named_modules() if name.rsplit(".", 1)[-1] == site.module]
        if len(matches) != 1:
            raise BaseModelError(f"layer {site.layer} has {len(matches)} modules named {site.module!r}, expected 1")
        return matches[0]

    def sites(self, spec: MemorySpec) -> list[Site]:
        """Return the micro-LoRA's places, memory layer by memory layer, in the order of `target_modules`.

        Raises:
            ConfigError: `spec` asks for more layers than this base has.
            BaseModelError: A target module that is not there.
        """
        for name in ("num_memory_layers", "num_encoder_layers"):
            if getattr(spec, name) > self.num_layers:
                raise ConfigError(f"memory: {name} must be at most {self.num_layers}, got {getattr(spec, name)}")
        places = []
        for layer in range(self.num_layers - spec.num_memory_layers, self.num_layers):
            for name in spec.target_modules:
                module = self.module(Site(layer=layer, module=name, in_features=0, out_features=0))
                places.append(
                    Site(layer=layer, module=name, in_features=module.in_features, out_features=module.out_features)
                )
        return places

    def embed(self, ids_BL: Tensor) -> Tensor:
        """Return the token embeddings as they enter layer 0, `[B, L, D]`."""
        return self.decoder.embed_tokens(ids_BL)

    def run_layers(self, x_BLD: Tensor, *, start: int, stop: int) -> Tensor:
        """Run decoder layers `start` to `stop - 1`, without the final norm.

        Args:
            x_BLD: States entering layer `start`. Padding belongs on the right, where no real token sees it: so no mask
                is needed, and the fast attention kernels take it.

        Returns:
            States entering layer `stop`, `[B, L, D]`.
        """
        if start == stop:
            return x_BLD
        return self._segment(start, stop)(inputs_embeds=x_BLD, use_cache=False).last_hidden_state

    def logits(self, x_BLD: Tensor) -> Tensor:
        """Return the vocabulary's logits, `[..., V]`, from the states that leave the last layer."""
        return self.head(self.decoder.norm(x_BLD))

    def head(self, x_BLD: Tensor) -> Tensor:
        """Return the vocabulary's logits, `[..., V]`, from normed states."""
        logits = self.model.lm_head(x_BLD)
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    @contextmanager
    def captured_inputs(self, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
        """Collect what enters the attention of `layers`, normed, while the block runs the model."""
        captured: dict[int, Tensor] = {}

        def hook(layer: int):
            def keep(_module: nn.Module, args: tuple, kwargs: dict) -> None:
                captured[layer] = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]

            return keep

        handles = [
            self.attention_module(layer).register_forward_pre_hook(hook(layer), with_kwargs=True) for layer in layers
        ]
        try:
            yield captured
        finally:
            for handle in handles:
                handle.remove()

    def fingerprint(self) -> str:
        """Return 16 hex digits that name these weights, whatever their dtype and device."""
        digest = hashlib.sha256(self.model.config.model_type.encode())
        for name, parameter in sorted(self.model.named_parameters()):
            head = parameter.detach().flatten()[:64].to("cpu", torch.bfloat16).view(torch.int16)
            digest.update(f"{name}{tuple(parameter.shape)}".encode() + head.numpy().tobytes())
        return digest.hexdigest()[:16]

    def _segment(self, start: int, stop: int) -> nn.Module:
        """A view of the decoder that holds only some layers and no final norm; it shares every weight."""
        key = (start, stop)
        if key not in self._segments:
            part = copy.copy(self.decoder)
            part._modules = dict(self.decoder._modules)
            part._modules["layers"] = nn.ModuleList(self.layers[start:stop])
            part._modules["norm"] = nn.Identity()
            part.config = copy.copy(self.decoder.config)
            part.config.num_hidden_layers = stop - start
            if getattr(part.config, "layer_types", None):
                part.config.layer_types = part.config.layer_types[start:stop]
            self._segments[key] = part
        return self._segments[key]


def load_base(
    preset: Preset,
    *,
    base_path: Path | None = None,
    device: str = "auto",
    attention: str = "auto",
    dtype: torch.dtype | None = None,
) -> FrozenBase:
    """Load a preset's base, frozen.

    Args:
        device: `auto` takes cuda, then mps, then cpu.
        attention: `auto` takes FlashAttention 2 where it is installed and can run, else sdpa; Gemma 2 takes eager.
        dtype: None takes bfloat16 where the device computes it natively, else float32.

    Raises:
        BaseModelError: Weights that are missing, incomplete, not accessible, or of another architecture.
    """
    quiet_transformers()
    source = resolve_base(preset, base_path)
    place = pick_device(device)
    try:
        config = AutoConfig.from_pretrained(source)
        if config.model_type != preset.family:
            raise BaseModelError(f"{source} is a {config.model_type} model, preset {preset.name} needs {preset.family}")
        tokenizer = AutoTokenizer.from_pretrained(source)
        model, report = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype or pick_dtype(place), output_loading_info=True
        )
    except BaseModelError:
        raise
    except Exception as error:  # the hub, the file system and safetensors each raise their own families
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise BaseModelError(
            f"cannot load the base model {source}: {reason}",
            hint=f"Check network and access, or fetch it with: {preset.install}; or pass a local folder with --base",
        ) from error
    if missing := report.get("missing_keys"):
        raise BaseModelError(
            f"{source} lacks {len(missing)} weights, first {sorted(missing)[0]}",
            hint=f"Fetch it again: {preset.install}",
        )
    return FrozenBase(model.to(place), tokenizer, attention=pick_attention(attention, place, config.model_type))


def pick_device(name: str) -> str:
    """Return a torch device for `auto|cpu|cuda|mps`.

    Raises:
        BaseModelError: A device that this machine does not have.
    """
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next(d for d in ("cuda", "mps", "cpu") if has[d])
    if not has[name]:
        raise BaseModelError(f"device {name} is not available here", hint="Use --device auto or --device cpu")
    return name


def pick_dtype(device: str) -> torch.dtype:
    """Return bfloat16 where `device` computes it natively, else float32."""
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    if device == "cpu" and torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16
    return torch.float32


def pick_attention(name: str, device: str, family: str) -> str:
    """Return the attention to use; a choice that cannot run falls back with one line in the log."""
    fallback = "eager" if family == "gemma2" else "sdpa"  # sdpa cannot soft-cap
    if name == "sdpa" and family == "gemma2":
        logger.warning("sdpa cannot soft-cap attention logits as Gemma 2 needs: using eager")
        return fallback
    if name in ("eager", "sdpa"):
        return name
    from transformers.utils import is_flash_attn_2_available

    if device == "cuda" and is_flash_attn_2_available():
        return "flash_attention_2"
    if name == "flash_attention_2":
        logger.warning("flash_attention_2 needs a CUDA device and `pip install d2a[flash]`: using %s", fallback)
    return fallback


def gpu_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU this process may fill: all, or the share that torch was told.

    `PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:0.115` lets eight processes of `d2a bench` share a card.
    """
    return int(
        torch.cuda.get_per_process_memory_fraction(device) * torch.cuda.get_device_properties(device).total_memory
    )


def free_gpu_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU this process may still fill: the less of what card and share have left.

    What the allocator has reserved and not given out is free as well.
    """
    free, _ = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    return min(free, gpu_memory(device) - reserved) + reserved - torch.cuda.memory_allocated(device)


def quiet_transformers() -> None:
    """Keep transformers' and the hub's progress bars and notices off the terminal."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging as transformers_logging

    disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
