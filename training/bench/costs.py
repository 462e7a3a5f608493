"""The suite `efficiency`: what memory costs, on a benchmark's own documents beside an invented one.

Holds the step from a benchmark's request to a measurement's; measuring is `training.bench.efficiency`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.bench.results import EFFICIENCY
from training.bench.run import BenchRequest, load_suites
from training.bench.samples import is_refusal_suite

# Documents drawn from all suites together; the paper takes the mean over its benchmark's.
NUM_DOCUMENTS = 100


def measure_costs(request: BenchRequest, on_event: Callable[[dict[str, Any]], None]) -> Path:
    """Measure what the memory of a benchmark costs, into its folder.

    Args:
        request: Its suites give the documents; without any, only an invented document is compiled.

    Returns:
        The folder.

    Raises:
        D2AError: Data, a base or a memory is missing.
    """
    from training.bench.efficiency import EfficiencyRequest, run_efficiency

    run_efficiency(
        EfficiencyRequest(
            model=request.model,
            recipe=request.recipe,
            size="trained" if _is_trained(request) else "true",
            device=request.device,
            documents=_documents(request),
            base_path=request.base_path,
            checkpoint=request.checkpoint,
            seed=request.seed,
            out=request.out / EFFICIENCY,
        ),
        on_event,
    )
    return request.out


def _is_trained(request: BenchRequest) -> bool:
    """Return whether a trained memory is here; random weights of the published shape cost the same."""
    from models.checkpoint import find_checkpoint
    from models.errors import CheckpointError
    from models.presets import load_preset

    try:
        find_checkpoint(load_preset(request.model), request.checkpoint)
    except CheckpointError:
        if request.checkpoint is not None:
            raise
        return False
    return True


def _documents(request: BenchRequest) -> tuple[tuple[str, ...], ...]:
    """Return documents of the suites, drawn at random with the seed, each as the texts of its atoms."""
    from training.bench.records import bench_records

    if not request.suites:
        return ()
    # Refusal suites have the documents of others.
    suites = tuple(name for name in request.suites if not is_refusal_suite(name)) or request.suites
    loaded = load_suites(replace(request, suites=suites))
    texts = {context.text: context for suite in loaded for context in suite.contexts}
    drawn = random.Random(request.seed).sample(list(texts.values()), min(NUM_DOCUMENTS, len(texts)))
    records = bench_records(drawn)
    return tuple(tuple(atom.content for atom in record.atoms) for record in records if record.atoms)
