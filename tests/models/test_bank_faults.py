"""The bank under fire: other identities, damage, concurrent processes, and killed ones."""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.bank import Bank
from models.errors import BankError
from tests.models.bank_samples import IDENTITY, KEY_DIM, make_atoms, make_document, make_tensors, num_orphans, put

REPOSITORY = Path(__file__).parents[2]
QUERY = np.ones(KEY_DIM, dtype=np.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank é #%20 'x'"


@pytest.fixture
def bank(path):
    return Bank.open(path, IDENTITY, create=True)


def tree_digest(folder: Path) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()


class Killed(BaseException):
    """Stands for a SIGKILL at a known place: no handler of ours may catch it."""


def killed(*args: object, **kwargs: object) -> None:
    raise Killed


# Identity and damage


@pytest.mark.parametrize("field", ["base_fingerprint", "checkpoint_fingerprint", "recipe", "store", "key_dim"])
def test_another_identity_is_refused_and_nothing_is_touched(bank, field):
    put(bank, "ants")
    other = replace(IDENTITY, **{field: 9 if field == "key_dim" else "other-2"})
    before = tree_digest(bank.path)
    with pytest.raises(BankError, match=rf"differs in {field}: .*not with .*(other-2|keys 9).*d2a ingest --rebuild"):
        Bank.open(bank.path, other, create=True)
    listing = Bank.open(bank.path, None, create=False)
    assert (listing.identity, len(listing.documents()), tree_digest(bank.path)) == (IDENTITY, 1, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 2, "identity": {"new": 1}}', "written by a newer d2a"),
        ('{"format_version": 1, "ident', "bank.json is broken"),
        ('{"format_version": 1, "identity": {"preset": "smollm2"}}', "bank.json is broken"),
        ("[]", "bank.json is broken"),
        (json.dumps({"format_version": 1, "identity": {**IDENTITY.__dict__, "key_dim": "8"}}), "bad value of key_dim"),
    ],
)
def test_a_bank_file_that_cannot_be_used_is_refused_and_kept(bank, content, message):
    (bank.path / "bank.json").write_text(content)
    before = tree_digest(bank.path)
    for identity, create in ((IDENTITY, True), (IDENTITY, False), (None, False)):
        with pytest.raises(BankError, match=message):
            Bank.open(bank.path, identity, create=create)
    assert tree_digest(bank.path) == before


def test_a_bank_is_not_made_where_it_would_do_harm(bank, tmp_path):
    put(bank, "ants")
    (bank.path / "bank.json").unlink()
    with pytest.raises(BankError, match="missing beside stored documents"):
        Bank.open(bank.path, IDENTITY, create=True)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BankError, match="holds other files, such as"):
        Bank.open(tmp_path, IDENTITY, create=True)
    with pytest.raises(BankError, match="cannot be created"):
        Bank.open(tmp_path / "thesis.tex", IDENTITY, create=True)
    with pytest.raises(BankError, match=r"there is no bank at .*d2a ingest"):
        Bank.open(tmp_path / "none", IDENTITY, create=False)
    assert not (tmp_path / "none").exists()


def test_an_interrupted_creation_is_made_anew(path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("models.bank_files.write_identity", killed)
        Bank.open(path, IDENTITY, create=True)
    put(Bank.open(path, IDENTITY, create=True), "ants")


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_a_broken_shard_names_its_document_and_others_still_answer(bank, damage):
    broken, sound = put(bank, "ants"), put(bank, "bees")
    (shard,) = (bank.path / "shards").glob(f"{broken.document_id}-*")
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-20] if damage == "cut" else b"\xff" * 100)
    with pytest.raises(BankError, match=r"'Ants': shard .* cannot be read.*d2a ingest --rebuild"):
        bank.load_shard_rows([f"{sound.document_id}-000000", f"{broken.document_id}-000000"])
    assert len(bank.load_shard_rows([f"{sound.document_id}-000000"])["z"]) == 1


