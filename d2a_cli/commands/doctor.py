"""`d2a doctor`: checks what an ingest and an answer need, each with the next step.

It tries rather than guesses: torch is imported and the base and the checkpoint are loaded. Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import typer

from d2a_cli import _errors, _memory, _options, _output, _settings
from models.config import MemoryConfig
from models.errors import BaseModelError, CheckpointError, D2AError

if TYPE_CHECKING:
    from models.memory import DocumentMemory

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report."""

    level: Level
    name: str
    message: str
    next_step: str = ""


def doctor(
    json: _options.Json = False,
    bank: _options.Bank = None,
    model: _options.Model = None,
    checkpoint: _options.Checkpoint = None,
    device: _options.DeviceChoice = None,
    attn: _options.AttentionChoice = None,
) -> None:
    """Check installation, model, bank and settings.

    Each line is ok, warn or fail with the next step. Ends in exit code 1 if a check fails.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    checks = []
    flags = {"bank": bank, "preset": model, "checkpoint": checkpoint, "device": device, "attention": attn}
    for check in _all_checks(flags):
        checks.append(check)
        if not json:
            next_step = f". {check.next_step}" if check.next_step else ""
            text = _output.sanitize(f"{check.level:<5} {check.name:<11} {check.message.rstrip('.')}{next_step}")
            _output.line(" ".join(text.splitlines()))
            sys.stdout.flush()
    if json:
        _output.emit_json({"checks": [asdict(c) for c in checks]})
    if any(c.level == "fail" for c in checks):
        raise typer.Exit(_errors.EXIT_ERROR)


def _all_checks(flags: dict[str, object]) -> Iterator[Check]:
    yield _python()
    try:
        config = _settings.load(flags).memory_config()
    except D2AError as error:
        yield _failure("settings", error)
        return
    yield from _environment()
    yield from _torch(config)
    yield _openai(config)
    try:
        memory = _memory.open_memory(config)
    except Exception as error:
        yield _failure("memory", error)
        return
    sections: dict[str, Callable[[DocumentMemory], Iterator[Check]]] = {"model": _model, "bank": _bank}
    for name, section in sections.items():
        try:
            yield from section(memory)
        except Exception as error:
            yield _failure(name, error)


def _failure(name: str, error: BaseException) -> Check:
    message, hint, _ = _errors.describe(error)
    return Check(level="fail", name=name, message=message, next_step=hint or "")


def _python() -> Check:
    level: Level = "ok" if sys.version_info >= (3, 11) else "fail"
    next_step = "" if level == "ok" else "Install Python 3.11 or newer"
    return Check(level=level, name="python", message=platform.python_version(), next_step=next_step)


def _environment() -> Iterator[Check]:
    unknown = _settings.unknown_environment()
    if not unknown:
        yield Check(level="ok", name="settings", message="no fault found")
    for name in unknown:
        key = _settings.nearest(name.removeprefix("D2A_").lower())
        next_step = f"Did you mean {_settings.environment_name(key)}?"
        message = f"{name} is in the environment but is no setting"
        yield Check(level="warn", name="settings", message=message, next_step=next_step)


def _torch(config: MemoryConfig) -> Iterator[Check]:
    try:
        import torch
    except Exception as error:
        yield _failure("torch", error)
        return
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    found = ", ".join(name for name, there in has.items() if there)
    if config.device != "auto" and not has[config.device]:
        message = f"{torch.__version__} has no {config.device}; it has {found}"
        yield Check(
            level="fail", name="torch", message=message, next_step="Use --device auto, or another build of torch"
        )
    else:
        yield Check(level="ok", name="torch", message=f"{torch.__version__}, devices: {found}")

    if importlib.util.find_spec("flash_attn") is not None:
        yield Check(level="ok", name="flash-attn", message="installed")
    elif config.attention == "flash_attention_2":
        message, next_step = "asked for but not installed; sdpa is used", "Run: pip install 'd2a[flash]'"
        yield Check(level="warn", name="flash-attn", message=message, next_step=next_step)
    else:
        yield Check(level="ok", name="flash-attn", message="not installed, not needed; sdpa is used")


def _openai(config: MemoryConfig) -> Check:
    atomizer = config.atomizer
    if atomizer.backend != "openai":
        return Check(level="ok", name="atomizer", message=f"{atomizer.backend}, works offline")
    endpoint = _settings.mask_url(atomizer.base_url) if atomizer.base_url else "the official endpoint"
    if importlib.util.find_spec("openai") is None:
        return Check(
            level="fail", name="atomizer", message="openai is not installed", next_step="Run: pip install openai"
        )
    if atomizer.base_url and urlsplit(atomizer.base_url).scheme not in ("http", "https"):
        next_step = "Set it again: d2a config set atomizer.base_url https://…/v1"
        return Check(
            level="fail", name="atomizer", message=f"base_url {endpoint} has no http scheme", next_step=next_step
        )
    is_local = urlsplit(atomizer.base_url or "").hostname in ("localhost", "127.0.0.1", "::1")
    if not os.environ.get(atomizer.api_key_env) and not is_local:
        message = f"{atomizer.model} at {endpoint}: the key variable {atomizer.api_key_env} is not set"
        return Check(level="fail", name="atomizer", message=message, next_step=f"Run: export {atomizer.api_key_env}=…")
    return Check(level="ok", name="atomizer", message=f"{atomizer.model} at {endpoint}")


def _model(memory: DocumentMemory) -> Iterator[Check]:
    try:
        memory.warm_up()
    except BaseModelError as error:
        yield _failure("base", error)
    except CheckpointError as error:
        yield _failure("checkpoint", error)
    else:
        yield Check(level="ok", name="base", message="loads")
        yield Check(level="ok", name="checkpoint", message="loads and fits the base")


def _bank(memory: DocumentMemory) -> Iterator[Check]:
    status = memory.status()
    if not status.exists:
        yield Check(level="warn", name="bank", message=f"none yet at {status.bank}", next_step="Run: d2a ingest FILE")
        return
    size = f"{status.num_documents} documents, {status.num_atoms} atoms, {status.bank_bytes / 1e6:.1f} MB"
    yield Check(level="ok", name="bank", message=f"{status.bank}: {size}")
    for document in memory.documents():
        is_stored = document.status in ("ok", "partial")
        if document.status != "ok":
            message = f"{document.title} is {document.status}" + (f": {document.reason}" if document.reason else "")
            source = document.sources[0] if document.sources else "FILE"
            yield Check(
                level="warn", name="document", message=message, next_step=f"Retry: d2a ingest {shlex.quote(source)}"
            )
        num_stored = len(memory.atoms(document.document_id)) if is_stored else document.num_atoms
        if num_stored != document.num_atoms:
            message = f"{document.title} has {num_stored} of {document.num_atoms} atoms"
            yield Check(level="fail", name="document", message=message, next_step="Run: d2a ingest --rebuild")
    for fault in memory.bank_faults():
        level: Level = "fail" if fault.harmful else "warn"
        yield Check(level=level, name="bank", message=fault.message, next_step=fault.next_step)
