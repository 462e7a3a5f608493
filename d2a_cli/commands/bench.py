"""`d2a bench`: memory, refusal and cost against every system of the paper; its report and its comparisons."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from d2a_cli import _bench, _errors, _options, _output, _settings

if TYPE_CHECKING:
    from training.bench.run import BenchRequest

EPILOG = (
    "Suites: squad, drop, ropes, 2wiki, qasper, longbench (or one part, longbench/hotpotqa), and more; refusal "
    "(questions without an answer, over the named suites or all), efficiency (compile cost, question latency), context "
    "(the document in the prompt, with and without the memory), all. "
    "OUT gets run.json, predictions.jsonl, summary.json, report.md and pictures. An interrupted run goes on where it "
    "stopped: run the same command again. Compare two runs with d2a bench compare A B; write a report anew with "
    "d2a bench report OUT."
)
# Suites that are made of others or ask no questions.
SPECIAL = ("refusal", "efficiency", "context")
PAPER_SUITES = ("squad", "drop", "ropes", "2wiki", "qasper", "longbench")
IN_CONTEXT = ("base+ctx", "doc2atom+ctx")
Score = Literal["f1", "rouge_l", "em", "official"]
Run = Annotated[Path, typer.Argument(help="Folder of a run, the --out of d2a bench.", metavar="RUN")]


def bench(
    suites: Annotated[list[str], typer.Argument(help="What to measure; see below.", metavar="SUITE")],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Draw so many samples a suite at random; banks stay complete.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    systems: Annotated[
        list[str] | None,
        typer.Option(
            "--systems",
            "--system",
            help="What to measure, separated by commas or given several times; 'all' for every one. "
            "Default: no-context, base+ctx, doc2atom, shuffled-document, retrieval.",
        ),
    ] = None,
    model: _options.Model = None,
    base: Annotated[Path | None, typer.Option("--base", help="Local folder of the base model.")] = None,
    recipe: Annotated[
        Literal["paper", "d2a"] | None, typer.Option(help="Recipe of the memory; default: the checkpoint's.")
    ] = None,
    checkpoint: _options.Checkpoint = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="SYSTEM=PATH", help="Trained checkpoint of another system; may be given several times."),
    ] = None,
    bank: Annotated[
        Literal["document", "all"], typer.Option(help="Ask a bank of the one document, or of all the suite's.")
    ] = "document",
    k: Annotated[
        int | None,
        typer.Option("--k", min=1, help="Atoms or passages a question; default: 3, of a bank of all the recipe's."),
    ] = None,
    protocol: Annotated[
        Literal["paper", "official"],
        typer.Option(
            help="paper: one prompt, 128 new tokens, 8,192 of context. official: LongBench's own prompts and limits "
            "for its parts and untrained systems."
        ),
    ] = "paper",
    data: Annotated[
        Path | None, typer.Option(help="Folder of evaluation sets, or of one; default: the Hugging Face hub.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/bench-MODEL-SUITES.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Questions answered at once; default: by device.")] = None,
    device: _options.DeviceChoice = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on where an earlier run into --out stopped, or start over.")
    ] = True,
    json: _options.Json = False,
) -> None:
    """Measure memory, refusal and cost against other systems.

    Against every system of the paper, on official data and metrics. Prints tables of scores with 95 % intervals, and
    writes a report; every prediction is kept.
    """
    from training.bench.run import BenchRequest

    chosen = _settings.load(
        {"preset": model, "device": device, "base_path": base, "checkpoint": checkpoint}
    ).memory_config()
    plan = _plan(suites, _split(systems or ()))
    request = BenchRequest(
        suites=plan.suites,
        data=data,
        systems=plan.systems,
        model=chosen.preset,
        recipe=recipe,
        checkpoint=chosen.checkpoint,
        baselines=_baselines(baseline or ()),
        bank=bank,
        k=k,
        protocol=protocol,
        limit=limit,
        seed=seed,
        batch=batch,
        device=chosen.device,
        base_path=chosen.base_path,
        out=out or _default_out(chosen.preset, suites),
        resume=resume,
    )
    _run(request, costs=plan.costs)
    _report(request.out, json=json)


def _run(request: BenchRequest, *, costs: bool) -> None:
    from training.bench.costs import measure_costs
    from training.bench.run import run_bench

    try:
        with _bench.bench_progress() as on_event:
            if request.suites:
                run_bench(request, on_event)
            if costs:
                measure_costs(request, on_event)
    except KeyboardInterrupt:
        _output.note(f"stopped; rows are kept in {request.out}. Run the same command again to go on")
        raise


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of one run or of two.", metavar="A [B]")],
    systems: Annotated[
        tuple[str, str] | None, typer.Option("--systems", metavar="X Y", help="Two systems of the one run A.")
    ] = None,
    score: Annotated[Score, typer.Option(help="What to compare.")] = "f1",
    json: _options.Json = False,
) -> None:
    """Compare two runs, or two systems of one, sample by sample.

    Differences are B - A over the samples that both have, with paired bootstrap 95 % intervals.
    """
    from training.bench.compare import compare_runs, compare_systems, warnings
    from training.bench.results import read_results
    from training.bench.tables import comparison_table

    if len(runs) == 2 and systems is None:
        a, b = map(read_results, runs)
        for warning in warnings(a, b):
            _output.note(f"warning: {warning}")
        found, names = compare_runs(a, b, score=score), ("A", "B")
    elif len(runs) == 1 and systems is not None:
        found, names = compare_systems(read_results(runs[0]), *systems, score=score), systems
    else:
        raise _errors.UsageError(
            "compare takes two runs, or one run and two systems",
            hint="d2a bench compare A B, or d2a bench compare A --systems base+ctx doc2atom",
        )
    if json:
        rows = [{**asdict(row), "verdict": row.verdict} for row in found]
        _output.emit_json({"a": names[0], "b": names[1], "score": score, "comparisons": rows})
        return
    _bench.show_tables([comparison_table(f"{names[1]} against {names[0]}, {score}", found, a=names[0], b=names[1])])


def report(run: Run, json: _options.Json = False) -> None:
    """Write the report of a run anew, from its rows.

    For a run that was made, or broken off, on another machine.
    """
    _report(run, json=json)


def _report(folder: Path, *, json: bool) -> None:
    from training.bench.report import terminal_tables, write_report

    summary = write_report(folder)
    if json:
        _output.emit_json(summary)
    else:
        _bench.show_tables(terminal_tables(folder, summary))
    _bench.show_faults(summary)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What the names on the command line stand for; `costs` asks for the suite `efficiency`."""

    suites: tuple[str, ...]
    systems: tuple[str, ...]
    costs: bool


