"""Where a setting comes from: command line, environment, project file, user file, default.

Holds the keys (the fields of `MemoryConfig` and `AtomizerConfig`), their parsing, their precedence and
how they are shown. Writing them is `_settings_edit`'s part.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from models.config import AtomizerConfig, MemoryConfig
from models.errors import ConfigError

PROJECT_FOLDER = ".d2a"
FILE_NAME = "config.toml"
# A project's file may come from a stranger's repository: it must not send the user's key elsewhere.
USER_ONLY = ("atomizer.base_url", "atomizer.api_key_env")
# Names by which people look for a key; only for hints.
_ALIASES = {"model": "preset", "attn": "attention", "atomizer": "atomizer.backend", "k": "top_k"}
_ENVIRONMENT_ONLY = ("D2A_DEBUG", "D2A_CACHE", "D2A_DATA")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The type of a key's value."""

    type: type
    optional: bool
    default: Any


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every key with its value and origin, and the files that were considered."""

    entries: Mapping[str, Setting]
    user_file: Path
    project_file: Path | None

    def memory_config(self) -> MemoryConfig:
        """Return the settings as the memory takes them."""
        values = {key: entry.value for key, entry in self.entries.items()}
        atomizer = {k.removeprefix("atomizer."): v for k, v in values.items() if k.startswith("atomizer.")}
        memory = {k: v for k, v in values.items() if "." not in k}
        return MemoryConfig(**memory, atomizer=AtomizerConfig(**atomizer))


def _kinds(owner: type, prefix: str = "") -> Iterator[tuple[str, Kind]]:
    hints = typing.get_type_hints(owner)
    for field in fields(owner):
        hint = hints[field.name]
        if hint is AtomizerConfig:
            yield from _kinds(AtomizerConfig, "atomizer.")
            continue
        arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kind = next(arm for arm in arms if arm is not types.NoneType)
        default = None if field.default is MISSING else field.default
        yield prefix + field.name, Kind(type=kind, optional=types.NoneType in arms, default=default)


KEYS: dict[str, Kind] = dict(_kinds(MemoryConfig))


def user_file() -> Path:
    """Return the path of the user's configuration file, whether it exists or not."""
    import platformdirs

    return Path(platformdirs.user_config_dir("d2a", appauthor=False)) / FILE_NAME


def project_folder(start: Path | None = None) -> Path | None:
    """Return the nearest folder at or above `start` (the working directory) that holds a `.d2a` folder."""
    here = Path.cwd() if start is None else start
    return next((folder for folder in (here, *here.parents) if (folder / PROJECT_FOLDER).is_dir()), None)


def project_file(start: Path | None = None) -> Path | None:
    """Return the path of the project's configuration file, whether it exists or not; None outside a project."""
    folder = project_folder(start)
    return None if folder is None else folder / PROJECT_FOLDER / FILE_NAME


