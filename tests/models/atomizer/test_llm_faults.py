"""Claims about everything that a server can do wrong, one fault a test."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import pytest

from models.atomizer.chat import ChatClient
from models.atomizer.llm import MAX_FAILURES_AT_START, MAX_REASKS, OpenAIAtomizer
from models.atomizer.prompts import DECOMPOSITION
from models.config import AtomizerConfig
from models.errors import AtomizerError
from tests.models.atomizer.stub_server import (
    SENTENCES,
    Answer,
    Serve,
    atoms_xml,
    completion,
    config,
    document,
    honest,
)


def test_a_429_is_repeated_after_the_time_the_server_names(serve: Serve) -> None:
    def limited(passage: str, num_before: int) -> Answer:
        if passage == SENTENCES[1] and num_before == 0:
            return Answer(status=429, headers={"Retry-After": "1"}, body={"error": {"message": "slow down"}})
        return honest(passage)

    stub = serve(limited)
    start_s = time.monotonic()
    result = OpenAIAtomizer(config(stub)).atomize(document())
    assert time.monotonic() - start_s >= 1.0
    assert Counter(stub.passages)[SENTENCES[1]] == 2
    assert len(stub.passages) == 5
    assert result.meta.num_failed_windows == 0


def test_a_connection_cut_within_a_reply_is_repeated(serve: Serve) -> None:
    def cut(passage: str, num_before: int) -> Answer:
        answer = honest(passage)
        answer.num_bytes_sent = 80 if passage == SENTENCES[2] and num_before == 0 else None
        return answer

    stub = serve(cut)
    result = OpenAIAtomizer(config(stub)).atomize(document())
    assert Counter(stub.passages)[SENTENCES[2]] == 2
    assert (len(result.atoms), result.meta.num_failed_windows) == (4, 0)


USELESS = {
    "empty and cut": completion("", finish_reason="length"),
    "no content": completion(None),
    "only thinking": completion("<think>Let me see, the bridge", finish_reason="length"),
    "the prompt": completion(DECOMPOSITION.system),
    "an empty list": completion("<atoms></atoms>"),
    "invented quotations": completion(atoms_xml("The bridge is made of glass.")),
    "a page": Answer(body="<html><body>Gateway</body></html>"),
    "a page called JSON": Answer(body="<html>", headers={"Content-Type": "application/json"}),
    "no choices": Answer(body={"id": "1", "choices": []}),
    "an error with status 200": Answer(body={"error": {"message": "overloaded"}}),
    "a list": Answer(body=[1, 2]),
}


@pytest.mark.parametrize("answer", USELESS.values(), ids=USELESS.keys())
def test_a_useless_reply_is_asked_for_again_with_a_note(answer: Answer, serve: Serve) -> None:
    stub = serve(lambda passage, num_before: honest(passage) if num_before else answer)
    result = OpenAIAtomizer(config(stub)).atomize(document(SENTENCES[0]))
    assert [a.source_span for a in result.atoms] == [SENTENCES[0]]
    assert len(stub.requests) == 2
    assert "of no use" not in stub.requests[0]["messages"][-1]["content"]
    assert "of no use" in stub.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("answer", USELESS.values(), ids=USELESS.keys())
def test_a_model_that_only_sends_useless_replies_never_succeeds(answer: Answer, serve: Serve) -> None:
    stub = serve(lambda passage, num_before: answer)
    with pytest.raises(AtomizerError, match=r"no window of bridge\.txt gave an atom \(1 tried\)"):
        OpenAIAtomizer(config(stub)).atomize(document(SENTENCES[0]))
    assert len(stub.requests) == 1 + MAX_REASKS


def test_a_spent_quota_stops_the_job_at_the_first_request(serve: Serve) -> None:
    fault = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    stub = serve(lambda passage, num_before: Answer(status=429, body=fault))
    with pytest.raises(AtomizerError, match=r"quota of the key in OPENAI_API_KEY .* \(0 of 4 windows done\)\. Add"):
        OpenAIAtomizer(config(stub)).atomize(document())
    assert len(stub.passages) == 1


@pytest.mark.parametrize(
    ("status", "match"), [(401, "refuses the key: Error code: 401.*OPENAI_API_KEY"), (404, "has no model 'MiniMax")]
)
def test_a_refusal_of_every_request_stops_the_job_at_once(
    status: int, match: str, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    fault = {"error": {"message": "Not with sk-very-secret"}}
    stub = serve(lambda passage, num_before: Answer(status=status, body=fault))
    with pytest.raises(AtomizerError, match=match) as caught:
        OpenAIAtomizer(config(stub)).atomize(document())
    assert len(stub.passages) == 1
    assert stub.requests[0]["authorization"] == "Bearer sk-very-secret"
    assert "sk-very-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [Answer(body={"choices": []}), Answer(status=500, body={})], ids=["asked again", "repeated by the client"]
)
def test_a_refusal_does_not_wait_for_the_request_under_way_and_lets_it_ask_no_more(
    answer: Answer, serve: Serve
) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()

    def refusing(passage: str, num_before: int) -> Answer:
        if passage == SENTENCES[0]:
            is_under_way.wait(3)
            return Answer(status=401, body={"error": {"message": "no"}})
        is_under_way.set()
        may_end.wait(3)
        return answer

    stub = serve(refusing)
    start_s = time.monotonic()
    with pytest.raises(AtomizerError, match="refuses the key"):
        OpenAIAtomizer(config(stub, concurrency=2)).atomize(document())
    assert time.monotonic() - start_s < 3
    may_end.set()
    time.sleep(0.3)
    assert sorted(stub.passages) == sorted(SENTENCES[:2])


def test_after_a_refusal_the_client_sends_nothing_more(serve: Serve) -> None:
    stub = serve(lambda passage, num_before: Answer(status=401, body={"error": {"message": "no"}}))
    client = ChatClient(config(stub))
    messages = DECOMPOSITION.messages(title="", passage="")
    for _ in range(3):
        with pytest.raises(AtomizerError, match="refuses the key"):
            client.complete(messages)
    assert len(stub.requests) == client.num_calls == 1


def test_a_server_that_fails_every_window_is_given_up_early(serve: Serve) -> None:
    stub = serve(lambda passage, num_before: Answer(status=400, body={"error": {"message": "context too small"}}))
    text = " ".join(f"The pier of number {i} stands on red clay." for i in range(40))
    with pytest.raises(AtomizerError, match=r"the first 8 windows all failed: HTTP 400: .*context too small"):
        OpenAIAtomizer(config(stub)).atomize(document(text))
    assert MAX_FAILURES_AT_START <= len(stub.passages) <= MAX_FAILURES_AT_START + 1


def test_an_option_that_the_server_does_not_know_is_renamed_or_dropped(serve: Serve) -> None:
    def reasoning_model(passage: str, num_before: int) -> Answer:
        request = stub.requests[-1]
        for name in ("max_tokens", "temperature"):
            if name in request:
                return Answer(
                    status=400, body={"error": {"message": f"Unsupported parameter: '{name}'", "param": name}}
                )
        return honest(passage)

    stub = serve(reasoning_model)
    assert len(OpenAIAtomizer(config(stub, max_output_tokens=77)).atomize(document()).atoms) == 4
    # Two requests teach the client, and each of the four windows then takes one.
    assert len(stub.requests) == 6
    assert stub.requests[-1]["max_completion_tokens"] == 77


def test_a_limit_that_is_too_large_is_not_simply_left_out(serve: Serve) -> None:
    fault = {"error": {"message": "max_tokens is too large: 4096. The context length is 2048"}}
    stub = serve(lambda passage, num_before: Answer(status=400, body=fault))
    with pytest.raises(AtomizerError, match="max_tokens is too large"):
        OpenAIAtomizer(config(stub)).atomize(document(SENTENCES[0]))
    assert all("max_tokens" in r for r in stub.requests)


def test_a_prompt_that_the_server_cut_is_reported(serve: Serve) -> None:
    stub = serve(lambda passage, num_before: completion(atoms_xml(passage), num_input=100))
    result = OpenAIAtomizer(config(stub)).atomize(document(SENTENCES[0]))
    assert any("seems to have cut" in w for w in result.meta.warnings)


def test_a_server_that_hangs_fails_the_window_in_bounded_time(serve: Serve) -> None:
    def hanging(passage: str, num_before: int) -> Answer:
        answer = honest(passage)
        answer.delay_s = 2.0 if passage == SENTENCES[0] else 0.0
        return answer

    stub = serve(hanging)
    result = OpenAIAtomizer(config(stub, timeout_s=0.3, max_retries=1, concurrency=2)).atomize(document())
    assert [a.source_span for a in result.atoms] == list(SENTENCES[1:])
    assert "no reply within 0.3 s" in result.meta.warnings[0]
    assert Counter(stub.passages)[SENTENCES[0]] == 2


def test_a_server_that_is_not_there_is_named_with_the_next_step(serve: Serve) -> None:
    stub = serve(honest)
    stub.shutdown()
    stub.server_close()
    url = stub.url.replace("//", "//user:password@")
    with pytest.raises(AtomizerError, match=rf"cannot connect to {stub.url}: .*Check base_url"):
        OpenAIAtomizer(config(stub, max_retries=0, base_url=url)).atomize(document())


def test_the_official_endpoint_without_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    atomizer = OpenAIAtomizer(AtomizerConfig(backend="openai", api_key_env="MY_KEY"))
    with pytest.raises(AtomizerError, match=r"MY_KEY is not set\. Set MY_KEY"):
        atomizer.atomize(document())


def test_a_base_url_without_a_scheme_is_refused() -> None:
    atomizer = OpenAIAtomizer(AtomizerConfig(backend="openai", base_url="localhost:8080/v1"))
    with pytest.raises(AtomizerError, match="base_url must start with http:// or https://, got 'localhost:8080/v1'"):
        atomizer.atomize(document())


def test_the_key_reaches_no_log(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    OpenAIAtomizer(config(serve(honest))).atomize(document(SENTENCES[0]))
    assert caplog.records
    assert "sk-very-secret" not in caplog.text
