"""`DocumentMemory` on disk: compact and full stores, banks of another checkpoint, rebuilding, and export to PEFT."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import models.base
import models.prompts
from models.bank import Bank
from models.bank_files import read_identity, write_identity
from models.errors import BankError, ConfigError
from models.ingestion import backup_of
from models.injection import attached
from models.memory import DocumentMemory
from models.routing import route_question
from tests.models.tiny import FAMILIES, random_ids
from tests.models.worlds import QUESTION, SPECS, ZOO, base_folder, changed, filled, write_checkpoint


@pytest.fixture(autouse=True)
def exact_and_fast(monkeypatch):
    """Compute in float32 on every machine, over a short prompt: the tiny tokenizer takes a token a character."""
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: torch.float32)
    monkeypatch.setattr(models.prompts, "INSTRUCTION", "Answer.")


@pytest.fixture
def memory(tmp_path):
    return filled(tmp_path)


# Where atoms share a LoRA the stores are one and the same.
@pytest.mark.parametrize("recipe", [name for name, spec in SPECS.items() if spec.lora == "atom"])
def test_compact_and_full_stores_answer_identically(tmp_path, recipe):
    answers = []
    for store in ("compact", "full"):
        (tmp_path / store).mkdir()
        memory = filled(tmp_path / store, "qwen3", spec=SPECS[recipe], store=store)
        assert memory.status().store == store
        answers.append(memory.ask(QUESTION))
    compact, full = answers
    assert compact.text == full.text and compact.answerability == pytest.approx(full.answerability, abs=1e-6)
    assert [(a.uid, a.weight) for a in compact.atoms] == [(a.uid, a.weight) for a in full.atoms]


def test_a_bank_keeps_its_store_where_none_is_asked_for(tmp_path):
    memory = filled(tmp_path, store="full")
    assert changed(memory, store=None).ask(QUESTION).status == "answered"
    with pytest.raises(BankError, match=r"differs in store.*--rebuild"):
        changed(memory, store="compact").ask(QUESTION)


def test_a_full_store_of_a_shared_lora_is_the_compact_one(tmp_path):
    memory = filled(tmp_path, spec=SPECS["d2a with one LoRA"], store="full")
    assert memory.status().store == read_identity(memory.config.bank).store == "compact"
    answers = [changed(memory, store=store).ask(QUESTION).text for store in ("full", "compact", None)]
    assert answers == [answers[0]] * 3


def test_a_bank_of_a_shared_lora_that_was_called_full_opens_under_every_store_until_a_rebuild_renames_it(tmp_path):
    memory = filled(tmp_path, spec=SPECS["d2a with one LoRA"])
    before = memory.ask(QUESTION)
    write_identity(memory.config.bank, replace(read_identity(memory.config.bank), store="full"))
    for store in ("full", "compact", None):
        again = changed(memory, store=store)
        assert again.status().mismatch is None and again.ask(QUESTION).atoms == before.atoms
        assert [i.outcome for i in again.ingest([str(tmp_path / "town.txt")]).items] == ["unchanged"]
    again.rebuild()
    assert (again.status().store, again.ask(QUESTION).text) == ("compact", before.text)


def retrained(memory: DocumentMemory, tmp_path: Path) -> DocumentMemory:
    """Return a memory over the same bank under another checkpoint."""
    return changed(memory, checkpoint=write_checkpoint(tmp_path / "retrained", "llama", seed=2))


def test_a_bank_of_another_checkpoint_is_refused_with_the_command(memory, tmp_path):
    other = retrained(memory, tmp_path)
    for use in (lambda: other.ask(QUESTION), lambda: other.ingest([str(tmp_path / "zoo.txt")])):
        with pytest.raises(BankError, match=r"differs in checkpoint_fingerprint: it was made with tiny .*--rebuild"):
            use()
    assert [d.title for d in other.documents()] == [d.title for d in memory.documents()]


def stored_in_int8(memory: DocumentMemory, tmp_path: Path) -> DocumentMemory:
    """Return a memory over the same bank whose checkpoint differs in nothing but how it stores states."""
    folder = tmp_path / "int8"
    shutil.copytree(memory.config.checkpoint, folder)
    meta = json.loads((folder / "memory.json").read_text("utf-8"))
    meta["spec"]["kv"]["store"] = "int8"
    (folder / "memory.json").write_text(json.dumps(meta), "utf-8")
    return changed(memory, checkpoint=folder)


def test_a_bank_of_states_in_another_format_is_refused_until_it_is_rebuilt(memory, tmp_path):
    other = stored_in_int8(memory, tmp_path)
    with pytest.raises(BankError, match=r"differs in .*kv_store: .*micro-KV entry\).*micro-KV entry-int8\).*--rebuild"):
        other.ask(QUESTION)
    before, [wide] = memory.ask(QUESTION), shards_of(memory, "zoo.txt")
    other.rebuild()
    [narrow] = shards_of(other, "zoo.txt")
    assert (wide.dtype, narrow.dtype) == (torch.bfloat16, torch.int8)
    assert other.ask(QUESTION).text == before.text


def shards_of(memory: DocumentMemory, ref: str) -> list[torch.Tensor]:
    return memory._open_both()[0].load_shard_rows([memory.atoms(ref)[0].uid])["entry"]


def test_a_bank_of_another_checkpoint_is_a_fault_that_a_rebuild_mends(memory, tmp_path):
    assert memory.bank_faults() == []
    [fault] = retrained(memory, tmp_path).bank_faults()
    assert "differs in checkpoint_fingerprint" in fault.message and fault.harmful
    assert fault.next_step == "Run: d2a ingest --rebuild"


def test_status_tells_what_the_bank_was_made_with_beside_what_is_in_use(memory, tmp_path):
    own, other = memory.status(), retrained(memory, tmp_path)
    assert own.bank_checkpoint_fingerprint == own.checkpoint_fingerprint and own.mismatch is None
    status = other.status()
    assert status.bank_checkpoint_fingerprint == own.checkpoint_fingerprint != status.checkpoint_fingerprint
    assert status.bank_base_fingerprint == status.base_fingerprint
    assert other.bank_faults()[0].message in status.mismatch and "`d2a ingest --rebuild`" in status.mismatch
    other.rebuild()
    assert other.status().bank_checkpoint_fingerprint == status.checkpoint_fingerprint
    assert other.status().mismatch is None


def test_rebuilding_makes_the_bank_the_new_checkpoints_and_keeps_everything_else(memory, tmp_path, monkeypatch):
    (tmp_path / "copy.txt").write_text(ZOO, "utf-8")
    (tmp_path / "empty.txt").write_text("", "utf-8")
    memory.ingest([str(tmp_path / "copy.txt"), str(tmp_path / "empty.txt")])
    before, atoms = memory.documents(), memory.atoms("town.txt")
    other, steps = retrained(memory, tmp_path), []
    with monkeypatch.context() as patch:
        patch.setattr("models.atomizer.rules.RulesAtomizer.atomize", lambda *_, **__: pytest.fail("decomposed"))
        report = other.rebuild(on_progress=steps.append)
    assert [i.outcome for i in report.items] == ["replaced", "replaced"]
    assert {(s.stage, s.atoms, s.num_atoms) for s in steps} == {("compile", 3, 3)}
    assert [(d.title, d.sources, d.status, d.reason) for d in other.documents()] == [
        (d.title, d.sources, d.status, d.reason) for d in before
    ]
    assert [d.status for d in other.documents()] == ["ok", "ok", "failed"]
    assert other.atoms("town.txt") == atoms
    assert other.ask(QUESTION).status == "answered"
    assert read_identity(other.config.bank).checkpoint_fingerprint == other.status().checkpoint_fingerprint
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["bank", "checkpoint", "retrained"]
    # The old memory is still open, as in a session of questions beside the rebuild.
    with pytest.raises(BankError, match="checkpoint_fingerprint"):
        memory.ask(QUESTION)


def test_rebuilding_equals_ingesting_anew(memory, tmp_path):
    other = retrained(memory, tmp_path)
    other.rebuild()
    fresh = changed(other, bank=tmp_path / "fresh")
    fresh.ingest([str(tmp_path / "town.txt"), str(tmp_path / "zoo.txt")])
    ours, theirs = other.ask(QUESTION), fresh.ask(QUESTION)
    assert (ours.text, ours.atoms, ours.answerability) == (theirs.text, theirs.atoms, theirs.answerability)


def test_a_rebuild_keeps_other_writers_waiting(memory, tmp_path):
    writer = Bank.open(memory.config.bank, read_identity(memory.config.bank), create=False, lock_timeout_s=0.01)
    refused = []

    def write_beside(_progress):
        with pytest.raises(BankError, match="has been writing for more than"):
            writer.begin("/late.txt", "ab" * 32)
        refused.append(True)

    retrained(memory, tmp_path).rebuild(on_progress=write_beside)
    assert refused
    # The lock is free again, but the bank is the new checkpoint's now.
    with pytest.raises(BankError, match="differs in checkpoint_fingerprint"):
        writer.begin("/late.txt", "ab" * 32)


def test_a_rebuild_can_change_the_store(memory):
    compact, full = memory.ask(QUESTION), changed(memory, store="full")
    full.rebuild()
    assert (full.status().store, full.ask(QUESTION).text) == ("full", compact.text)


@pytest.mark.parametrize("scratch", [False, True])
def test_an_interrupted_swap_is_undone(memory, scratch):
    bank = memory.config.bank
    bank.rename(backup_of(bank))
    if scratch:
        bank.with_name(f"{bank.name}.rebuilding").mkdir()
    again = changed(memory)
    assert len(again.documents()) == 2 and not backup_of(bank).exists()
    assert again.ask(QUESTION).status == "answered"


def test_what_a_finished_swap_left_behind_does_not_stop_the_next_rebuild(memory, tmp_path):
    backup_of(memory.config.bank).mkdir()
    (backup_of(memory.config.bank) / "rest").write_text("", "utf-8")
    other = retrained(memory, tmp_path)
    other.rebuild()
    assert other.ask(QUESTION).status == "answered" and not backup_of(memory.config.bank).exists()


@pytest.mark.parametrize(
    ("family", "recipe", "composition"),
    [
        *((family, recipe, "linear") for family in FAMILIES for recipe in ("d2a", "paper")),
        ("llama", "d2a", "concat"),
        ("gemma2", "paper", "concat"),
    ],
)
def test_an_exported_adapter_gives_peft_our_logits(tmp_path, family, recipe, composition):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    memory = filled(tmp_path, family, spec=SPECS[recipe], composition=composition, top_k=3)
    report = memory.export(tmp_path / "adapter", question=QUESTION)
    assert (report.rank, len(report.atom_uids)) == (4 if composition == "linear" else 12, 3)
    bank, engine = memory._open_both()
    _, routed, _ = route_question(bank, engine, QUESTION, top_k=3)
    adapter = engine.compose(routed, bank.load_shard_rows(report.atom_uids), with_kv=False)
    ids = random_ids(2, 9)
    with torch.no_grad():
        with attached(engine.base, adapter):
            ours = engine.base.model(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(
            base_folder(family), dtype=torch.float32, attn_implementation="eager"
        )
        bare = plain(ids).logits
        theirs = PeftModel.from_pretrained(plain, str(tmp_path / "adapter")).eval()(ids).logits
    assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert (ours - bare).abs().max() > 0.01


def test_a_memory_whose_atoms_share_a_lora_exports_that_one_and_says_so(tmp_path):
    memory = filled(tmp_path, spec=SPECS["d2a with one LoRA"])
    first, second, *_ = memory.atoms(memory.documents()[0].document_id)
    reports = [memory.export(tmp_path / a.uid, atom_uid=a.uid) for a in (first, second)]
    assert all(report.shared for report in reports)
    one, other = (load_file(tmp_path / a.uid / "adapter_model.safetensors") for a in (first, second))
    assert all(torch.equal(one[name], other[name]) for name in one) and any(x.abs().sum() > 0 for x in one.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_one_atoms_adapter_is_its_own_micro_lora_whatever_the_precision_of_the_base(memory, tmp_path, dtype):
    uid = memory.atoms("zoo.txt")[1].uid
    memory._load().base.model.to(dtype)
    report = memory.export(tmp_path / "adapter", atom_uid=uid)
    assert (report.atom_uids, report.rank, report.question) == ((uid,), 4, None)
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    engine = memory._load()
    factors = engine.network.compiler.factors(memory._open_bank(create=False).load_shard_rows([uid])["latent"][0])
    site = engine.network.compiler.sites[2]
    gate = torch.sigmoid(factors.mask_logits.flatten()[2])
    prefix = f"base_model.model.model.layers.{site.layer}.self_attn.{site.module}"
    assert_close(written[f"{prefix}.lora_A.weight"], factors.a[site])
    assert_close(written[f"{prefix}.lora_B.weight"], factors.b[site] * gate * 2.0)  # alpha / r = 8 / 4


def test_export_asks_for_one_thing_and_a_new_folder(memory, tmp_path):
    for arguments in ({}, {"question": QUESTION, "atom_uid": "x"}):
        with pytest.raises(ConfigError, match="either a question or an atom"):
            memory.export(tmp_path / "out", **arguments)
    with pytest.raises(ConfigError, match="is not an empty folder"):
        memory.export(tmp_path, question=QUESTION)
    with pytest.raises(BankError):
        memory.export(tmp_path / "out", atom_uid="0123456789abcdef-000000")
    memory.forget("town.txt")
    memory.forget("zoo.txt")
    with pytest.raises(BankError, match="holds no atoms"):
        memory.export(tmp_path / "out", question=QUESTION)
    assert not (tmp_path / "out").exists()
