"""The prompt of `d2a ask` without a question: one loaded base, one answer a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from d2a_cli import _answers, _errors, _output
from d2a_cli.commands.docs import show_documents

if TYPE_CHECKING:
    from models.memory import DocumentMemory
    from models.results import Answer

HELP = """\
Type a question. Commands:
  /explain  show the candidates of the last question, with scores and weights
  /docs     list the documents of the memory
  /help     show this
  /quit     leave (so does Ctrl-D); Ctrl-C stops an answer"""


def prompt_reader() -> Callable[[], str]:
    """Return a function that reads one line at the terminal, with a history kept between sessions."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    from models.checkpoint import data_root

    path = data_root() / "history"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    session: PromptSession[str] = PromptSession("d2a> ", history=FileHistory(str(path)))
    return session.prompt


def run(memory: DocumentMemory, read: Callable[[], str], *, explain: bool) -> None:
    """Answer lines until the end of input or `/quit`; a fault of one question does not end the session."""
    _output.note("loading the model")
    memory.warm_up()
    _output.note("ready; /help lists the commands")
    last: Answer | None = None
    while True:
        try:
            text = read().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text == "/quit":
            return
        try:
            last = _respond(memory, text, last, explain=explain)
        except KeyboardInterrupt:
            _output.line()
            _output.note("stopped")
        except Exception as error:
            if _errors.debug():
                raise
            _output.note(f"error: {_errors.one_line(error)}")


def _respond(memory: DocumentMemory, text: str, last: Answer | None, *, explain: bool) -> Answer | None:
    if text == "/help":
        _output.line(HELP)
    elif text == "/docs":
        show_documents(memory.documents())
    elif text == "/explain" and last is None:
        _output.note("there is no question yet")
    elif text == "/explain" and last is not None:
        _answers.show_candidates(last.atoms)
        _output.line(f"answerability {last.answerability:.3f}, threshold {last.threshold:.3f}")
    elif text.startswith("/"):
        _output.note(f"unknown command {text.split()[0]}; /help lists the commands")
    elif text:
        stream = _answers.AnswerStream()
        last = memory.ask(text, on_token=stream)
        _answers.show_answer(last, stream, explain=explain)
    return last
