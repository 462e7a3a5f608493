"""What lies beside a bank's tables: the file that says what it was made with, and the writers' lock.

<bank>/bank.json   format version and identity, written once, after everything else of a new bank
<bank>/.lock       held by the one process that writes; readers never take it
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from models.errors import BankError
from models.shards import TEMPORARY_SUFFIX, replace_durably

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "bank.json"
LOCK = ".lock"
_OWN_NAMES = {MANIFEST, MANIFEST + TEMPORARY_SUFFIX, LOCK, "lancedb", "shards", "lexical", "keys"}
REBUILD_HINT = "Run `d2a ingest --rebuild` to compile its atoms anew, or name another folder with `--bank`"


@dataclass(frozen=True, kw_only=True)
class BankIdentity:
    """What a bank was made with; parameters made with anything else would write nonsense into the base.

    Args:
        store: `compact` or `full`, how micro-LoRAs are kept.
        key_dim: Width of provenance keys, the E of the tensors.
        kv_store: What the micro-KV of an atom is kept as.
    """

    preset: str
    base_fingerprint: str
    checkpoint_fingerprint: str
    recipe: str
    store: str
    key_dim: int
    kv_store: str

    def __str__(self) -> str:
        return (
            f"{self.preset} (base {self.base_fingerprint}, checkpoint {self.checkpoint_fingerprint}, recipe "
            f"{self.recipe}, store {self.store}, keys {self.key_dim} wide, micro-KV {self.kv_store})"
        )


def read_identity(folder: Path) -> BankIdentity | None:
    """Return what the bank in a folder was made with, None where there is no bank.

    Raises:
        BankError: `bank.json` is broken, or a newer d2a wrote it. Nothing on disk is touched.
    """
    path = folder / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        version = data["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise BankError(
                f"bank {folder}: format {version} was written by a newer d2a, this one knows {FORMAT_VERSION}",
                hint="Upgrade d2a, or name another folder with `--bank`",
            )
        identity = BankIdentity(**data["identity"])
        wrong = [f.name for f in fields(identity) if type(getattr(identity, f.name)).__name__ != f.type]
        if version != FORMAT_VERSION or wrong:
            raise TypeError(f"bad value of {', '.join(wrong) or 'format_version'}")
    except BankError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BankError(
            f"bank {folder}: {MANIFEST} is broken ({type(error).__name__}: {error})",
            hint=f"Restore {path} from a copy, or name another folder with `--bank`",
        ) from error
    return identity


def write_identity(folder: Path, identity: BankIdentity) -> None:
    """Write `bank.json`; from then on the folder is a bank."""
    path = folder / MANIFEST
    temporary = path.with_name(MANIFEST + TEMPORARY_SUFFIX)
    content = {"format_version": FORMAT_VERSION, "identity": asdict(identity)}
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    replace_durably(temporary, path)


def create_bank(
    folder: Path, identity: BankIdentity, *, lock: WriterLock, make_tables: Callable[[Path, int], None]
) -> None:
    """Turn a new or empty folder into a bank; a folder that is one already is left alone.

    `bank.json` comes last: what an interrupted creation left is no bank, and is made anew.

    Raises:
        BankError: The path is a file or cannot be written, or the folder holds other things.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted({entry.name for entry in folder.iterdir()} - _OWN_NAMES)
        if foreign and not (folder / MANIFEST).exists():
            raise BankError(
                f"bank {folder}: the folder holds other files, such as {foreign[0]!r}",
                hint="Name a new or empty folder with `--bank`",
            )
        with lock.hold():
            if read_identity(folder) is None:
                if any((folder / "shards").glob("*")):
                    raise BankError(
                        f"bank {folder}: {MANIFEST} is missing beside stored documents",
                        hint="Restore it from a copy, or name another folder with `--bank`",
                    )
                make_tables(folder / "lancedb", identity.key_dim)
                write_identity(folder, identity)
    except OSError as error:
        raise BankError(
            f"bank {folder} cannot be created: {error}", hint="Name another folder with `--bank`"
        ) from error


def check_identity(folder: Path, stored: BankIdentity, asked: BankIdentity) -> None:
    """Refuse a bank that was made with something else.

    Raises:
        BankError: Names both identities and the command that rebuilds the bank.
    """
    if stored != asked:
        names = [f.name for f in fields(stored) if getattr(stored, f.name) != getattr(asked, f.name)]
        raise BankError(
            f"bank {folder} differs in {', '.join(names)}: it was made with {stored}, not with {asked}",
            hint=REBUILD_HINT,
        )


class WriterLock:
    """The right to write to a bank, held by one process at a time.

    Args:
        timeout_s: How long a writer waits for another one.
        on_wait: Called once with a sentence when there is somebody to wait for; the log gets it either way.
    """

    def __init__(self, folder: Path, *, timeout_s: float, on_wait: Callable[[str], None] | None) -> None:
        self._path = folder / LOCK
        self._timeout_s = timeout_s
        self._on_wait = on_wait

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock for the length of a with block.

        Raises:
            BankError: Another process kept it for longer than the timeout.
        """
        import filelock

        lock = filelock.FileLock(self._path)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            self._wait(lock)
        try:
            self._path.write_text(f"{os.getpid()}\n", encoding="ascii")
            yield
        finally:
            lock.release()

    def _wait(self, lock: object) -> None:
        import filelock

        message = f"bank {self._path.parent}: waiting for {self._holder()} to finish writing"
        log.warning(message)
        if self._on_wait is not None:
            self._on_wait(message)
        try:
            lock.acquire(timeout=self._timeout_s)
        except filelock.Timeout:
            raise BankError(
                f"bank {self._path.parent}: {self._holder()} has been writing for more than {self._timeout_s:g} s",
                hint="Try again when it has finished, or stop it",
            ) from None

    def _holder(self) -> str:
        try:
            pid = self._path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            # Windows does not let others read a locked file.
            pid = ""
        return f"process {pid}" if pid else "another process"
