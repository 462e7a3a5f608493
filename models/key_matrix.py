"""All provenance keys of a bank as one matrix, searched exactly.

Holds `KeyMatrix`, which knows no table. On disk it is mapped and not read: a process holds no keys of its own, and
those of one machine share them. Dimension key: N atoms, E routing dim, K found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from models.lexical import top_rows

# Changes whenever a saved matrix of an older version would answer differently.
FORMAT_VERSION = 1
_KEYS, _NORMS = "keys.npy", "norms.npy"


class KeyMatrix:
    """Keys of the atoms, one row an atom, and their norms."""

    def __init__(self, key_NE: np.ndarray, norm_N: np.ndarray) -> None:
        self.key_NE = key_NE
        self.norm_N = norm_N

    @classmethod
    def build(cls, shape: tuple[int, int], parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> KeyMatrix:
        """Put keys into their rows.

        Args:
            parts: Rows (int64) and their keys (float32), in any order.

        Raises:
            KeyError: A row got no key; names the first.
        """
        key_NE = np.zeros(shape, dtype=np.float32)
        for row_K, key_KE in parts:
            key_NE[row_K] = key_KE
        norm_N = np.linalg.norm(key_NE, axis=1)
        if missing := np.flatnonzero(norm_N == 0.0).tolist():  # a stored key is not zero
            raise KeyError(missing[0])
        return cls(key_NE, norm_N)

    def save(self, folder: Path) -> None:
        """Write the matrix into a folder, which is created, and wait until the disk has it.

        Nothing would tell a matrix that a power cut left half written from a whole one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in ((_KEYS, self.key_NE), (_NORMS, self.norm_N)):
            with (folder / name).open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())

    @classmethod
    def load(cls, folder: Path, shape: tuple[int, int]) -> KeyMatrix:
        """Open a saved matrix.

        Raises:
            OSError, ValueError, EOFError: There is none, it is damaged, or of another shape.
        """
        key_NE = np.load(folder / _KEYS, mmap_mode="r" if shape[0] else None)  # nothing at all cannot be mapped
        norm_N = np.load(folder / _NORMS)
        if key_NE.shape != shape or norm_N.shape != shape[:1] or key_NE.dtype != np.float32:
            raise ValueError(f"{folder} holds {key_NE.dtype} keys {key_NE.shape}, expected float32 {shape}")
        return cls(key_NE, norm_N)

    def nearest(self, key_E: np.ndarray, *, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (int64) of the keys nearest to a key, and their cosines (float64), best first, ties by row.

        Args:
            key_E: Float32, not zero.
            limit: At most so many.
        """
        row_K = np.sort(top_rows((self.key_NE @ key_E) / self.norm_N, limit))
        # The product over all rows rounds equal keys differently, so that they would not count as ties.
        key_KE = self.key_NE[row_K].astype(np.float64)
        cosine_K = (key_KE * key_E).sum(axis=1) / np.linalg.norm(key_KE, axis=1) / np.linalg.norm(key_E)
        order = np.argsort(-cosine_K, kind="stable")
        return row_K[order], cosine_K[order]
