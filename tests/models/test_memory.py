"""`DocumentMemory`: answers, refusals, contexts, listing, forgetting, and clear errors."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import models.base
import models.engine
import models.memory
import models.prompts
from models.engine import Engine
from models.errors import BankError, CheckpointError, ConfigError
from models.memory import DocumentMemory
from tests.models.tiny import FAMILIES
from tests.models.worlds import QUESTION, SPECS, TOWN, changed, filled, memory_config, write_preset


@pytest.fixture(autouse=True)
def exact_and_fast(monkeypatch):
    """Compute in float32 on every machine, over a short prompt: the tiny tokenizer takes a token a character."""
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: torch.float32)
    monkeypatch.setattr(models.prompts, "INSTRUCTION", "Answer.")


@pytest.fixture
def memory(tmp_path):
    return filled(tmp_path)


def says(monkeypatch, text):
    """Let the model answer `text`."""
    monkeypatch.setattr(Engine, "finish", lambda *_, **__: (text, 1, 0.0))


@pytest.mark.parametrize("recipe", SPECS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_recipe_ingests_and_answers_under_its_memory(tmp_path, monkeypatch, family, recipe):
    started, start = [], Engine.start
    monkeypatch.setattr(Engine, "start", lambda *a, **k: started.append(start(*a, **k)) or started[-1])
    memory = filled(tmp_path, family, spec=SPECS[recipe])
    answer = memory.ask(QUESTION)
    assert (answer.recipe, answer.context) == (SPECS[recipe].recipe, "none")
    # The weights are random: an answer may be empty, which counts as the model's own refusal.
    assert answer.refused_by in (None, "model") and (answer.status == "answered") == (answer.refused_by is None)
    assert sum(a.selected for a in answer.atoms) == 6  # all atoms of both documents, fewer than K = 8
    assert sum(a.weight for a in answer.atoms) <= 1.0 + 1e-5
    engine = memory._load()
    bare = engine.start(QUESTION, None).start.next_logits_BV
    assert (started[0].start.next_logits_BV - bare).abs().max() > 0.05


def test_the_answer_streams_and_the_candidates_come_first(memory):
    pieces, routed = [], []
    answer = memory.ask(QUESTION, on_token=pieces.append, on_routed=lambda atoms: routed.append((atoms, len(pieces))))
    assert "".join(pieces).strip() == answer.text
    assert routed == [(answer.atoms, 0)]
    assert set(answer.timings) == {
        "load_ms", "route_ms", "compose_ms", "first_token_ms", "generate_ms", "total_ms"
    }  # fmt: skip
    json.dumps(answer.to_dict())


def test_selected_atoms_stand_before_the_others_best_first(memory):
    atoms = changed(memory, top_k=2).ask(QUESTION).atoms
    assert [a.selected for a in atoms] == [True, True, False, False, False, False]
    assert [a.score for a in atoms] == sorted((a.score for a in atoms), reverse=True)
    assert all(a.weight == 0.0 for a in atoms[2:]) and atoms[0].weight > 0.0
    assert atoms[0].lexical == max(a.lexical for a in atoms) and "Marn" in atoms[0].content


def test_a_supported_answer_cites_the_atom_that_holds_it(memory, monkeypatch):
    says(monkeypatch, "Ilse Kant")
    answer = memory.ask(QUESTION)
    assert answer.supported
    assert answer.citations[0].quote == "Ilse Kant was born in Marn."
    assert (answer.citations[0].source, answer.citations[0].page_label) == (memory.document("town.txt").sources[0], "1")


def test_an_answer_that_no_atom_holds_is_marked(memory, monkeypatch):
    says(monkeypatch, "Napoleon")
    answer = memory.ask(QUESTION)
    assert (answer.status, answer.supported, len(answer.citations) > 0) == ("answered", False, True)


def test_the_threshold_parts_answers_from_refusals(memory):
    sure = memory.ask(QUESTION).answerability
    assert 0.0 < sure < 1.0
    for threshold, refused_by in ((0.0, None), (sure - 1e-6, None), (sure + 1e-6, "gate"), (1.0, "gate")):
        answer = changed(memory, threshold=threshold).ask(QUESTION)
        assert answer.refused_by == refused_by, threshold
        assert answer.threshold == threshold


def test_a_refusal_generates_and_cites_nothing(memory, monkeypatch):
    monkeypatch.setattr(Engine, "finish", lambda *_, **__: pytest.fail("generated"))
    answer = changed(memory, threshold=1.0).ask(QUESTION)
    assert (answer.status, answer.text, answer.refused_by) == ("unanswerable", "unanswerable", "gate")
    assert (answer.citations, answer.supported, answer.num_tokens) == ((), False, 0)


def test_the_gate_of_the_checkpoint_decides_by_default(memory):
    # coefficients (0, 6, 0, 0), bias -2, threshold 0.5: refused where the best word score is below 1/3.
    for question, status in ((QUESTION, "answered"), ("What does a barrister charge?", "unanswerable")):
        answer = changed(memory, threshold=None).ask(question)
        top = max(a.lexical for a in answer.atoms)
        assert answer.answerability == pytest.approx(1 / (1 + torch.tensor(2 - 6 * top).exp().item()), abs=1e-5)
        assert (answer.threshold, answer.status) == (0.5, status)


@pytest.mark.parametrize("text", ["unanswerable", "Unanswerable.", ""])
def test_the_models_own_refusal_is_told_apart_from_the_gates(memory, monkeypatch, text):
    says(monkeypatch, text)
    answer = memory.ask(QUESTION)
    assert (answer.status, answer.refused_by, answer.text) == ("unanswerable", "model", "unanswerable")
    assert answer.citations == ()


def test_on_irrelevant_base_answers_with_the_untouched_base(memory):
    base = changed(memory, threshold=1.0, on_irrelevant="base")
    answer, engine = base.ask(QUESTION), memory._load()
    assert answer.text == engine.finish(engine.start(QUESTION, None), max_new_tokens=6)[0]
    assert answer.text != memory.ask(QUESTION).text
    assert (answer.status, answer.refused_by, answer.citations) == ("answered", "gate", ())
    assert not answer.supported


# --- text beside the memory


def seen_contexts(monkeypatch) -> list[str | None]:
    seen, original = [], models.engine.prompt_ids
    monkeypatch.setattr(
        models.engine, "prompt_ids", lambda t, question, context: seen.append(context) or original(t, question, context)
    )
    return seen


def test_context_none_puts_no_text_into_the_prompt(memory, monkeypatch):
    seen = seen_contexts(monkeypatch)
    memory.ask(QUESTION)
    assert seen == [None]


def test_context_atoms_gives_the_weighty_atoms_best_first(memory, monkeypatch):
    monkeypatch.setattr(models.memory, "CONTEXT_WEIGHT", 0.1)
    seen = seen_contexts(monkeypatch)
    answer = changed(memory, context="atoms").ask(QUESTION)
    weighty = [a.content for a in answer.atoms if a.weight > 0.1]
    assert seen == [" ".join(weighty)] and 0 < len(weighty) < 6


def test_context_document_gives_the_best_atoms_document(memory, monkeypatch):
    seen = seen_contexts(monkeypatch)
    changed(memory, context="document").ask(QUESTION)
    assert seen == [TOWN]


def test_a_long_document_is_windowed_around_the_best_atom(tmp_path, monkeypatch):
    filler = [f"Hen number {n} sleeps in the barn." for n in range(40)]
    text = " ".join([*filler[:20], "Ilse Kant was born in Marn.", *filler[20:]])
    monkeypatch.setattr(models.memory, "DOCUMENT_WINDOW_CHARS", 400)
    (tmp_path / "long.txt").write_text(text, "utf-8")
    memory = DocumentMemory(memory_config(tmp_path, threshold=0.0, context="document", top_k=1))
    memory.ingest([str(tmp_path / "long.txt")])
    seen = seen_contexts(monkeypatch)
    memory.ask(QUESTION)
    memory.ask("Where sleeps hen number 39?")
    assert all(len(window) == 400 and window in text for window in seen)
    assert abs(seen[0].index("Ilse Kant") - 200) < 40
    assert seen[1] == text[-400:]


# --- forgetting and listing


def test_forgotten_documents_answer_no_more(memory):
    gone = memory.forget("town.txt")
    assert gone.num_atoms == 3
    assert {a.document_title for a in memory.ask(QUESTION).atoms} == {"zoo"}
    assert memory.status().num_atoms == 3
    memory.forget("zoo.txt")
    with pytest.raises(BankError, match=r"holds no atoms.*d2a ingest"):
        memory.ask(QUESTION)


def test_documents_are_found_by_path_name_and_id(memory, tmp_path, monkeypatch):
    expected = memory.document("town")
    monkeypatch.chdir(tmp_path)
    for ref in (expected.document_id[:6], "town.txt", str(tmp_path / "town.txt"), "./town.txt"):
        assert memory.document(ref) == expected
    with pytest.raises(BankError, match="nonesuch"):
        memory.document("nonesuch")


def test_status_tells_what_the_bank_holds_without_loading_a_model(memory, monkeypatch):
    monkeypatch.setattr(Engine, "load", lambda *_: pytest.fail("the model was loaded"))
    status = changed(memory).status()
    assert (status.exists, status.preset, status.recipe, status.num_documents, status.num_atoms) == (
        True, "tiny", "d2a", 2, 6
    )  # fmt: skip
    assert status.documents_by_status == {"ok": 2} and status.bank_bytes > 1000


def test_a_bank_that_is_not_there_lists_nothing_and_answers_nothing(tmp_path):
    memory = DocumentMemory(memory_config(tmp_path))
    assert memory.documents() == [] and not memory.status().exists
    assert memory.status().bank_checkpoint_fingerprint is memory.status().mismatch is None
    with pytest.raises(BankError, match=r"there is no bank.*d2a ingest FILE"):
        memory.ask(QUESTION)
    assert not memory.config.bank.exists()


# --- refusing to start


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(memory, question):
    with pytest.raises(ConfigError, match=r"question is empty.*d2a ask"):
        memory.ask(question)


def test_a_preset_without_a_checkpoint_refuses_and_names_the_command(tmp_path):
    (tmp_path / "town.txt").write_text(TOWN, "utf-8")
    config = replace(memory_config(tmp_path), checkpoint=None)
    for use in (lambda m: m.ingest([str(tmp_path / "town.txt")]), lambda m: m.ask(QUESTION), lambda m: m.warm_up()):
        with pytest.raises(CheckpointError, match=r"no trained memory.*d2a train --model tiny.*--checkpoint PATH"):
            use(DocumentMemory(config))
    assert not config.bank.exists()


def test_a_checkpoint_of_another_preset_is_refused(tmp_path):
    config = memory_config(tmp_path)
    other = replace(config, preset=str(write_preset(tmp_path, "llama", name="other")))
    with pytest.raises(ConfigError, match=r"is for preset tiny, not other.*--model tiny"):
        DocumentMemory(other).status()


def test_the_python_api_imports_nothing_heavy():
    code = (
        "import sys, models.memory, pathlib\n"
        "from models.config import MemoryConfig\n"
        "models.memory.DocumentMemory(MemoryConfig(bank=pathlib.Path('nowhere'))).documents()\n"
        "print([m for m in ('torch', 'transformers', 'lancedb', 'pyarrow', 'openai', 'pypdf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
