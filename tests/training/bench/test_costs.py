"""The suite `efficiency`: which documents, which weights and which file the measurement is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import CheckpointError
from training.bench import costs
from training.bench.run import BenchRequest
from training.bench.samples import Suite
from training.datasets.context import Context


def context(number: int) -> Context:
    text = f"Boat {number} was built in Porto. It carried cork to the north. Its crew was six men."
    return Context(dataset="squad", context_id=str(number), title="", text=text, questions=(), mode="extractive")


@pytest.fixture
def asked(monkeypatch):
    """Replaces the measurement and the loading of suites; collects the requests."""
    found = []
    facts = {"dataset": "squad", "metric": "squad", "samples": (), "num_total": 0, "is_complete": False}
    # Both suites hold the same documents: a text counts once.
    suites = [Suite(name=name, contexts=tuple(map(context, range(120))), **facts) for name in ("squad", "squad_v2")]
    monkeypatch.setattr("training.bench.efficiency.run_efficiency", lambda request, on_event: found.append(request))
    monkeypatch.setattr(costs, "load_suites", lambda request: suites)
    return found


def request(out: Path, **more) -> BenchRequest:
    return BenchRequest(**{"suites": (), "out": out, "model": "gemma", "seed": 3, **more})


def test_documents_are_drawn_once_each_from_all_suites_with_the_seed(asked, tmp_path):
    for seed in (3, 3, 4):
        assert costs.measure_costs(request(tmp_path, suites=("squad",), seed=seed), print) == tmp_path
    texts = [one.documents for one in asked]
    assert len(set(texts[0])) == 100 and texts[0] == texts[1] != texts[2]
    assert "Boat" in texts[0][0][0] and len(texts[0][0]) == 3


def test_without_other_suites_only_the_invented_document_is_measured(asked, tmp_path):
    costs.measure_costs(request(tmp_path), print)
    assert asked[0].documents == () and asked[0].out == tmp_path / "efficiency.json"


def test_a_preset_without_a_trained_memory_is_measured_at_its_size_with_random_weights(asked, tmp_path):
    for model in ("gemma", "smollm2"):
        costs.measure_costs(request(tmp_path, model=model), print)
    assert [one.size for one in asked] == ["true", "trained"]


def test_a_checkpoint_that_is_named_must_be_there(asked, tmp_path):
    with pytest.raises(CheckpointError):
        costs.measure_costs(request(tmp_path, checkpoint=tmp_path / "nowhere"), print)
    assert asked == []
