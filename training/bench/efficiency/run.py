"""The measurement of one model: its parts in order, judged and written after each, so that a cut run keeps them.

`efficiency.json` holds `runs`, by `<model> <recipe> <size> <device type>`, each with hardware, versions, request, what
was measured, its parts, and `targets`. A run replaces the one of its own name and leaves the others.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from training.bench.efficiency.compiling import compile_part, d2l_part
from training.bench.efficiency.generating import generation_part
from training.bench.efficiency.meters import Meter
from training.bench.efficiency.product import product_part
from training.bench.efficiency.questions import questions_part
from training.bench.efficiency.request import PARTS, EfficiencyRequest
from training.bench.efficiency.storing import store_part
from training.bench.efficiency.subjects import Subject, machine, make_subject
from training.bench.efficiency.targets import judged
from training.bench.published import COMPILE_COST

FORMAT_VERSION = 1
Emit = Callable[[dict[str, Any]], None]
MEASURES: dict[str, Callable[[Subject, EfficiencyRequest, Meter], dict[str, Any]]] = {
    "compile": compile_part,
    "d2l": d2l_part,
    "questions": questions_part,
    "generation": generation_part,
    "store": store_part,
    "product": product_part,
}


def run_efficiency(request: EfficiencyRequest, on_event: Emit = lambda _: None) -> dict[str, Any]:
    """Measure what a request asks for.

    A part that runs out of memory says so in its place; the others run.

    Args:
        on_event: Called before and after each part.

    Returns:
        The run, as JSON holds it.

    Raises:
        ConfigError, BaseModelError, CheckpointError: The base or the memory cannot be made.
    """
    begin = time.perf_counter()
    subject = make_subject(request)
    load_s = round(time.perf_counter() - begin, 2)
    meter = Meter(subject.base.device)
    run = {**_facts(subject, request, meter), "load_s": load_s, "parts": {}, "targets": []}
    name = f"{request.model} {subject.spec.recipe} {request.size} {subject.base.device.type}"
    for part in (p for p in PARTS if p in request.parts):
        on_event({"event": "part", "run": name, "part": part, "status": "started"})
        begin = time.perf_counter()
        run["parts"][part] = _measured(part, subject, request, meter)
        seconds = round(time.perf_counter() - begin, 2)
        run["parts"][part] |= {"seconds": seconds, "share_s": round(request.share_s(part), 1)}
        run["targets"] = _targets(run["parts"], meter)
        if request.out is not None:
            _write(request.out, name, run)
        on_event({"event": "part", "run": name, "part": part, "status": "done", "seconds": seconds})
    return run


def _facts(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    return {
        "model": request.model,
        "size": request.size,
        **subject.facts(),
        "machine": machine(subject.base.device),
        "memory_measure": meter.memory.kind,
        "request": _told(request),
        "paper": COMPILE_COST.get(request.model, {}),
    }


def _targets(parts: dict[str, Any], meter: Meter) -> list[dict[str, Any]]:
    measured = {name: figures for name, figures in parts.items() if "failed" not in figures}
    return judged(measured, exact_memory=meter.memory.is_exact)


def _measured(part: str, subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    try:
        return MEASURES[part](subject, request, meter)
    except torch.OutOfMemoryError as error:
        return {"failed": f"out of memory: {str(error).splitlines()[0]}"}
    finally:
        gc.collect()
        if subject.base.device.type == "cuda":
            torch.cuda.empty_cache()


def _told(request: EfficiencyRequest) -> dict[str, Any]:
    """Return the request as JSON takes it, the documents by their number alone."""
    told = {**asdict(request), "documents": len(request.documents), "out": None}
    return {name: str(value) if isinstance(value, Path) else value for name, value in told.items()}


def _write(path: Path, name: str, run: dict[str, Any]) -> None:
    """Put a run into the file, whole or not at all."""
    try:
        runs = json.loads(path.read_text("utf-8"))["runs"]
    except (OSError, ValueError, KeyError):
        runs = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.tmp")
    found = {"format_version": FORMAT_VERSION, "runs": {**runs, name: run}}
    scratch.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    scratch.replace(path)
