"""The matrix of provenance keys: exact, ordered among equals, mapped from disk, and made anew when it is lost."""

import numpy as np
import pytest

from models.bank import Bank
from models.key_matrix import KeyMatrix
from tests.models.bank_samples import IDENTITY, KEY_DIM, make_tensors, put

QUERY = np.ones(KEY_DIM, dtype=np.float32)


@pytest.fixture
def bank(tmp_path):
    return Bank.open(tmp_path / "bank", IDENTITY, create=True)


def test_cosines_are_those_of_keys_of_any_length():
    keys = np.array([[1, 0], [0, 5], [3, 4]], dtype=np.float32)
    rows, cosines = KeyMatrix.build((3, 2), [(np.arange(3), keys)]).nearest(np.array([0, 2], np.float32), limit=2)
    # (0, 5) points the same way; (3, 4) . (0, 2) / (5 * 2) = 0.8
    assert (rows.tolist(), cosines.tolist()) == ([1, 2], [1.0, 0.8])


def test_equal_keys_are_ordered_by_row():
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((500, 64)).astype(np.float32)
    query, twins = rng.standard_normal(64).astype(np.float32), [3, 77, 78, 401, 499]
    keys[twins] = query
    rows, _ = KeyMatrix.build((500, 64), [(np.arange(500), keys)]).nearest(query, limit=5)
    assert rows.tolist() == twins


def test_a_row_without_a_key_is_named():
    with pytest.raises(KeyError, match="1"):
        KeyMatrix.build((3, 2), [(np.array([0, 2]), np.ones((2, 2), np.float32))])


def test_a_saved_matrix_is_mapped_and_one_of_another_shape_refused(tmp_path):
    KeyMatrix.build((2, 2), [(np.array([1, 0]), np.eye(2, dtype=np.float32))]).save(tmp_path / "keys")
    loaded = KeyMatrix.load(tmp_path / "keys", (2, 2))
    assert isinstance(loaded.key_NE, np.memmap) and loaded.key_NE.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r"expected float32 \(3, 2\)"):
        KeyMatrix.load(tmp_path / "keys", (3, 2))


def test_the_bank_keeps_one_matrix_which_follows_its_atoms(bank):
    ants = put(bank, "ants", seed=1)
    bank.search(QUERY, limit=3)
    bees = put(bank, "bees", seed=2)
    uids = [f"{d.document_id}-{n:06x}" for d in (bees, ants) for n in (2, 0)]
    expected = np.concatenate([make_tensors(3, seed=seed)["keys"][[2, 0]] for seed in (2, 1)])
    np.testing.assert_array_equal(bank.keys_by_uid(uids), expected)
    assert len(list((bank.path / "keys").glob("*"))) == 1
    bank.forget(bees.document_id)
    assert not list((bank.path / "keys").glob("*"))
    assert {uid[:16] for uid, _ in bank.search(QUERY, limit=9)} == {ants.document_id}


@pytest.mark.parametrize("fault", ["broken", "not writable"])
def test_a_lost_matrix_is_made_anew(bank, fault):
    info, keys = put(bank, "ants"), make_tensors()["keys"]
    if fault == "broken":
        bank.search(QUERY, limit=9)
        for file in (bank.path / "keys").rglob("*.npy"):
            file.write_bytes(b"{")
    else:
        (bank.path / "keys").write_text("in the way")
    fresh = Bank.open(bank.path, IDENTITY, create=False)
    best = np.argsort(-(keys @ QUERY) / np.linalg.norm(keys, axis=1))
    assert [uid for uid, _ in fresh.search(QUERY, limit=9)] == [f"{info.document_id}-{n:06x}" for n in best]
