"""Shards: only the asked rows, in their order, and never half a file."""

import pytest
import torch
from safetensors import safe_open

from models import shards
from models.errors import BankError


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "z": torch.randn(4, 3, generator=generator),
        "scale": torch.rand(4, generator=generator),
        "states": torch.randn(6, 2, generator=generator).bfloat16(),
        # Atom 0 owns rows 0-1, atom 1 none, atom 2 row 2, atom 3 rows 3-5.
        "states.offsets": torch.tensor([0, 2, 2, 3, 6]),
        "codes": torch.randint(-128, 128, (4, 2, 2), generator=generator, dtype=torch.int8),
    }


def test_rows_come_back_bit_for_bit_in_the_order_asked_for(tmp_path, tensors):
    path = tmp_path / "shards é" / "a.safetensors"
    assert shards.write_shard(path, tensors) == path.stat().st_size
    rows = shards.read_rows(path, [3, 0, 1, 3])
    assert sorted(rows) == ["codes", "scale", "states", "z"]
    expected = {
        "z": [tensors["z"][i] for i in (3, 0, 1, 3)],
        "scale": [tensors["scale"][i] for i in (3, 0, 1, 3)],
        "codes": [tensors["codes"][i] for i in (3, 0, 1, 3)],
        "states": [tensors["states"][a:b] for a, b in ((3, 6), (0, 2), (2, 2), (3, 6))],
    }
    for name, values in expected.items():
        for got, want in zip(rows[name], values, strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_slices_of_one_batch_can_be_written(tmp_path, tensors):
    batch = torch.arange(24.0).reshape(4, 6)
    shards.write_shard(tmp_path / "a", {"left": batch[:, :3], "right": batch[:, 3:], "first": batch[:4]})
    rows = shards.read_rows(tmp_path / "a", [1])
    assert (rows["left"][0].tolist(), rows["right"][0].tolist()) == ([6, 7, 8], [9, 10, 11])


@pytest.mark.parametrize("row", [-1, 4])
@pytest.mark.parametrize("name", ["z", "states"])
def test_a_row_that_is_not_there_is_an_error(tmp_path, tensors, row, name):
    names = {"z"} if name == "z" else {"states", "states.offsets"}
    shards.write_shard(tmp_path / "a", {k: v for k, v in tensors.items() if k in names})
    with pytest.raises(BankError, match=f"shard a cannot be read: {name} has 4 atoms, asked for number {row}"):
        shards.read_rows(tmp_path / "a", [row])


@pytest.mark.parametrize("content", [None, b"", b"\x08", b"x" * 64])
def test_a_missing_or_broken_file_is_an_error(tmp_path, content):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(BankError, match="shard a cannot be read"):
        shards.read_rows(tmp_path / "a", [0])


def test_a_write_that_fails_leaves_the_old_shard(tmp_path, tensors, monkeypatch):
    shards.write_shard(tmp_path / "a", {"z": tensors["z"]})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.os, "fsync", full)
    with pytest.raises(BankError, match=r"shard a cannot be written: .*No space left"):
        shards.write_shard(tmp_path / "a", {"z": -tensors["z"]})
    torch.testing.assert_close(shards.read_rows(tmp_path / "a", [2])["z"][0], tensors["z"][2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": torch.zeros(3, 3)}, "one number of atoms"),
        ({"states.offsets": torch.tensor([0, 2, 2, 3, 5])}, "must run from 0 to 6"),
        ({"states.offsets": torch.tensor([0, 3, 2, 3, 6])}, "must not decrease"),
        ({"states.offsets": torch.tensor([0, 2, 6])}, "one number of atoms"),
    ],
)
def test_a_layout_that_could_not_be_read_back_is_refused(tmp_path, tensors, change, message):
    with pytest.raises(AssertionError, match=message):
        shards.write_shard(tmp_path / "a", tensors | change)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_row_does_not_read_the_others(tmp_path, monkeypatch):
    shards.write_shard(tmp_path / "a", {"z": torch.arange(4000.0).reshape(1000, 4)})
    reads = []

    class Spy:
        def __init__(self, file):
            self._file = file

        def keys(self):
            return self._file.keys()

        def get_slice(self, name):
            part = self._file.get_slice(name)
            spy = type(
                "Slice", (), {"get_shape": part.get_shape, "__getitem__": lambda _, i: reads.append(i) or part[i]}
            )
            return spy()

    with safe_open(tmp_path / "a", framework="pt") as file:
        assert shards._read_row(Spy(file), "z", 7, ragged=False).tolist() == [28, 29, 30, 31]
    assert reads == [slice(7, 8)]
