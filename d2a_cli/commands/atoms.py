"""`d2a atoms`: what a document was taken apart into."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from d2a_cli import _options, _output
from d2a_cli.commands.docs import Reference

SemanticType = Literal["fact_claim", "entity_attribute", "event_relation", "process_step", "evidence_fragment"]


def atoms(
    doc: Reference,
    type: Annotated[SemanticType | None, typer.Option("--type", help="Only atoms of this semantic type.")] = None,
    json: _options.Json = False,
    bank: _options.Bank = None,
) -> None:
    """List the atoms of a document with their pages."""
    found = [a for a in _options.open_memory(bank=bank).atoms(doc) if type in (None, a.atom.semantic_type)]
    if json:
        _output.emit_json([asdict(a) for a in found])
        return
    rows = [(a.uid, a.page_label, a.atom.semantic_type, f"{a.atom.confidence:.2f}", a.atom.content) for a in found]
    _output.table(("atom", "page", "type", "confidence", "content"), rows)
