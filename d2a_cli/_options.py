"""Options that several commands share, and the step from options to an opened memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from d2a_cli import _memory, _settings
from models.config import Attention, Device

if TYPE_CHECKING:
    from models.memory import DocumentMemory

Bank = Annotated[
    Path | None,
    typer.Option(
        "--bank", help="Folder of the bank; default: .d2a/bank of the project, else in the user's data folder."
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "--preset", help="Base model: smollm2, gemma, qwen, or the path of a TOML preset."),
]
Checkpoint = Annotated[Path | None, typer.Option("--checkpoint", help="Folder of a trained memory.")]
DeviceChoice = Annotated[Device | None, typer.Option("--device", help="Where to compute.")]
AttentionChoice = Annotated[Attention | None, typer.Option("--attn", help="Attention implementation.")]
Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def open_memory(**flags: Any) -> DocumentMemory:
    """Open the memory under all layers of settings, `flags` being the highest; None stands for a flag not given."""
    return _memory.open_memory(_settings.load(flags).memory_config())
