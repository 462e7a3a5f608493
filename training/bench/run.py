"""`run_bench`: every system on every suite, in a fixed order, into a folder that an interrupted run goes on in.

    folder = run_bench(BenchRequest(suites=("squad",), data=Path("data"), limit=100, out=Path("runs/bench")), print)

Holds the request and the loop. Suites are `training.bench.suites`, systems `training.bench.systems`, rows
`training.bench.scoring`; what is made of the rows is the report's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.bench.samples import REFUSAL_SUITES, Row, Suite, is_refusal_suite

if TYPE_CHECKING:
    from models.base import FrozenBase
    from models.checkpoint import CheckpointMeta
    from models.network import MemoryNetwork
    from models.presets import Preset
    from training.bench.answering import Answerer
    from training.bench.bank import SuiteBank
    from training.bench.systems import System

Event = dict[str, Any]
Emit = Callable[[Event], None]
# Samples that are computed and written together: a kill loses at most these, and batches are sorted among them.
CPU_CHUNK, GPU_CHUNK = 128, 4096


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """What to measure.

    Args:
        suites: Names of `training.bench.suites`; `refusal` beside others is the refusal suite of each of them.
        data: Folder of the sets; None for the hub.
        systems: Rows of the table; empty for the default ones.
        recipe: That the checkpoint must have; None takes any.
        baselines: Trained checkpoint of a system.
        bank: `document` or `all`.
        k: Atoms or passages a question; None for 3 of a document, and the recipe's K of a whole suite.
        limit: Samples a suite.
        batch: Questions at once at most; None for as many as fit.
        out: Folder of the run.
        resume: Go on with the rows that are there.
    """

    suites: tuple[str, ...]
    out: Path
    data: Path | None = None
    systems: tuple[str, ...] = ()
    model: str = "smollm2"
    recipe: str | None = None
    checkpoint: Path | None = None
    baselines: Mapping[str, Path] = field(default_factory=dict)
    bank: str = "document"
    k: int | None = None
    protocol: str = "paper"
    limit: int | None = None
    seed: int = 0
    batch: int | None = None
    device: str = "auto"
    base_path: Path | None = None
    resume: bool = True


def run_bench(request: BenchRequest, on_event: Emit) -> Path:
    """Measure, and write the header and the rows.

    Args:
        on_event: Called with each event: `suite`, `system`, `rows`, `done`.

    Returns:
        The folder of the run.

    Raises:
        D2AError: Before any row: data, a base or a metric's package is missing, a name is unknown, or the folder holds
            another run.
    """
    run = _Run(request, load_suites(request), on_event)
    for suite in run.suites:
        run.measure(suite)
    on_event({"event": "done", "out": str(request.out)})
    return request.out


def load_suites(request: BenchRequest) -> list[Suite]:
    """Load the suites of a request, each refusal suite behind the one that it is made of.

    `refusal` beside other names means those that they name, of `all` those of its group; the ones that have no question
    without an answer are left out.
    """
    from training.bench.refusal_samples import refusal
    from training.bench.suites import GROUPS, load_suite
    from training.bench.suites.assemble import draw

    limit, seed = request.limit, request.seed
    plain = [name for name in request.suites if not is_refusal_suite(name)]
    whole = {suite.name: suite for name in plain for suite in load_suite(name, request.data)}
    named, made = [name for name in request.suites if name not in plain], []
    if plain and REFUSAL_SUITES in named:
        named.remove(REFUSAL_SUITES)
        measured = (*plain, *GROUPS[REFUSAL_SUITES])
        made = [refusal(suite, seed, limit=limit) for name, suite in whole.items() if name in measured]
    made += [suite for name in named for suite in load_suite(name, request.data, limit=limit, seed=seed)]
    found = {name: replace(suite, samples=draw(suite.samples, limit, seed)) for name, suite in whole.items()}
    found |= {suite.name: suite for suite in made if any(sample.kind != "answerable" for sample in suite.samples)}
    order = [name.removeprefix(f"{REFUSAL_SUITES}/") for name in found]
    return sorted(found.values(), key=lambda suite: order.index(suite.name.removeprefix(f"{REFUSAL_SUITES}/")))


class _Run:
    """A run with everything loaded, its header written and its rows open."""

    def __init__(self, request: BenchRequest, suites: Sequence[Suite], emit: Emit) -> None:
        from models.base import load_base
        from models.presets import load_preset
        from training.bench.bank import Shelf
        from training.bench.journal import Journal, parts_of
        from training.bench.metrics import score
        from training.bench.results import HEADER, ROWS
        from training.bench.systems import DEFAULT_SYSTEMS

        self.request, self.suites, self.emit = request, suites, emit
        for suite in suites:
            for sample in suite.samples[:1]:
                score(suite.metric, "-", sample)  # a package that a metric lacks is missed before hours of answers
        self.preset = load_preset(request.model)
        self.base = load_base(self.preset, base_path=request.base_path, device=request.device)
        self.network, self.meta, self.no_memory = _memory(request, self.preset, self.base)
        self.systems: dict[str, System] = {}
        facts = {name: self._built(name) for name in request.systems or DEFAULT_SYSTEMS}
        self.chunk = GPU_CHUNK if self.base.device.type == "cuda" else CPU_CHUNK
        self.header = self._header(facts)
        old = request.out / HEADER
        resume = request.resume and old.is_file()
        if resume:
            self._go_on(json.loads(old.read_text("utf-8")))
        parts = parts_of(suites, list(self.systems))
        self.journal = Journal(request.out / ROWS, parts, chunk=self.chunk, resume=resume)
        self._write_header()
        self.shelf = Shelf()

    def measure(self, suite: Suite) -> None:
        """Ask every system every sample that has no row yet."""
        number = len(suite.samples)
        self.emit({"event": "suite", "suite": suite.name, "total": number, "systems": list(self.systems)})
        waiting = [name for name in self.systems if self.journal.done(suite.name, name) < number]
        if not waiting:
            return
        bank, answerer = self._prepared(suite)
        for name in waiting:
            self.emit({"event": "system", "suite": suite.name, "system": name, "status": "started"})
            started = time.monotonic()
            for begin in range(self.journal.done(suite.name, name), number, self.chunk):
                rows = range(begin, min(begin + self.chunk, number))
                self.journal.write(self._chunk(suite, bank, answerer, self.systems[name], rows))
            seconds = self.header["seconds"].setdefault(suite.name, {})
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - started, 1)
            self._write_header()

    def _chunk(
        self, suite: Suite, bank: SuiteBank, answerer: Answerer, system: System, rows: Sequence[int]
    ) -> list[Row]:
        from training.bench.scoring import row_of

        done = rows[0]

        def tell(number: int) -> None:
            nonlocal done
            done += number
            event = {"event": "rows", "suite": suite.name, "system": system.name, "done": done}
            self.emit({**event, "total": len(suite.samples)})

        replies = answerer.answer(system, bank, rows, on_done=tell)
        ranks = [bank.bm25_rank(row) if reply.is_routed else None for row, reply in zip(rows, replies, strict=True)]
        return [
            row_of(suite, system.name, suite.samples[row], reply, bm25_rank=rank)
            for row, reply, rank in zip(rows, replies, ranks, strict=True)
        ]

    def _prepared(self, suite: Suite) -> tuple[SuiteBank, Answerer]:
        from models.router import AnswerabilityGate
        from training.bench.answering import Answerer
        from training.bench.bank import SuiteBank
        from training.bench.protocols import protocol_for
        from training.bench.systems.prompts import Prompts

        bank = SuiteBank(
            self.base,
            self.network,
            suite,
            kind=self.request.bank,
            top_k=self.header["k"],
            seed=self.request.seed,
            shelf=self.shelf,
        )
        prompts = Prompts(self.base, protocol_for(self.request.protocol, suite))
        self.header["suites"][suite.name] |= {**bank.facts(), **prompts.facts()}
        self._write_header()
        gate = None if self.meta is None else AnswerabilityGate.of(self.meta.gate)
        return bank, Answerer(self.base, gate, prompts, max_rows=self.request.batch)

    def _built(self, name: str) -> dict[str, Any]:
        """Build a system; return what the header says of it."""
        from models.errors import CheckpointError
        from training.bench.header import domain_of
        from training.bench.systems import build_system

        try:
            system, own = build_system(
                name, self.base, self.network, preset=self.preset.name, checkpoint=self.request.baselines.get(name)
            )
        except CheckpointError as error:
            why = self.no_memory if self.network is None and self.no_memory else str(error)
            self.emit({"event": "system", "suite": "", "system": name, "status": "unavailable", "why": why})
            return {"status": "unavailable", "why": why}
        self.systems[name] = system
        training = own.training if own else self.meta.training if system.is_trained else None
        if training is None:
            return {"status": "ok", "domain": {}}
        return {"status": "ok", "domain": {s.name: domain_of(training, s.dataset) for s in self.suites}}

    def _header(self, systems: dict[str, Any]) -> dict[str, Any]:
        from training.bench.bank import default_k
        from training.bench.header import command_of, machine, suite_facts

        request, meta = self.request, self.meta
        return {
            "command": command_of(request),
            "model": self.preset.name,
            "base": self.base.fingerprint(),
            "checkpoint": meta.fingerprint if meta else None,
            "recipe": meta.spec.recipe if meta else None,
            "threshold": meta.gate["threshold"] if meta else None,
            "baselines": {name: str(path) for name, path in request.baselines.items()},
            "protocol": request.protocol,
            "bank": request.bank,
            "k": request.k or default_k(request.bank, self.network),
            "limit": request.limit,
            "seed": request.seed,
            "batch": request.batch,
            "chunk": self.chunk,
            **machine(self.base),
            "suites": {suite.name: suite_facts(suite) for suite in self.suites},
            "systems": systems,
            "seconds": {},
        }

    def _go_on(self, old: dict[str, Any]) -> None:
        """Take over what an earlier run of the same request found out."""
        from training.bench.header import check_same

        check_same(old, self.header, self.request.out)
        self.header["seconds"] = old.get("seconds", {})
        for name, facts in self.header["suites"].items():
            self.header["suites"][name] = {**old["suites"][name], **facts}

    def _write_header(self) -> None:
        from training.bench.header import write_header

        write_header(self.request.out, self.header)


def _memory(
    request: BenchRequest, preset: Preset, base: FrozenBase
) -> tuple[MemoryNetwork | None, CheckpointMeta | None, str]:
    """Load the trained memory; where a preset has none, return why, for the rows that need one."""
    from models.checkpoint import find_checkpoint, load_network
    from models.errors import CheckpointError

    try:
        folder = find_checkpoint(preset, request.checkpoint)
    except CheckpointError as error:
        if request.checkpoint is not None:
            raise
        return None, None, str(error)
    network, meta = load_network(folder, base)
    if request.recipe not in (None, meta.spec.recipe):
        raise CheckpointError(
            f"{folder} was trained with recipe {meta.spec.recipe}, got {request.recipe}",
            hint=f"Train one with `d2a train --model {preset.name} --recipe {request.recipe}`",
        )
    return network, meta, ""
