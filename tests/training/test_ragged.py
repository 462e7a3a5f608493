"""Rows of different length in one tensor: padding, joining, batches, and the way to a GPU."""

import pytest
import torch

from training.features.ragged import Ragged, batches, take


def test_ragged_rows_come_back_padded_with_zeros_in_the_asked_order():
    rows = [torch.full((n, 2), float(n)) for n in (3, 1, 2)]
    padded, lengths = Ragged.of(rows).padded(torch.tensor([1, 2, 1]))
    assert lengths.tolist() == [1, 2, 1]
    assert padded[..., 0].tolist() == [[1, 0], [2, 2], [1, 0]]


def test_ragged_token_ids_pad_alike_and_join():
    ragged = Ragged.of_ids([[7, 8], [], [9]])
    assert ragged.padded(torch.tensor([2, 0, 1]))[0].tolist() == [[9, 0], [7, 8], [0, 0]]
    assert ragged.joined(torch.tensor([2, 1, 0, 2])).tolist() == [9, 7, 8, 9]


def test_padding_is_zero_whatever_the_first_row_holds():
    ragged = Ragged.of([torch.tensor([torch.inf]), torch.tensor([1.0, 2.0])])
    assert ragged.padded(torch.tensor([1, 0]))[0].tolist() == [[1, 2], [torch.inf, 0]]


def test_batches_are_short_rows_first_and_within_the_limit():
    # Sorted 2 3 3 9 20: 2 x 3 = 6 fit into 8, a third row would make 9; 9 and 20 each come alone.
    found = list(batches(torch.tensor([20, 3, 9, 2, 3]), 8))
    assert [b.tolist() for b in found] == [[3, 1], [4], [2], [0]]


@pytest.mark.gpu
def test_rows_in_host_memory_are_moved_to_the_device():
    flat = torch.randn(50, 3)
    index = torch.tensor([4, 49, 4, 0], device="cuda")
    for kept in (flat, flat.pin_memory()):
        torch.testing.assert_close(take(kept, index), flat.cuda()[index])
