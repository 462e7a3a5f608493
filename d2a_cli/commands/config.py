"""`d2a config`: show, set and locate settings."""

from __future__ import annotations

from typing import Annotated

import typer

from d2a_cli import _options, _output, _settings, _settings_edit


def show(
    origin: Annotated[bool, typer.Option("--origin", help="Also show where each value comes from.")] = False,
    json: _options.Json = False,
) -> None:
    """Print every setting as it applies here.

    Of the API key only the name of its variable is shown, and whether that is set.
    """
    settings = _settings.load()
    values = {key: _settings.shown(key, entry.value) for key, entry in settings.entries.items()}
    for name in _settings.unknown_environment():
        _output.note(f"warning: {name} is in the environment but is no setting")
    if json:
        _output.emit_json({k: {"value": v, "origin": settings.entries[k].origin} for k, v in values.items()})
    elif origin:
        _output.table(("key", "value", "origin"), [(k, v, settings.entries[k].origin) for k, v in values.items()])
    else:
        for key, value in values.items():
            _output.line(f"{key} = {value}")


def set_(
    key: Annotated[str, typer.Argument(help="For example top_k or atomizer.model.", metavar="KEY")],
    value: Annotated[str, typer.Argument(help="'none' clears an optional setting.", metavar="VALUE")],
) -> None:
    """Write a setting.

    It goes into the project's .d2a/config.toml if there is one, else into the user's file.
    """
    path = _settings_edit.set_value(key, value)
    _output.note(f"{key} written to {path}")


def path(json: _options.Json = False) -> None:
    """Print where the configuration files are."""
    files = {"project": _settings.project_file(), "user": _settings.user_file()}
    if json:
        _output.emit_json({name: None if file is None else str(file) for name, file in files.items()})
        return
    for name, file in files.items():
        if file is not None:
            _output.line(f"{name}\t{file}\t{'exists' if file.is_file() else 'absent'}")
