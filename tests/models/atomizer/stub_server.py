"""A chat server on the loopback interface that answers by a script, and the parts of its answers."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from models.config import AtomizerConfig
from models.documents import Document, Page

SENTENCES = (
    "The Orrel bridge was opened by Ada Finch.",
    "Its toll was four pence for a loaded cart.",
    "A storm carried off the middle arch in 1902.",
    "Repairs took eleven months and two foremen.",
)


@dataclass(kw_only=True)
class Answer:
    """What the stub sends back: a status, a body, and how many of its bytes."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    num_bytes_sent: int | None = None
    delay_s: float = 0.0


Script = Callable[[str, int], Answer]


class Stub(ThreadingHTTPServer):
    """A chat server that answers by a script of (passage, how often it was asked for before)."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.passages: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


Serve = Callable[[Script], Stub]


class _Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = request["messages"][-1]["content"]
        passage = re.search(r"<passage>\n(.*)\n</passage>", user, re.DOTALL)[1]
        with self.server.lock:
            num_before = self.server.passages.count(passage)
            self.server.passages.append(passage)
            self.server.requests.append({**request, "authorization": self.headers["Authorization"]})
        answer = self.server.script(passage, num_before)
        time.sleep(answer.delay_s)
        is_text = isinstance(answer.body, str)
        body = (answer.body if is_text else json.dumps(answer.body)).encode()
        self.send_response(answer.status)
        headers = {"Content-Type": "text/html" if is_text else "application/json", "Content-Length": str(len(body))}
        for name, value in (headers | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        # A client that gave up waiting has closed the connection.
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: answer.num_bytes_sent])
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Keep the output of the tests clean."""


def completion(content: str | None, *, finish_reason: str = "stop", num_input: int = 900) -> Answer:
    return Answer(
        body={
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "stub",
            "choices": [
                {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": content}}
            ],
            "usage": {"prompt_tokens": num_input, "completion_tokens": 20, "total_tokens": num_input + 20},
        }
    )


def atoms_xml(*spans: str, relation: str = "") -> str:
    return "<atoms>" + "".join(atom_xml(s, i, relation) for i, s in enumerate(spans, 1)) + "</atoms>"


def atom_xml(span: str, number: int = 1, relation: str = "") -> str:
    return (
        f'<atom id="{number}" semantic_type="fact_claim" answer_bearing="yes" level="evidence" confidence="0.9">'
        f"<content>It holds that {span}</content><source_span>{span}</source_span>"
        f"<retrieval_text>{span[:12]}</retrieval_text>{relation}</atom>"
    )


def honest(passage: str, num_before: int = 0) -> Answer:
    return completion(atoms_xml(*(s for s in SENTENCES if s in passage)))


def document(text: str = " ".join(SENTENCES)) -> Document:
    return Document(
        source="bridge.txt",
        title="The Orrel bridge",
        media_type="text/plain",
        text=text,
        pages=(Page(index=0, label="iv", char_start=0, char_end=len(text)),),
    )


def config(stub: Stub, **settings: Any) -> AtomizerConfig:
    # 12 tokens of 4 bytes: every sentence is a window of its own.
    defaults = {"backend": "openai", "base_url": stub.url, "window_tokens": 12, "concurrency": 1, "timeout_s": 5.0}
    return AtomizerConfig(**{**defaults, **settings})
