"""`d2a ask`: a question to the memory, or a prompt for many."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from d2a_cli import _answers, _errors, _options, _output, _repl
from models.config import ContextMode, OnIrrelevant
from models.results import Answer

EPILOG = (
    "Without a QUESTION it opens a prompt on a terminal and reads the question from a pipe. A question that starts "
    "with '-' goes after '--': d2a ask -- '-40 degrees is what?'. "
    "Exit codes: 0 answered, 3 unanswerable, 2 usage, 1 error, 130 interrupted. "
    "With --json: " + ", ".join(_answers.ANSWER_SCHEMA) + "; on an error: status, question, answer, error, next_step."
)


class QuestionCommand(TyperCommand):
    """Says what to do where a question was taken for options or for several arguments."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse; a fault over something that reads like a question says how to write it."""
        try:
            return super().parse_args(ctx, list(args))
        except typer.TyperException as error:
            if any(a.startswith("-") and (" " in a or a[1:2].isdigit()) for a in args):
                error.message += ". A question that starts with '-' goes after '--': d2a ask -- \"-5 ...\""
            elif "unexpected extra argument" in error.message:
                error.message += '. Put the question in quotes: d2a ask "When was it signed?"'
            raise


def ask(
    question: Annotated[str | None, typer.Argument(help="The question; put it in quotes.", metavar="QUESTION")] = None,
    context: Annotated[ContextMode | None, typer.Option(help="Text in the prompt beside the memory.")] = None,
    on_irrelevant: Annotated[
        OnIrrelevant | None, typer.Option(help="When nothing fits: refuse, or use the base.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Atoms written into the model.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Answerability, 0 to 1, below which the gate refuses.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the candidates with scores and weights.")] = False,
    json: _options.Json = False,
    bank: _options.Bank = None,
    model: _options.Model = None,
    checkpoint: _options.Checkpoint = None,
    device: _options.DeviceChoice = None,
    attn: _options.AttentionChoice = None,
) -> None:
    """Answer from the memory, with citations.

    Says 'unanswerable' where the memory does not hold the answer.
    """
    flags = {
        "context": context,
        "on_irrelevant": on_irrelevant,
        "top_k": top_k,
        "threshold": threshold,
        "max_new_tokens": max_new_tokens,
        "bank": bank,
        "preset": model,
        "checkpoint": checkpoint,
        "device": device,
        "attention": attn,
    }
    if question is None and not json and _output.is_terminal(sys.stdin) and _output.is_terminal(sys.stdout):
        _repl.run(_options.open_memory(**flags), _repl.prompt_reader(), explain=explain)
        return
    if json:
        answer = _ask_as_json(question, flags)
    else:
        question = _require(question)
        stream = _answers.AnswerStream()
        answer = _options.open_memory(**flags).ask(question, on_token=stream)
        _answers.show_answer(answer, stream, explain=explain)
    raise typer.Exit(_answers.exit_code(answer))


def _ask_as_json(question: str | None, flags: dict[str, Any]) -> Answer:
    """Write one JSON object whatever happens; the error itself goes on to its line and exit code."""
    try:
        question = _require(question)
        answer = _options.open_memory(**flags).ask(question)
    except Exception as error:
        _output.emit_json(_answers.error_json(question, error))
        raise
    _output.emit_json(_answers.answer_json(answer))
    return answer


def _require(question: str | None) -> str:
    """Return the question, from the pipe where the command line has none; never wait for a terminal."""
    if question is None and sys.stdin is not None and not _output.is_terminal(sys.stdin):
        question = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    if question is None or not question.strip():
        raise _errors.UsageError("there is no question", hint='Ask one: d2a ask "When was it signed?"')
    return question.strip()
