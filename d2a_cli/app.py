"""Wires the commands into `d2a`; imports nothing heavy, so that help and completion are quick."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from d2a_cli import _errors, _output
from d2a_cli.commands import annotate, ask, atoms, bench, config, docs, doctor, export, ingest, status, train


class _Commands(TyperGroup):
    """Runs a command so that every fault becomes one line and an exit code."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        with _errors.reported():
            return super().invoke(ctx)

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> tuple[Any, ...]:  # type: ignore[override]
        """Let a command have a name of two words beside one that takes any arguments: `bench compare`."""
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


# Plain help: rich's would read brackets in help texts as markup, wrap errors into boxes and double the start-up time.
_PLAIN = {"rich_markup_mode": None, "no_args_is_help": True, "pretty_exceptions_show_locals": False}
app = typer.Typer(name="d2a", cls=_Commands, pretty_exceptions_enable=False, **_PLAIN)
docs_app = typer.Typer(help="List, show and forget documents.", **_PLAIN)
config_app = typer.Typer(help="Show and change settings.", **_PLAIN)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            _output.line(f"d2a {version('d2a')}")
        except PackageNotFoundError:
            _output.line("d2a (not installed)")
        raise typer.Exit


@app.callback()
def d2a(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Personal document memory: documents become atoms, atoms become parameters of a frozen language model."""


app.command("ingest")(ingest.ingest)
app.command("ask", cls=ask.QuestionCommand, epilog=ask.EPILOG)(ask.ask)
app.command("atoms")(atoms.atoms)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("annotate")(annotate.annotate)
app.command("train")(train.train)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.command("bench compare")(bench.compare)
app.command("bench report")(bench.report)
app.command("export")(export.export)
docs_app.command("list")(docs.list_documents)
docs_app.command("show")(docs.show)
docs_app.command("forget")(docs.forget)
config_app.command("show")(config.show)
config_app.command("set")(config.set_)
config_app.command("path")(config.path)
app.add_typer(docs_app, name="docs")
app.add_typer(config_app, name="config")


def main() -> None:
    """Run `d2a`: the entry point of the installed command."""
    _output.use_utf8()
    _output.route_logs(debug=_errors.debug())
    # Threads of torch that spin for milliseconds while they wait make a busy machine several times slower; those that
    # sleep at once, a quiet one by a third.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    app(prog_name="d2a")


if __name__ == "__main__":
    main()
