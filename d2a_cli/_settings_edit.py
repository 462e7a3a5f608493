"""Writing one setting into a configuration file, leaving the rest of the file as it was."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from d2a_cli import _settings
from models.errors import ConfigError


def set_value(key: str, text: str) -> Path:
    """Write `key = text` to the project's file if there is one and it may hold the key, else to the user's.

    The whole file is validated as it will be, then replaced in one step.

    Returns:
        The file that was written.

    Raises:
        ConfigError: Unknown key, a value that is not allowed, or a file that stays invalid.
    """
    import tomlkit
    from tomlkit.exceptions import ParseError

    _settings.require_known(key, origin="command line")
    project = _settings.project_file()
    is_project = project is not None and project.is_file() and key not in _settings.USER_ONLY
    path = project if project is not None and is_project else _settings.user_file()
    base = path.parent.parent if is_project else path.parent
    value = _settings.parse(key, text, origin="command line", base=Path.cwd())

    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8-sig")) if path.is_file() else tomlkit.document()
    except ParseError as error:
        raise ConfigError(f"{path}: not valid TOML, {error}", hint="Correct the file") from error
    owner: Any = document
    section, _, name = key.rpartition(".")
    if section:
        owner = document.setdefault(section, tomlkit.table())
    owner[name] = _stored(value, project_root=base if is_project else None)
    data = tomlkit.dumps(document).encode()
    _settings.read_file(data, path=path, base=base, trusted=not is_project)
    _replace(path, data)
    return path


def _stored(value: Any, *, project_root: Path | None) -> Any:
    """Return the TOML form: a path inside the project stays relative, so that the project can move."""
    if value is None:
        return "none"
    if isinstance(value, Path):
        inside = project_root is not None and value.is_relative_to(project_root)
        return value.relative_to(project_root).as_posix() if inside and project_root else str(value)
    return value


def _replace(path: Path, data: bytes) -> None:
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(temporary, target.stat().st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
