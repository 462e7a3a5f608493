"""Fixtures for the atomizer backends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.models.atomizer.stub_server import Script, Serve, Stub


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    # The client waits at least this long between two tries of its own.
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    stubs: list[Stub] = []

    def start(script: Script) -> Stub:
        stub = Stub(script)
        threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        stubs.append(stub)
        return stub

    yield start
    for stub in stubs:
        stub.shutdown()
        stub.server_close()
