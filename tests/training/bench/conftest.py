"""What the tests of the benchmark share: a tiny base with a memory, and atoms kept out of the user's cache."""

from pathlib import Path

import pytest

import training.bench.records
from models.base import FrozenBase
from models.network import MemoryNetwork
from tests.models.tiny import tiny_base, tiny_network


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep atoms apart from those of the user."""
    folder = tmp_path_factory.getbasetemp() / "records"
    monkeypatch.setattr(training.bench.records, "records_root", lambda: folder)
    return folder


@pytest.fixture(scope="module")
def base() -> FrozenBase:
    """A tiny Llama."""
    return tiny_base("llama")


@pytest.fixture(scope="module")
def network(base: FrozenBase) -> MemoryNetwork:
    """A memory that fits the base."""
    return tiny_network(base)
