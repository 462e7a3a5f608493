"""The bank: what it keeps, how it is named, listed and forgotten, and its full text."""

import hashlib
import subprocess
import sys
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
QUERY = np.ones(KEY_DIM, dtype=np.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bank é #%20 'x'"


@pytest.fixture
def bank(path):
    return Bank.open(path, IDENTITY, create=True)


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
    assert bank.search(QUERY, limit=3) == []
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

    def interrupt(tables: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(bank._tables), "purge", interrupt)
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


# Full text


def test_the_full_text_index_follows_the_atoms(bank):
    ants = put(bank, "ants")
    index = bank.lexical()
    rows, _ = index.top("what does ants say about 2", 1)
    assert index.uids[rows[0]] == f"{ants.document_id}-000002"
    assert bank.lexical() is index
    bees = put(bank, "bees")
    index = bank.lexical()
    assert index.uids[index.top("bees 1", 1)[0][0]] == f"{bees.document_id}-000001"
    assert [len(list((bank.path / "lexical").glob("*")))] == [1]


def test_neighbours_of_a_forgotten_document_lend_no_words(bank):
    ants, bees = put(bank, "ants"), put(bank, "bees")
    index = bank.lexical()
    heard = [uid for uid, score in zip(index.uids, index.stretch_scores("bees"), strict=True) if score > 0]
    assert {uid.partition("-")[0] for uid in heard} == {bees.document_id}
    bank.forget(bees.document_id)
    assert bank.lexical().num_rows == ants.num_atoms and not bank.lexical().stretch_scores("bees").any()


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
