"""`d2a export`: a micro-LoRA as a folder that PEFT loads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from d2a_cli import _errors, _options, _output


def export(
    folder: Annotated[Path, typer.Argument(help="Folder to write.", metavar="FOLDER")],
    question: Annotated[str | None, typer.Option(help="Export the adapter composed for this question.")] = None,
    atom: Annotated[str | None, typer.Option(help="Export the adapter of this atom, as d2a atoms names it.")] = None,
    json: _options.Json = False,
    bank: _options.Bank = None,
    model: _options.Model = None,
    checkpoint: _options.Checkpoint = None,
    device: _options.DeviceChoice = None,
    attn: _options.AttentionChoice = None,
) -> None:
    """Write a micro-LoRA as a PEFT adapter.

    It is the one composed for a question, or that of one atom; the micro-KV is not part of it. A memory whose atoms
    share one LoRA has no other to give.
    """
    if (question is None) == (atom is None):
        raise _errors.UsageError("export takes either --question or --atom", hint="Give one of the two")
    memory = _options.open_memory(bank=bank, preset=model, checkpoint=checkpoint, device=device, attention=attn)
    report = memory.export(folder, question=question, atom_uid=atom)
    if json:
        _output.emit_json(asdict(report))
        return
    _output.line(report.path)
    _output.note(f"rank {report.rank}, from {len(report.atom_uids)} atoms")
    if report.shared:
        _output.note("all atoms of this memory share this LoRA: what they say is in their micro-KV, which is not in it")
