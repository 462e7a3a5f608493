"""Faults of a bank's files: each is found, told apart, and gone after its repair."""

import json
import shutil

import pytest

from models.bank import Bank
from models.bank_check import bank_faults
from tests.models.bank_samples import IDENTITY, put


@pytest.fixture
def bank(tmp_path):
    bank = Bank.open(tmp_path / "bank", IDENTITY, create=True)
    put(bank, "ants")
    put(bank, "bees")
    return bank


def test_a_sound_bank_has_no_faults(bank):
    bank.fail("/c.txt", "it is empty")
    assert list(bank_faults(bank)) == []


def test_a_missing_shard_is_a_fault_of_its_document(bank):
    next((bank.path / "shards").glob(f"{bank.resolve('Bees').document_id}-*")).unlink()
    [fault] = bank_faults(bank)
    assert "'Bees'" in fault.message and fault.harmful
    assert fault.next_step == "Run: d2a ingest --rebuild"


def test_a_shard_of_no_document_is_harmless_and_goes_with_the_next_write(bank):
    (bank.path / "shards" / "old.safetensors").write_bytes(b"x")
    [fault] = bank_faults(bank)
    assert "old.safetensors" in fault.message and not fault.harmful
    put(bank, "wasps")
    assert list(bank_faults(bank)) == []


def test_an_index_of_other_atoms_is_found_and_made_anew_when_deleted(bank):
    bank.lexical()
    [rows] = (bank.path / "lexical").glob("*/rows.json")
    data = json.loads(rows.read_text("utf-8"))
    rows.write_text(json.dumps({**data, "uids": data["uids"][::-1][1:]}), "utf-8")
    [fault] = bank_faults(Bank.open(bank.path, None, create=False))
    assert "full-text index" in fault.message and fault.next_step == f"Run: rm -r {bank.path / 'lexical'}"
    shutil.rmtree(bank.path / "lexical")
    assert list(bank_faults(Bank.open(bank.path, None, create=False))) == []
