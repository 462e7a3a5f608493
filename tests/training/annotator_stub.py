"""A chat server on the loopback interface that knows the three stages of annotation apart."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from models.config import AtomizerConfig
from training.annotation.prompts import PROBES, QUESTIONS
from training.datasets.context import Answer, Context, QAItem

SENTENCES = (
    "Harrow Mill was built in 1794 by Ada Finch.",
    "It ground oats for nine villages.",
    "A flood broke the weir of Harrow Mill in 1931.",
)
MILL = Context(
    dataset="squad",
    context_id="mill",
    title="Harrow Mill",
    text=" ".join(SENTENCES),
    questions=(
        QAItem(
            question_id="built",
            question="When was Harrow Mill built?",
            answers=(Answer(text="1794", char_start=25),),
        ),
        QAItem(question_id="owner", question="Who owned the weir?", answers=(), is_impossible=True),
    ),
    mode="extractive",
)

ATOMS_REPLY = "<atoms>{}</atoms>".format(
    "".join(
        f'<atom id="{number}" semantic_type="fact_claim" answer_bearing="yes" level="evidence" confidence="0.9">'
        f"<content>{sentence}</content><source_span>{sentence}</source_span>"
        f"<retrieval_text>mill {number}</retrieval_text></atom>"
        for number, sentence in enumerate(SENTENCES, 1)
    )
)
PROBES_REPLY = "<probes><probe>Who designed Harrow Mill?</probe><probe>What did Harrow Mill grind?</probe></probes>"


def label_xml(name: str, kind: str, gold: str = "", distractors: str = "", *, answerable: str = "yes") -> str:
    """Return one question as an annotator labels it."""
    return (
        f'<question id="{name}" type="{kind}" answerable="{answerable}"><gold>{gold}</gold>'
        f"<supporting></supporting><distractors>{distractors}</distractors></question>"
    )


LABELS_REPLY = "<questions>{}</questions>".format(
    label_xml("q_0", "temporal", "atom_0", "atom_2")
    + label_xml("q_1", "irrelevant", answerable="no")
    + label_xml("q_2", "irrelevant", distractors="atom_0", answerable="no")
    + label_xml("q_3", "field_lookup", "atom_1")
)
HONEST = {"atoms": ATOMS_REPLY, "probes": PROBES_REPLY, "questions": LABELS_REPLY}

Reply = str | tuple[str, str] | int
Script = Callable[[str, int, str], Reply]


class AnnotatorStub(ThreadingHTTPServer):
    """Answers by a script of (stage, how many requests of it came before, user message).

    A reply is a text, a text with its finish_reason, or an HTTP status without one.
    """

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.counts: Counter[str] = Counter()
        self.systems: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self.lock = threading.Lock()

    def config(self, **settings: Any) -> AtomizerConfig:
        url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        defaults = {"backend": "openai", "base_url": url, "concurrency": 2, "timeout_s": 5.0, "max_retries": 0}
        return AtomizerConfig(**{**defaults, **settings})


class _Handler(BaseHTTPRequestHandler):
    server: AnnotatorStub

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        system, user = (message["content"] for message in request["messages"])
        stage = "questions" if system.startswith(QUESTIONS.system) else "probes" if system == PROBES.system else "atoms"
        with self.server.lock:
            number = self.server.counts[stage]
            self.server.counts[stage] += 1
            self.server.systems[stage] = system
            self.server.users[stage] = user
        reply = self.server.script(stage, number, user)
        status, text, reason = (reply, "", "stop") if isinstance(reply, int) else (200, *_with_reason(reply))
        choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}
        body = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Keep the output of the tests clean."""


def _with_reason(reply: str | tuple[str, str]) -> tuple[str, str]:
    return (reply, "stop") if isinstance(reply, str) else reply
