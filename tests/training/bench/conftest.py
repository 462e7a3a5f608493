"""What the tests of the benchmark share: atoms are kept in a folder of the test run, not in the user's cache."""

from pathlib import Path

import pytest

import training.bench.records


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep atoms apart from those of the user."""
    folder = tmp_path_factory.getbasetemp() / "records"
    monkeypatch.setattr(training.bench.records, "records_root", lambda: folder)
    return folder
