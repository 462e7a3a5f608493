"""`d2a docs`: list, show and forget documents."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from d2a_cli import _errors, _options, _output
from models.results import DocumentInfo

Reference = Annotated[str, typer.Argument(help="Document id, a unique prefix of it, or a source path.", metavar="DOC")]


def list_documents(json: _options.Json = False, bank: _options.Bank = None) -> None:
    """List the documents of the memory."""
    documents = _options.open_memory(bank=bank).documents()
    if json:
        _output.emit_json([asdict(d) for d in documents])
    else:
        show_documents(documents)


def show_documents(documents: Sequence[DocumentInfo]) -> None:
    """Print one row a document."""
    if not documents:
        _output.note("the memory holds no documents. Add some: d2a ingest FILE")
        return
    rows = [(d.document_id, d.status, d.num_pages, d.num_atoms, d.title, ", ".join(d.sources)) for d in documents]
    _output.table(("document", "status", "pages", "atoms", "title", "sources"), rows)


def show(doc: Reference, json: _options.Json = False, bank: _options.Bank = None) -> None:
    """Show what the memory knows of a document."""
    document = _options.open_memory(bank=bank).document(doc)
    if json:
        _output.emit_json(asdict(document))
        return
    for name, value in asdict(document).items():
        for part in value if isinstance(value, tuple | list) else (value,):
            if part != "":
                _output.line(f"{name}: {_output.sanitize(part, one_line=True)}")


def forget(doc: Reference, yes: _options.Yes = False, json: _options.Json = False, bank: _options.Bank = None) -> None:
    """Remove a document from the memory.

    Everything that was compiled from it goes too.
    """
    memory = _options.open_memory(bank=bank)
    document = memory.document(doc)
    if not yes:
        if not _output.can_prompt():
            raise _errors.UsageError(
                "forget needs your consent", hint=f"Add --yes: d2a docs forget {shlex.quote(doc)} --yes"
            )
        title = _output.sanitize(document.title, one_line=True)
        if not typer.confirm(f"Forget {title} ({document.num_atoms} atoms)?", err=True):
            raise typer.Exit(_errors.EXIT_ERROR)
    gone = memory.forget(document.document_id)
    if json:
        _output.emit_json(asdict(gone))
    else:
        _output.line(f"forgotten\t{gone.document_id}\t{_output.sanitize(gone.title, one_line=True)}")