def load(flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge all layers, highest first: command line, environment, project file, user file, defaults.

    Args:
        flags: Values by key; None stands for a flag that was not given.

    Raises:
        ConfigError: A layer has an unknown key or a value that is not allowed; the message names the layer.
    """
    user, project = user_file(), project_file()
    entries = _defaults(project)
    for path, base, trusted in ((user, user.parent, True), (project, project and project.parent.parent, False)):
        if path is not None and path.is_file():
            entries.update(read_file(path.read_bytes(), path=path, base=base or path.parent, trusted=trusted))
    for key in KEYS:
        if raw := os.environ.get(environment_name(key)):
            origin = f"environment {environment_name(key)}"
            entries[key] = Setting(value=parse(key, raw, origin=origin, base=Path.cwd()), origin=origin)
    for key, raw in (flags or {}).items():
        if raw is not None:
            entries[key] = Setting(value=parse(key, raw, origin="command line", base=Path.cwd()), origin="command line")
    return Settings(entries=entries, user_file=user, project_file=project)


def _defaults(project: Path | None) -> dict[str, Setting]:
    from models.checkpoint import data_root
    from models.weights import cache_root

    values = {key: kind.default for key, kind in KEYS.items()}
    values["bank"] = project.parent / "bank" if project else data_root() / "bank"
    values["atomizer.cache_dir"] = cache_root() / "atomizer"
    return {key: Setting(value=value, origin="default") for key, value in values.items()}


def read_file(data: bytes, *, path: Path, base: Path, trusted: bool) -> dict[str, Setting]:
    """Return the settings of a TOML file; relative paths in it start at `base`.

    Raises:
        ConfigError: Not TOML, an unknown key, a value that is not allowed, or, unless `trusted`, a key
            that decides where the API key is sent.
    """
    try:
        tree = tomllib.loads(data.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML, {error}", hint="Correct the file") from error
    found = {}
    for key, raw in _flatten(tree):
        require_known(key, origin=str(path))
        if not trusted and key in USER_ONLY:
            raise ConfigError(
                f"{path}: {key} is not accepted from a project's file, since it decides where the API key goes",
                hint=f"Remove it there and set it for yourself with d2a config set {key} VALUE "
                f"or {environment_name(key)}",
            )
        found[key] = Setting(value=parse(key, raw, origin=str(path), base=base), origin=str(path))
    return found


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def parse(key: str, raw: Any, *, origin: str, base: Path) -> Any:
    """Return the value of `key`, checked.

    Args:
        raw: Text from a flag or the environment, or a TOML value; `none` and an empty text clear an optional key.
        base: Folder at which a relative path starts.

    Raises:
        ConfigError: Of another type than the key's, or outside its allowed values.
    """
    kind = KEYS[key]
    if kind.optional and isinstance(raw, str) and raw.strip().lower() in ("", "none"):
        return None
    value = _convert(key, kind, raw, origin)
    if kind.type is Path or (key == "preset" and str(value).endswith(".toml")):
        value = kind.type(base / Path(value).expanduser())
    _check(key, value, origin)
    return value


def _convert(key: str, kind: Kind, raw: Any, origin: str) -> Any:
    # The value is not repeated for a key that should name a variable: people paste the secret itself there.
    shown = "something else" if key == "atomizer.api_key_env" else repr(raw)
    wanted = {int: "a whole number", float: "a number", str: "text", Path: "a path"}[kind.type]
    error = ConfigError(f"{origin}: {key} must be {wanted}, got {shown}", hint=f"Correct {key} there")
    if isinstance(raw, Path):
        return raw
    if kind.type in (str, Path):
        if not isinstance(raw, str) or not raw.strip():
            raise error
        if key == "atomizer.api_key_env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", raw):
            raise ConfigError(
                f"{origin}: {key} must be the name of an environment variable, not the key itself",
                hint="Put the key into a variable such as OPENAI_API_KEY and name that variable here",
            )
        return raw
    if isinstance(raw, bool) or not isinstance(raw, str | int | float) or (kind.type is int and isinstance(raw, float)):
        raise error
    try:
        return kind.type(raw)
    except ValueError:
        raise error from None


def _check(key: str, value: Any, origin: str) -> None:
    """Let the configuration's own checks see this one value, so that a fault names where it came from."""
    name = key.removeprefix("atomizer.")
    try:
        if name != key:
            AtomizerConfig(**{name: value})
        else:
            MemoryConfig(**{"bank": Path(), name: value})
    except ConfigError as error:
        raise ConfigError(
            f"{origin}: {error.message.removeprefix('memory: ')}", hint=error.hint or f"Correct {key} there"
        ) from error


def require_known(key: str, *, origin: str) -> None:
    """Raise ConfigError with the nearest known key unless `key` is one."""
    if key not in KEYS:
        raise ConfigError(f"{origin}: unknown key {key!r}", hint=f"Did you mean {nearest(key)!r}?")


def nearest(key: str) -> str:
    """Return the known key that is most like `key`, in full or by its last part."""
    if key.lower() in _ALIASES:
        return _ALIASES[key.lower()]
    name = key.rpartition(".")[2]

    def likeness(known: str) -> float:
        whole = difflib.SequenceMatcher(None, key, known).ratio()
        return max(whole, difflib.SequenceMatcher(None, name, known.rpartition(".")[2]).ratio() - 0.01)

    return max(KEYS, key=likeness)


def environment_name(key: str) -> str:
    """Return the variable that sets `key`: `atomizer.model` is `D2A_ATOMIZER_MODEL`."""
    return "D2A_" + key.upper().replace(".", "_")


def unknown_environment() -> list[str]:
    """Return the variables that look like settings of ours and are none."""
    known = {environment_name(key) for key in KEYS} | set(_ENVIRONMENT_ONLY)
    return sorted(name for name in os.environ if name.startswith("D2A_") and name not in known)


def shown(key: str, value: Any) -> str:
    """Return a value as `config show` prints it, without secrets."""
    if value is None:
        return "none"
    if key == "atomizer.api_key_env":
        return f"{value} ({'set' if os.environ.get(value) else 'not set'})"
    if key == "atomizer.base_url":
        return mask_url(str(value))
    return str(value)


def mask_url(url: str) -> str:
    """Return `url` with a user name, password or query replaced by `***`."""
    return re.sub(r"\?.*$", "?***", re.sub(r"//[^/@]*@", "//***@", url))
