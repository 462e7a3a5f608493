"""The bank: what it keeps, what its readers see, and what happens when writers are killed."""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models import bank_tables
from models.bank import Bank
from models.errors import BankError
from models.ledger import Ledger
from tests.models.bank_samples import IDENTITY, KEY_DIM, make_atoms, make_document, make_tensors, num_orphans, put

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank é #%20 'x'"


@pytest.fixture
def bank(path):
    return Bank.open(path, IDENTITY, create=True)


def tree_digest(folder: Path) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()


def bytes_on_disk(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


# What it keeps


def test_a_document_comes_back_as_it_was_stored(bank):
    document = replace(make_document("ants"), warnings=("page 3 has no text",))
    atoms, tensors = make_atoms(document), make_tensors()
    info = bank.put(document, atoms, **tensors, atomizer="rules", status="partial", reason="page 3")

    assert bank.documents() == [info]
    assert info.document_id == hashlib.sha256(document.text.encode()).hexdigest()[:16]
    assert (info.num_atoms, info.num_pages, info.status, info.reason) == (3, 2, "partial", "page 3")
    assert info.warnings == document.warnings
    assert bank.text(info.document_id) == document.text
    assert bank.pages(info.document_id) == document.pages
    stored = bank.atoms(info.document_id)
    assert [s.atom for s in stored] == atoms
    assert [s.uid for s in stored] == [f"{info.document_id}-00000{n}" for n in range(3)]
    # "ants says 0. " has 14 characters, three of them 42, the page ends at 21: atoms start at 0, 14, 28.
    assert [(s.page_index, s.page_label) for s in stored] == [(0, "i"), (0, "i"), (1, "ii")]
    assert bank.num_atoms == 3
    assert bank.bank_bytes == len(bytes_on_disk(bank.path))


def test_rows_of_several_shards_come_in_the_order_asked_for(bank):
    first, second = put(bank, "ants", seed=1).document_id, put(bank, "bees", seed=2).document_id
    rows = bank.load_shard_rows([f"{second}-000002", f"{first}-000001", f"{second}-000000", f"{first}-000001"])
    a, b = make_tensors(seed=1)["shard"], make_tensors(seed=2)["shard"]
    # Lengths are 0, 1, 2 slots for atoms 0, 1, 2, so offsets are 0, 0, 1, 3.
    expected_states = [b["states"][1:3], a["states"][0:1], b["states"][0:0], a["states"][0:1]]
    for got, want in zip(rows["z"], [b["z"][2], a["z"][1], b["z"][0], a["z"][1]], strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    for got, want in zip(rows["states"], expected_states, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    atoms = bank.atoms_by_uid([f"{second}-000002", f"{first}-000001"])
    assert [a.atom.content for a in atoms] == ["bees says 2.", "ants says 1."]


@pytest.mark.parametrize(
    "evil", ['O\'Brien "x"', "a\nb\r\nc", "nul\0nul", "'); DROP TABLE atoms; --", "lone\udcff", ""]
)
def test_titles_sources_and_texts_may_hold_any_characters(bank, evil):
    document = make_document("ants", source=f"/x/{evil}.txt")
    document = replace(document, title=evil, text=document.text + evil)
    atoms = [replace(atom, content=atom.content + evil) for atom in make_atoms(document)]
    bank.begin(document.source, document.content_hash)
    info = bank.put(document, atoms, **make_tensors(), atomizer="rules", status="ok")
    bank.add_source(info.document_id, evil + "2")
    bank.fail(evil + "3", evil)
    assert [(d.title, d.sources) for d in bank.documents()] == [
        (evil, (document.source, evil + "2")),
        (evil + "3", (evil + "3",)),
    ]
    assert bank.text(info.document_id) == document.text
    assert [a.atom for a in bank.atoms(info.document_id)] == atoms
    assert bank.find_source(document.source).document_id == info.document_id
    assert bank.lexical().num_rows == 3
    bank.drop_source(evil + "2")
    bank.forget(bank.resolve(document.source).document_id)
    assert [d.status for d in bank.documents()] == ["failed"]


def test_search_is_exact_and_rows_of_an_unfinished_write_do_not_count(bank):
    keys = {}
    for number in range(4):
        info = put(bank, f"doc{number}", num_atoms=50, seed=number)
        keys |= {f"{info.document_id}-{n:06x}": k for n, k in enumerate(make_tensors(50, seed=number)["keys"])}
    query = np.random.default_rng(9).standard_normal(KEY_DIM).astype(np.float32)
    # 100 rows nearer than any live one.
    bank._tables.add_atoms("0" * 16, ["{}"] * 100, np.tile(query, (100, 1)))
    cosines = {u: float(k @ query / np.linalg.norm(k) / np.linalg.norm(query)) for u, k in keys.items()}
    expected = sorted(cosines, key=lambda u: -cosines[u])
    for limit in (1, 7, 200, 500):
        found = bank.search(query, limit=limit)
        assert [uid for uid, _ in found] == expected[:limit]
        np.testing.assert_allclose([c for _, c in found], [cosines[u] for u in expected[:limit]], atol=1e-5)


def test_an_empty_bank_answers_with_nothing(bank):
    assert bank.search(np.ones(KEY_DIM, dtype=np.float32), limit=3) == []
    assert bank.lexical().num_rows == 0
    assert (bank.documents(), bank.num_atoms, bank.load_shard_rows([]), bank.atoms_by_uid([])) == ([], 0, {}, [])


def test_putting_a_thousand_atoms_takes_under_two_seconds(bank):
    document, tensors = make_document("ants", num_atoms=1000), make_tensors(1000)
    atoms = make_atoms(document, 1000)
    start = time.perf_counter()
    bank.put(document, atoms, **tensors, atomizer="rules", status="ok")
    assert time.perf_counter() - start < 2.0
    assert len(bank.atoms(bank.documents()[0].document_id)) == 1000


# Sources and the ledger


def test_the_same_content_under_two_paths_is_one_document(bank):
    first = put(bank, "ants", source="/a.txt")
    assert bank.find_content(first.content_hash) == first
    bank.add_source(first.document_id, "/b.txt")
    again = put(bank, "ants", source="/c.txt", seed=5)
    assert again.document_id == first.document_id
    assert [d.sources for d in bank.documents()] == [("/a.txt", "/b.txt", "/c.txt")]
    assert (bank.num_atoms, num_orphans(bank)) == (3, 0)
    bank.drop_source("/a.txt")
    bank.drop_source("/c.txt")
    assert [d.sources for d in bank.documents()] == [("/b.txt",)]
    assert bank.text(first.document_id) == make_document("ants").text
    bank.drop_source("/b.txt")
    assert (bank.documents(), num_orphans(bank)) == ([], 0)


def test_changed_content_takes_the_place_of_the_old(bank):
    old = put(bank, "ants", source="/a.txt")
    new = put(bank, "bees", source="/a.txt", replaces=old.document_id)
    assert bank.documents() == [new]
    assert (bank.find_source("/a.txt"), bank.find_content(old.content_hash), num_orphans(bank)) == (new, None, 0)


def test_changed_content_leaves_the_old_to_its_other_source(bank):
    old = put(bank, "ants", source="/a.txt")
    bank.add_source(old.document_id, "/b.txt")
    new = put(bank, "bees", source="/a.txt", replaces=old.document_id)
    assert {d.document_id: d.sources for d in bank.documents()} == {
        old.document_id: ("/b.txt",),
        new.document_id: ("/a.txt",),
    }


def test_a_source_that_comes_to_equal_another_document_moves_to_it(bank):
    old, other = put(bank, "ants", source="/a.txt"), put(bank, "bees", source="/b.txt")
    bank.add_source(other.document_id, "/a.txt", replaces=old.document_id)
    assert [(d.document_id, d.sources) for d in bank.documents()] == [(other.document_id, ("/b.txt", "/a.txt"))]


def test_failed_and_interrupted_sources_are_listed_until_they_are_stored(bank):
    put(bank, "ants")
    bank.begin("/papers/bees.txt", "ab" * 32)
    bank.fail("/papers/wasps.pdf", "no text on any page")
    bank.fail("/papers/wasps.pdf", "no text on any page")
    listed = bank.documents()
    assert [(d.title, d.status, d.reason) for d in listed] == [
        ("Ants", "ok", ""),
        ("bees.txt", "pending", ""),
        ("wasps.pdf", "failed", "no text on any page"),
    ]
    assert [e.attempts for e in Ledger(bank._tables).entries()] == [0, 0, 2]
    put(bank, "bees")
    bank.forget(bank.resolve("wasps.pdf").document_id)
    assert [(d.title, d.status) for d in bank.documents()] == [("Ants", "ok"), ("Bees", "ok")]


def test_a_failed_new_version_leaves_the_old_one_in_place(bank):
    old = put(bank, "ants", source="/a.txt")
    bank.begin("/a.txt", "cd" * 32)
    bank.fail("/a.txt", "endpoint not reachable")
    assert [(d.status, d.num_atoms) for d in bank.documents()] == [("ok", 3), ("failed", 0)]
    assert bank.find_source("/a.txt") == old


def test_a_document_is_found_by_id_prefix_source_title_or_file_name(bank):
    info = put(bank, "ants", source="/papers/ants v1.txt")
    put(bank, "bees")
    for ref in (info.document_id, info.document_id[:6].upper(), "/papers/ants v1.txt", "Ants", "ants v1.txt"):
        assert bank.resolve(ref) == info
    with pytest.raises(BankError, match=r"no document 'Antz'; it holds .*'Ants'.*d2a docs list"):
        bank.resolve("Antz")
    with pytest.raises(BankError, match="no document ''"):
        bank.resolve("")


def test_an_ambiguous_name_lists_five_candidates(bank):
    ids = [put(bank, f"ants{n}", source=f"/{n}/ants.txt").document_id for n in range(6)]
    with pytest.raises(BankError, match=r"'ants\.txt' is ambiguous") as caught:
        bank.resolve("ants.txt")
    assert [i in str(caught.value) for i in ids] == [True] * 5 + [False]


# Forgetting


def test_forgetting_leaves_no_byte_of_a_document_on_disk(bank):
    for number in range(16):
        put(bank, f"doc{number}", num_atoms=2)
    secret = put(bank, "zanzibar", source="/secret/zanzibar.txt")
    # One fragment a table, in which the forgotten rows are few: LanceDB's compaction alone would keep them.
    bank.compact()
    size = bank.bank_bytes
    bank.lexical()
    assert bytes_on_disk(bank.path).count(b"zanzibar") > 3
    assert bank.forget(secret.document_id) == secret
    assert b"zanzibar" not in bytes_on_disk(bank.path)
    assert bank.bank_bytes < size
    assert (len(bank.documents()), bank.num_atoms, num_orphans(bank)) == (16, 32, 0)
    with pytest.raises(BankError, match="holds no document"):
        bank.forget(secret.document_id)
    # The rewritten tables still refuse to hold an id twice.
    assert "unenforced-primary-key" in str(bank._tables.documents.schema.field("id").metadata)


def test_an_interrupted_forget_is_finished_by_the_next_write(bank, monkeypatch):
    secret = put(bank, "zanzibar")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(type(bank._tables), "purge", killed)
        bank.forget(secret.document_id)
    assert (bank.documents(), b"zanzibar" in bytes_on_disk(bank.path)) == ([], True)
    put(bank, "bees")
    assert b"zanzibar" not in bytes_on_disk(bank.path)


def test_many_writes_leave_few_fragments(bank, monkeypatch):
    monkeypatch.setattr(bank_tables, "MAX_FRAGMENTS", 4)
    for number in range(12):
        put(bank, f"doc{number}")
    for table in (bank._tables.documents, bank._tables.atoms, bank._tables.ledger):
        assert table.stats()["fragment_stats"]["num_fragments"] <= 5
    assert len(bank.documents()) == 12


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
        bank.search(np.ones(KEY_DIM, dtype=np.float32), limit=3)


@pytest.mark.parametrize("uid", ["0" * 16 + "-000000", "x' OR '1'='1", "{}-000003"])
def test_an_unknown_atom_is_an_error(bank, uid):
    uid = uid.format(put(bank, "ants").document_id)
    for read in (bank.atoms_by_uid, bank.load_shard_rows):
        with pytest.raises(BankError, match="holds no atom"):
            read([uid])


# Several at once, and killed ones


class Killed(BaseException):
    """Stands for a SIGKILL at a known place: no handler of ours may catch it."""


def killed(*args: object, **kwargs: object) -> None:
    raise Killed


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
def test_a_replacement_killed_at_any_step_is_seen_whole_or_not_at_all(bank, monkeypatch, step, is_new):
    old = put(bank, "ants", source="/a.txt", value=1.0)
    bank.begin("/a.txt", make_document("bees", num_atoms=5).content_hash)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(step, killed)
        document = make_document("bees", source="/a.txt", num_atoms=5)
        tensors = make_tensors(5, value=2.0)
        bank.put(document, make_atoms(document, 5), **tensors, atomizer="rules", status="ok", replaces=old.document_id)
    reopened = Bank.open(bank.path, IDENTITY, create=False)
    stored = [d for d in reopened.documents() if d.status == "ok"]
    assert [(d.title, d.num_atoms) for d in stored] == [("Bees", 5) if is_new else ("Ants", 3)]
    assert is_new or [d.status for d in reopened.documents()] == ["ok", "pending"]
    rows = reopened.load_shard_rows([a.uid for a in reopened.atoms(stored[0].document_id)])
    assert {float(z[0]) for z in rows["z"]} == {2.0 if is_new else 1.0}
    assert len(reopened.search(np.ones(KEY_DIM, dtype=np.float32), limit=50)) == stored[0].num_atoms
    assert num_orphans(reopened) > 0 or step == "models.shards.replace_durably" or is_new
    put(reopened, "wasps")
    assert num_orphans(reopened) == 0


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
    query, seen = np.ones(KEY_DIM, dtype=np.float32), set()
    while not stop.is_set():
        uids = [a.uid for a in bank.atoms(info.document_id)]
        assert 2 <= len(uids) <= 4
        values = [float(z[0]) for z in bank.load_shard_rows(uids[:2])["z"]]
        assert len(set(values)) == 1
        seen.add(values[0])
        found = [uid for uid, _ in bank.search(query, limit=50) if uid.startswith(info.document_id)]
        assert 2 <= len(found) <= 4
        assert info.document_id in {d.document_id for d in bank.documents()}
        assert bank.lexical().num_rows >= 2
    thread.join()
    assert errors == []
    assert len(seen) > 3


def test_an_open_reader_sees_what_another_one_writes(bank):
    reader = Bank.open(bank.path, IDENTITY, create=False)
    query = np.ones(KEY_DIM, dtype=np.float32)
    assert (reader.search(query, limit=9), reader.lexical().num_rows, reader.documents()) == ([], 0, [])
    version = reader.version
    info = put(bank, "ants")
    assert (len(reader.search(query, limit=9)), reader.lexical().num_rows, reader.documents()) == (3, 3, [info])
    assert reader.version > version
    bank.forget(info.document_id)
    assert (reader.search(query, limit=9), reader.lexical().num_rows, reader.documents()) == ([], 0, [])


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
    for _ in range(8):
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


# Full text


def test_the_full_text_index_follows_the_atoms(bank):
    ants = put(bank, "ants")
    index = bank.lexical()
    rows, _ = index.top("what does ants say about 2", 1)
    assert index.uids[rows[0]] == f"{ants.document_id}-000002"
    assert bank.lexical() is index
    put(bank, "bees")
    index = bank.lexical()
    assert index.uids[index.top("bees 1", 1)[0][0]].endswith("-000001")
    assert [len(list((bank.path / "lexical").glob("*")))] == [1]


def test_the_indexed_text_is_a_choice(bank):
    put(bank, "ants")
    hits = {text: len(bank.lexical(text=text).top("anchor", 9)[0]) for text in ("content", "retrieval", "both")}
    assert hits == {"content": 0, "retrieval": 3, "both": 3}


@pytest.mark.parametrize("fault", ["broken", "not writable"])
def test_a_lost_full_text_cache_is_made_anew(bank, fault):
    put(bank, "ants")
    if fault == "broken":
        bank.lexical()
        for file in (bank.path / "lexical").rglob("*"):
            if file.is_file():
                file.write_bytes(b"{")
    else:
        (bank.path / "lexical").write_text("in the way")
    fresh = Bank.open(bank.path, IDENTITY, create=False)
    assert len(fresh.lexical().top("ants", 9)[0]) == 3


def test_importing_the_bank_loads_neither_torch_nor_lancedb():
    code = "import sys, models.bank; print([m for m in ('torch', 'lancedb', 'pyarrow', 'bm25s') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