def test_a_damaged_table_is_an_error_of_one_line(bank, monkeypatch):
    put(bank, "ants")
    monkeypatch.setattr("models.bank_reader.time.sleep", lambda seconds: None)
    for file in (bank.path / "lancedb" / "atoms.lance" / "data").glob("*"):
        file.unlink()
    with pytest.raises(BankError, match=r"^bank .* cannot be used: [^\n]*$"):
        bank.search(QUERY, limit=3)


@pytest.mark.parametrize("uid", ["0" * 16 + "-000000", "x' OR '1'='1", "{}-000003"])
def test_an_unknown_atom_is_an_error(bank, uid):
    uid = uid.format(put(bank, "ants").document_id)
    for read in (bank.atoms_by_uid, bank.load_shard_rows):
        with pytest.raises(BankError, match="holds no atom"):
            read([uid])


# Several at once, and killed ones


@pytest.mark.parametrize("name", ["ants", "bees"])
@pytest.mark.parametrize(
    ("step", "is_new"),
    [
        ("models.shards.replace_durably", False),
        ("models.bank.BankTables.add_atoms", False),
        ("models.bank.BankTables.upsert", False),
        ("models.ledger.Ledger.done", True),
        ("models.bank.Bank._settle", True),
    ],
)
def test_a_write_killed_at_any_step_is_seen_whole_or_not_at_all(bank, monkeypatch, step, is_new, name):
    """The same content is compiled anew, or other content takes its place."""
    old = put(bank, "ants", source="/a.txt", value=1.0)
    document = make_document(name, source="/a.txt")
    bank.begin("/a.txt", document.content_hash)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(step, killed)
        atoms, tensors = make_atoms(document, 2), make_tensors(2, value=2.0)
        bank.put(document, atoms, **tensors, atomizer="rules", status="ok", replaces=old.document_id)
    assert num_orphans(bank) > 0
    reopened = Bank.open(bank.path, IDENTITY, create=False)
    stored, *pending = reopened.documents()
    assert (stored.title, stored.num_atoms) == ((name.title(), 2) if is_new else ("Ants", 3))
    assert [d.status for d in pending] == ([] if is_new or name == "ants" else ["pending"])
    rows = reopened.load_shard_rows([a.uid for a in reopened.atoms(stored.document_id)])
    assert [float(z[0]) for z in rows["z"]] == ([2.0] * 2 if is_new else [1.0] * 3)
    assert len(reopened.search(QUERY, limit=50)) == stored.num_atoms
    put(reopened, "wasps")
    assert num_orphans(reopened) == 0


def test_a_read_that_a_commit_interrupts_starts_again(bank, monkeypatch):
    old = put(bank, "ants", source="/a.txt")
    reader = Bank.open(bank.path, IDENTITY, create=False)
    key_parts, new = reader._tables.key_parts, []

    def interrupted() -> Iterator:
        if not new:
            new.append(put(bank, "bees", source="/a.txt", replaces=old.document_id, num_atoms=4))
        return key_parts()

    monkeypatch.setattr(reader._tables, "key_parts", interrupted)
    assert {uid for uid, _ in reader.search(QUERY, limit=9)} == {a.uid for a in bank.atoms(new[0].document_id)}


def test_a_read_whose_files_a_purge_takes_away_starts_again(bank, monkeypatch):
    put(bank, "ants")
    key_parts, calls = bank._tables.key_parts, []

    def purged_once() -> Iterator:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("lance error: Not found: data/0.lance")
        return key_parts()

    monkeypatch.setattr(bank._tables, "key_parts", purged_once)
    assert len(bank.search(QUERY, limit=9)) == 3


