"""Shards: the tensors of one document's atoms in one safetensors file.

Every tensor has one row an atom along its first dimension, N in all. A ragged tensor `x` holds the rows of
all atoms one after the other and comes with `x.offsets`, int64 [N + 1]: atom i owns
x[offsets[i] : offsets[i + 1]]. What the tensors mean is the caller's affair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import BankError

if TYPE_CHECKING:
    from torch import Tensor

OFFSETS = ".offsets"
TEMPORARY_SUFFIX = ".tmp"


def num_rows(tensors: Mapping[str, Tensor]) -> int:
    """Check the layout of a shard and return its number of atoms N.

    Raises:
        AssertionError: The tensors do not share one N, or offsets do not cover their tensor.
    """
    counts = {}
    for name, tensor in tensors.items():
        if name.endswith(OFFSETS):
            values = tensor.tolist()
            flat = tensors[name.removesuffix(OFFSETS)]
            assert values[0] == 0 and values[-1] == len(flat), f"{name} must run from 0 to {len(flat)}"
            assert values == sorted(values), f"{name} must not decrease"
            counts[name] = len(values) - 1
        elif name + OFFSETS not in tensors:
            counts[name] = len(tensor)
    assert len(set(counts.values())) == 1, f"a shard needs one number of atoms, got {counts}"
    return next(iter(counts.values()))


def ragged(tensors: Mapping[str, Tensor], lengths: Sequence[int]) -> dict[str, Tensor]:
    """Return tensors that hold the rows of all atoms, together with their offsets.

    Args:
        lengths: Rows of each atom, the same in all tensors.
    """
    import torch

    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return {**tensors, **{name + OFFSETS: offsets.clone() for name in tensors}}


def write_shard(path: Path, tensors: Mapping[str, Tensor]) -> int:
    """Write a shard so that the name never stands for a half-written file.

    Returns:
        Its size in bytes.

    Raises:
        BankError: The disk is full, or the folder cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    num_rows(tensors)
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: _compact(tensor) for name, tensor in tensors.items()}, temporary)
        num_bytes = temporary.stat().st_size
        replace_durably(temporary, path)
    except (SafetensorError, OSError) as error:
        raise BankError(f"shard {path.name} cannot be written: {error}", hint="Make room on the disk") from error
    return num_bytes


def read_rows(path: Path, rows: Sequence[int]) -> dict[str, list[Tensor]]:
    """Read some atoms' tensors, and nothing else, from a shard.

    Args:
        rows: Atom numbers, in [0, N); repetitions allowed.

    Returns:
        For each tensor name, one tensor an atom in the order of `rows`, without the atom dimension; a ragged
        one keeps its own first dimension. `.offsets` tensors are not returned.

    Raises:
        BankError: The file is missing, cut short or broken, or has no such atom.
    """
    with _opened(path) as file:
        names = set(file.keys())
        values = sorted(name for name in names if not name.endswith(OFFSETS))
        return {name: [_read_row(file, name, row, ragged=name + OFFSETS in names) for row in rows] for name in values}


def replace_durably(temporary: Path, path: Path) -> None:
    """Rename a finished file onto its name; after a power cut either the old or the new one is there, whole."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _opened(path: Path) -> Iterator[object]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, IndexError) as error:
        raise BankError(f"shard {path.name} cannot be read: {error}") from error


def _read_row(file: object, name: str, row: int, *, ragged: bool) -> Tensor:
    if not ragged:
        part = file.get_slice(name)
        _check_row(row, part.get_shape()[0], name)
        return part[row : row + 1][0]
    offsets = file.get_slice(name + OFFSETS)
    _check_row(row, offsets.get_shape()[0] - 1, name)
    start, end = offsets[row : row + 2].tolist()
    return file.get_slice(name)[start:end]


def _check_row(row: int, count: int, name: str) -> None:
    if not 0 <= row < count:
        raise IndexError(f"{name} has {count} atoms, asked for number {row}")


def _compact(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    # safetensors refuses tensors that share memory, which slices of one batch do.
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
