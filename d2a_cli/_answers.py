"""How an answer is shown: as it comes, with its citations, its reasons, or as JSON."""

from __future__ import annotations

from typing import Any

from d2a_cli import _errors, _output
from models.results import Answer, RoutedAtom

REFUSAL = "unanswerable"
UNSUPPORTED = "not supported by the memory's atoms"

# What `d2a ask --json` writes, as field -> meaning; `answer_json` writes exactly these.
ANSWER_SCHEMA: dict[str, Any] = {
    "status": "answered | unanswerable | error",
    "question": "text",
    "answer": "text; 'unanswerable' for a refusal, null for an error",
    "answerability": "0 to 1",
    "threshold": "0 to 1; below it the gate refuses",
    "refused_by": "gate | model | null",
    "supported": "whether a routed atom contains the answer",
    "citations": [
        {
            "document_id": "hex",
            "document_title": "text",
            "source": "path",
            "page_index": "from 0",
            "page_label": "as printed",
            "quote": "verbatim from the document",
            "char_start": "offset in the document's text",
            "char_end": "offset in the document's text",
            "atom_uid": "text",
            "weight": "0 to 1",
            "holds_answer": "whether the quote contains the answer",
        }
    ],
    "atoms": [
        {
            "uid": "text",
            "document_id": "hex",
            "document_title": "text",
            "page_label": "as printed",
            "content": "text",
            "cosine": "-1 to 1",
            "lexical": "0 to 1",
            "rerank": "number or null",
            "score": "number; 0 is the null slot's",
            "weight": "0 to 1",
            "selected": "whether it was written into the model",
            "refusal_logprob": "nats under this atom alone, or null where the model did not read it",
        }
    ],
    "context": "none | atoms | document",
    "recipe": "d2a | paper",
    "timings": "milliseconds by step: load_ms, route_ms, compose_ms, first_token_ms, generate_ms, total_ms",
    "num_tokens": "of the answer",
}


class AnswerStream:
    """Prints an answer as it comes, but holds back what may turn out to be the word `unanswerable`.

    A refusal is decided at its end, and a reader of the pipe must get exactly that one word.
    """

    def __init__(self) -> None:
        self._held = ""
        self.is_open = False

    def __call__(self, token: str) -> None:
        if not self.is_open:
            self._held = (self._held + token).lstrip()
            if REFUSAL.startswith(self._held.rstrip(" .\n").lower()):
                return
            token, self._held, self.is_open = self._held, "", True
        _output.write(token)

    def finish(self, answer: Answer) -> None:
        """End the line, printing the whole answer where nothing of it has been shown."""
        _output.line("" if self.is_open else answer.text)


def show_answer(answer: Answer, stream: AnswerStream, *, explain: bool) -> None:
    """Print what follows the streamed text: citations or the reason of a refusal."""
    if answer.status == "error":
        _output.note(f"error: {answer.text}")
        return
    stream.finish(answer)
    if answer.status == "unanswerable":
        _output.note(refusal_reason(answer))
    else:
        if not answer.supported:
            _output.line(f"[!] {UNSUPPORTED}")
        for number, citation in enumerate(answer.citations, start=1):
            title = _output.sanitize(citation.document_title, one_line=True)
            page = _output.sanitize(citation.page_label, one_line=True)
            quote = _output.sanitize(citation.quote, one_line=True)
            _output.line(f'[{number}] {title}, p. {page}: "{quote}"')
    if explain:
        _output.line()
        show_candidates(answer.atoms)
        _output.line(f"answerability {answer.answerability:.3f}, threshold {answer.threshold:.3f}")


def refusal_reason(answer: Answer) -> str:
    """Return why there is no answer, with the numbers that decided."""
    if answer.refused_by == "gate":
        return (
            f"refused by the gate: answerability {answer.answerability:.3f} < threshold {answer.threshold:.3f}. "
            "See the candidates with --explain"
        )
    if answer.refused_by == "model":
        return (
            f"refused by the model, after the gate had let it pass: answerability {answer.answerability:.3f} >= "
            f"threshold {answer.threshold:.3f}. See the candidates with --explain"
        )
    return "refused: no atom of the memory fits. Check what it holds with d2a docs list"


def show_candidates(atoms: tuple[RoutedAtom, ...]) -> None:
    """Print the router's candidates, the heaviest first."""
    rows = [
        (
            "*" if a.selected else "",
            a.uid,
            f"{a.cosine:.3f}",
            f"{a.lexical:.3f}",
            "-" if a.rerank is None else f"{a.rerank:.3f}",
            "-" if a.refusal_logprob is None else f"{a.refusal_logprob:.3f}",
            f"{a.score:.3f}",
            f"{a.weight:.3f}",
            a.page_label,
            a.document_title,
            a.content,
        )
        for a in sorted(atoms, key=lambda a: (-a.weight, -a.score))
    ]
    headers = (
        "used",
        "atom",
        "cosine",
        "lexical",
        "rerank",
        "refusal",
        "score",
        "weight",
        "page",
        "document",
        "content",
    )
    _output.table(headers, rows)


def answer_json(answer: Answer) -> dict[str, Any]:
    """Return the JSON form of `ANSWER_SCHEMA`."""
    form = answer.to_dict()
    form["answer"] = form.pop("text")
    return {key: form[key] for key in ANSWER_SCHEMA}


def error_json(question: str | None, error: BaseException) -> dict[str, Any]:
    """Return what `ask --json` writes where no answer came about: the reason and the next step beside the status."""
    message, hint, _ = _errors.describe(error)
    return {"status": "error", "question": question, "answer": None, "error": message, "next_step": hint}


def exit_code(answer: Answer) -> int:
    """Return 0 for an answer, 3 for a refusal, 1 for an error."""
    return {"answered": 0, "unanswerable": _errors.EXIT_UNANSWERABLE}.get(answer.status, _errors.EXIT_ERROR)