def test_a_reader_sees_each_version_of_a_document_whole(bank):
    writer, stop, errors = Bank.open(bank.path, IDENTITY, create=False), threading.Event(), []
    info = put(writer, "ants", num_atoms=4, value=0.0)

    def replace_and_forget() -> None:
        try:
            for version in range(1, 25):
                document, tensors = make_document("ants", num_atoms=4), make_tensors(2 + version % 3, value=version)
                atoms = make_atoms(document, 2 + version % 3)
                writer.put(document, atoms, **tensors, atomizer="rules", status="ok")
                if version % 4 == 0:
                    writer.forget(put(writer, "other").document_id)
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()

    thread = threading.Thread(target=replace_and_forget)
    thread.start()
    seen = set()
    while not stop.is_set():
        uids = [a.uid for a in bank.atoms(info.document_id)]
        assert 2 <= len(uids) <= 4
        values = [float(z[0]) for z in bank.load_shard_rows(uids[:2])["z"]]
        assert len(set(values)) == 1
        seen.add(values[0])
        found = [uid for uid, _ in bank.search(QUERY, limit=50) if uid.startswith(info.document_id)]
        assert 2 <= len(found) <= 4
        assert info.document_id in {d.document_id for d in bank.documents()}
        assert bank.lexical().num_rows >= 2
    thread.join()
    assert errors == []
    assert len(seen) > 3


def test_an_open_reader_sees_what_another_one_writes(bank):
    reader = Bank.open(bank.path, IDENTITY, create=False)
    assert (reader.search(QUERY, limit=9), reader.lexical().num_rows, reader.documents()) == ([], 0, [])
    version = reader.version
    info = put(bank, "ants")
    assert (len(reader.search(QUERY, limit=9)), reader.lexical().num_rows, reader.documents()) == (3, 3, [info])
    assert reader.version > version
    bank.forget(info.document_id)
    assert (reader.search(QUERY, limit=9), reader.lexical().num_rows, reader.documents()) == ([], 0, [])


def test_a_writer_names_whom_it_waits_for_and_gives_up_in_time(bank):
    messages = []
    other = Bank.open(bank.path, IDENTITY, create=False, lock_timeout_s=0.1, on_wait=messages.append)
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with bank._lock.hold():
            holding.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(10)
    with pytest.raises(BankError, match=rf"process {os.getpid()} has been writing for more than 0.1 s"):
        put(other, "ants")
    assert len(messages) == 1 and f"waiting for process {os.getpid()}" in messages[0]
    assert other.documents() == []
    release.set()
    thread.join()
    put(other, "ants")


@pytest.fixture(scope="module")
def writers():
    command = [sys.executable, "-W", "ignore", "-m", "tests.models.bank_writer"]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(**command: object) -> int:
        process.stdin.write(json.dumps(command) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run
    process.kill()
    process.communicate()


def test_a_bank_survives_writers_killed_at_any_instant(bank, writers):
    rng, num_stored = random.Random(0), []
    for _ in range(6):
        assert writers(bank=str(bank.path), kill_after_s=rng.uniform(0.0, 0.15)) == 9
        reopened = Bank.open(bank.path, IDENTITY, create=False)
        listed = reopened.documents()
        stored = [d for d in listed if d.num_atoms]
        assert all(d.status == "pending" for d in listed if d not in stored)
        for info in stored:
            atoms = reopened.atoms(info.document_id)
            assert [a.atom.atom_id for a in atoms] == [f"atom_{n}" for n in range(info.num_atoms)]
            assert len(reopened.load_shard_rows([a.uid for a in atoms])["states"]) == info.num_atoms
        num_stored.append(len(stored))
        assert put(reopened, "again").num_atoms == 3
        assert num_orphans(reopened) == 0
    assert min(num_stored) >= 1


def test_two_processes_that_store_the_same_document_store_it_once(path, writers):
    for name in ("ants", "bees", "wasps"):
        assert writers(bank=str(path), writers=2, name=name) == 0
    bank = Bank.open(path, IDENTITY, create=False)
    assert sorted((d.title, d.num_atoms, len(d.sources)) for d in bank.documents()) == [
        ("Ants", 20, 1),
        ("Bees", 20, 1),
        ("Wasps", 20, 1),
    ]
    assert (bank._tables.atoms.count_rows(), bank._tables.ledger.count_rows(), num_orphans(bank)) == (60, 3, 0)
