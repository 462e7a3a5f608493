"""Where cached features live: device memory, page-locked host memory, or a safetensors file mapped from disk.

A file is written in place, part by part, under a temporary name; its name appears when it is whole, and a mark
beside it says what it holds. Without the mark, or with another size, it does not exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.base import free_gpu_memory
from models.errors import ConfigError
from models.shards import replace_durably

HOMES = ("auto", "device", "pinned", "disk")
# Of the free memory; the rest is for activations and optimiser, and page-locked memory comes in powers of two.
SHARE_OF_FREE = 0.5
CONTROL_GROUP = Path("/sys/fs/cgroup")

Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
_NAMES = {torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16", torch.float16: "F16"}


def num_bytes(layout: Layout) -> int:
    """Return what all tensors of a layout take."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in layout.values())


def choose_home(home: str, size: int, device: torch.device, *, on_disk: bool) -> str:
    """Resolve `auto`: device memory where `size` bytes are at most half of what is free, then host memory, then disk.

    Args:
        on_disk: A folder for a file was given.

    Raises:
        ConfigError: An unknown home, or one that needs a folder.
    """
    if home not in HOMES:
        raise ConfigError(f"train: feature_home must be live or one of {', '.join(HOMES)}, got {home!r}")
    if home == "auto":
        free = {"device": free_host_bytes()}
        if device.type == "cuda":
            free = {"device": free_gpu_memory(device), "pinned": free_host_bytes()}
        home = next((name for name, room in free.items() if size <= SHARE_OF_FREE * room), "disk")
    if home == "disk" and not on_disk:
        raise ConfigError(
            f"features of {size / 2**30:.1f} GiB need a file, and no folder is named for it",
            hint="Name a folder for the feature cache",
        )
    return home


def free_host_bytes() -> int:
    """Return this process's share of the host memory that is free, a container's limit included."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, StopIteration):  # only Linux tells what is free; elsewhere all of it counts
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
    with suppress(OSError, ValueError):  # no such group, or its limit reads "max"
        limit, used = (int((CONTROL_GROUP / f"memory.{name}").read_text("utf-8")) for name in ("max", "current"))
        free = min(free, limit - used)
    return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def allocate(layout: Layout, home: str, device: torch.device) -> dict[str, Tensor]:
    """Return empty tensors in device or page-locked host memory."""
    if home == "device":
        return {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in layout.items()}
    pin = torch.cuda.is_available()
    return {name: torch.empty(shape, dtype=dtype, pin_memory=pin) for name, (shape, dtype) in layout.items()}


def is_complete(path: Path) -> bool:
    """Tell whether a feature file is there, whole."""
    try:
        mark = json.loads(_mark(path).read_text("utf-8"))
        return path.stat().st_size == mark["bytes"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def open_file(path: Path) -> dict[str, Tensor]:
    """Map a feature file; its pages are read when they are touched."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep other processes from making a file meanwhile; they wait.

    Raises:
        ConfigError: The folder cannot be written.
    """
    from filelock import FileLock

    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_file(path: Path, layout: Layout, about: dict[str, Any]) -> Iterator[dict[str, Tensor]]:
    """Give a file's tensors to be filled; when the block ends well, the file gets its name and then its mark.

    Args:
        about: What the file holds, for whoever reads the mark.

    Raises:
        ConfigError: The disk has no room, or the folder cannot be written.
    """
    scratch = path.with_name(path.name + ".tmp")
    try:
        with _explained(path):
            _mark(path).unlink(missing_ok=True)
            tensors = _mapped(scratch, layout)
        yield tensors
        tensors.clear()
        with _explained(path):
            replace_durably(scratch, path)
            _write_mark(path, about)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"feature cache {path} cannot be written: {error}", hint="Make room there, or name another folder"
        ) from error


def _mapped(path: Path, layout: Layout) -> dict[str, Tensor]:
    """Make a safetensors file of this layout and map it for writing.

    The library's own writer wants all tensors in memory at once, so the header is written here.
    """
    # Wide types first: safetensors allows no gaps, and a view needs its type's alignment.
    names = sorted(layout, key=lambda name: (-layout[name][1].itemsize, name))
    header, begin, places = {}, 0, {}
    for name in names:
        shape, dtype = layout[name]
        end = begin + torch.Size(shape).numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        places[name], begin = (begin, end), end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # with the 8 bytes of its length, the data begins at a multiple of 64
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        _reserve(file.fileno(), 8 + len(text) + begin)
    data = torch.from_file(str(path), shared=True, size=8 + len(text) + begin, dtype=torch.uint8)[8 + len(text) :]
    return {n: data[b:e].view(layout[n][1]).view(layout[n][0]) for n, (b, e) in places.items()}


def _reserve(descriptor: int, size: int) -> None:
    """Take the room now: a mapped file that finds the disk full ends the process without a word."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def _mark(path: Path) -> Path:
    return path.with_suffix(".complete.json")


def _write_mark(path: Path, about: dict[str, Any]) -> None:
    scratch = _mark(path).with_suffix(".tmp")
    scratch.write_text(json.dumps({"bytes": path.stat().st_size, **about}, indent=2) + "\n", "utf-8")
    replace_durably(scratch, _mark(path))
