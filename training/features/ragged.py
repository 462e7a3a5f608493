"""Rows of different length in one flat tensor, wherever that lives, and gathering some of them to the device.

Dimension key: T tokens of all rows, N rows, U asked rows, S or L steps of the longest asked row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Rows of different length, flat `[T, D]` (or `[T]`), with their offsets.

    Args:
        flat_TD: In device memory, page-locked host memory, or mapped from a file.
        offset_N1: On the device that rows are asked for; it decides where they go.
    """

    flat_TD: Tensor
    offset_N1: Tensor

    @classmethod
    def of(cls, rows: Sequence[Tensor]) -> Ragged:
        """Concatenate rows `[S_i, D]`."""
        lengths = torch.tensor([len(r) for r in rows], dtype=torch.long, device=rows[0].device)
        return cls(flat_TD=torch.cat(list(rows)), offset_N1=offsets(lengths))

    @classmethod
    def of_ids(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Pack token ids, in host memory."""
        flat = torch.tensor([i for row in rows for i in row], dtype=torch.int32)
        return cls(flat_TD=flat, offset_N1=offsets(torch.tensor([len(r) for r in rows], dtype=torch.long)))

    @property
    def length_N(self) -> Tensor:
        """Length of every row."""
        return self.offset_N1.diff()

    def padded(self, index_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows `[U, S, D]`, zero-padded to the longest, and their lengths `[U]`."""
        start_U, length_U = self.offset_N1[index_U], self.offset_N1[index_U + 1] - self.offset_N1[index_U]
        valid_US = mask_of(length_U)
        steps_S = torch.arange(valid_US.shape[1], device=start_U.device)
        return gather(self.flat_TD, start_U[:, None] + steps_S, valid_US), length_U

    def joined(self, index_U: Tensor) -> Tensor:
        """Return the asked rows one after the other, `[sum of lengths, D]`."""
        return take(self.flat_TD, self.places(index_U))

    def places(self, index_U: Tensor) -> Tensor:
        """Return where the tokens of the asked rows lie in the flat tensor, one row after the other."""
        return ranges(self.offset_N1[index_U], self.offset_N1[index_U + 1] - self.offset_N1[index_U])


def offsets(length_N: Tensor) -> Tensor:
    """Return `[0, l_0, l_0 + l_1, ...]`, `[N + 1]`."""
    return torch.nn.functional.pad(length_N.cumsum(0), (1, 0))


def ranges(start_U: Tensor, length_U: Tensor) -> Tensor:
    """Return the places `start_u .. start_u + length_u - 1` of every u, one after the other."""
    begin_U = offsets(length_U)[:-1]
    place = torch.arange(int(length_U.sum()), device=start_U.device)
    return place + (start_U - begin_U).repeat_interleave(length_U, output_size=len(place))


def mask_of(length_U: Tensor) -> Tensor:
    """Return `[U, S]`, True at the first `length_u` steps; S is the longest."""
    longest = int(length_U.max()) if len(length_U) else 0
    return torch.arange(longest, device=length_U.device) < length_U[:, None]


def gather(flat_TD: Tensor, index_US: Tensor, valid_US: Tensor) -> Tensor:
    """Return `flat[index]` on the index's device, zero where not valid."""
    if flat_TD.device == index_US.device:
        rows = flat_TD[index_US.masked_fill(~valid_US, 0)]
        return rows.masked_fill(~valid_US.view(*valid_US.shape, *[1] * (flat_TD.dim() - 1)), 0)
    rows = torch.zeros(*index_US.shape, *flat_TD.shape[1:], dtype=flat_TD.dtype, device=index_US.device)
    rows[valid_US] = take(flat_TD, index_US[valid_US])
    return rows


def take(flat_TD: Tensor, index_X: Tensor) -> Tensor:
    """Return `flat[index]` on the index's device; only these rows are moved."""
    if flat_TD.device == index_X.device:
        return flat_TD[index_X]
    # A page-locked copy of just these rows: the device reads it while the host goes on.
    staged_XD = torch.empty(len(index_X), *flat_TD.shape[1:], dtype=flat_TD.dtype, pin_memory=True)
    torch.index_select(flat_TD, 0, index_X.cpu(), out=staged_XD)
    return staged_XD.to(index_X.device, non_blocking=True)


def batches(length_N: Tensor, batch_tokens: int) -> Iterator[Tensor]:
    """Yield row numbers, short rows first, so that rows times longest stays within `batch_tokens`.

    A row that is longer by itself comes alone.
    """
    order = length_N.argsort(stable=True)
    ascending = length_N[order].tolist()
    begin = 0
    for end, length in enumerate(ascending):
        if end > begin and length * (end + 1 - begin) > batch_tokens:
            yield order[begin:end]
            begin = end
    if begin < len(order):
        yield order[begin:]
