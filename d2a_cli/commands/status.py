"""`d2a status`: what the bank holds and what it was made with."""

from __future__ import annotations

from dataclasses import asdict

from d2a_cli import _options, _output


def status(json: _options.Json = False, bank: _options.Bank = None, model: _options.Model = None) -> None:
    """Show the bank and what it was made with."""
    found = asdict(_options.open_memory(bank=bank, preset=model).status())
    if json:
        _output.emit_json(found)
        return
    for name, value in found.items():
        if name == "documents_by_status":
            value = ", ".join(f"{number} {state}" for state, number in value.items()) or "none"
        if value is not None:
            _output.line(f"{name}: {_output.sanitize(value, one_line=True)}")
