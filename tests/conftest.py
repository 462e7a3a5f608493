"""What every test gets: a user without settings or memories, no network, and marks for missing hardware."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports the hub's client, which reads it once: no test may wait for a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from models.weights import cache_root

# The converted base takes about 20 s to make: it is shared by all runs, unlike everything else of the user's.
_BASE_CACHE = cache_root()


@pytest.fixture(autouse=True)
def isolated_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hide the user's settings, memories and `D2A_` variables; return the home that stands in for theirs."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("D2A_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("D2A_CACHE", str(_BASE_CACHE))
    for name in ("CONFIG", "DATA", "CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    return home


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where torch finds no CUDA device."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