def _plan(suites: Sequence[str], systems: Sequence[str]) -> _Plan:
    """Return full names, each once: `efficiency` asks no questions, and `context` is a choice of sets and systems.

    Raises:
        UsageError: A name is unknown; the message names close matches.
    """
    from training.bench.suites import GROUPS, SUITES

    for name in suites:
        whole, is_refusal = name.removeprefix("refusal/"), name.startswith("refusal/")
        # A command that was mistyped arrives here as the first suite.
        also = () if is_refusal else ("compare", "report")
        _require_known("suite", whole, (*SUITES, *GROUPS, *(() if is_refusal else SPECIAL)), also=also)
    from training.bench.systems import DEFAULT_SYSTEMS, SYSTEMS  # loads torch: a mistyped suite need not wait for it

    for name in systems:
        _require_known("system", name, (*SYSTEMS, "all"))
    asked = [n for n in suites if n not in ("efficiency", "context")]
    if "all" in suites:
        asked.append("refusal")
    elif "context" in suites:
        asked += PAPER_SUITES
    if not systems and {"context", "all"} & set(suites):
        systems = (*(DEFAULT_SYSTEMS if set(suites) != {"context"} else ()), *IN_CONTEXT)
    return _Plan(
        suites=tuple(dict.fromkeys(asked)),
        systems=SYSTEMS if "all" in systems else tuple(dict.fromkeys(systems or DEFAULT_SYSTEMS)),
        costs=bool({"efficiency", "all"} & set(suites)),
    )


def _split(names: Iterable[str]) -> tuple[str, ...]:
    """Return names that came in one option or several, in order, each once."""
    return tuple(dict.fromkeys(part for name in names for part in name.replace(",", " ").split()))


def _require_known(what: str, name: str, known: Iterable[str], *, also: Sequence[str] = ()) -> None:
    """Raise UsageError with the nearest known names, or `also` ones, unless `name` is known."""
    known = list(dict.fromkeys(known))
    if name in known:
        return
    near = difflib.get_close_matches(name, [*known, *also], n=3)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Known: {', '.join(known)}"
    raise _errors.UsageError(f"unknown {what} {name!r}", hint=hint)


def _baselines(given: Iterable[str]) -> dict[str, Path]:
    """Return the checkpoints of other systems by name, from `SYSTEM=PATH`."""
    from training.bench.systems import SYSTEMS

    found = {}
    for pair in given:
        name, separator, path = pair.partition("=")
        if not separator or not path:
            raise _errors.UsageError(
                f"--baseline must be SYSTEM=PATH, got {pair!r}", hint="For example: --baseline d2l-raw=runs/d2l"
            )
        _require_known("system", name, SYSTEMS)
        if not Path(path).exists():
            raise _errors.UsageError(f"--baseline {name}: {path} does not exist", hint="Train it: d2a train --system")
        found[name] = Path(path)
    return found


def _default_out(model: str, suites: Sequence[str]) -> Path:
    return Path("runs") / "-".join(("bench", Path(model).stem, *(suite.replace("/", "_") for suite in suites)))
