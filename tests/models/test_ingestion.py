"""Ingest: what becomes of new, known, moved, changed and faulty sources, and that the bank is never left by halves."""

from dataclasses import replace
from pathlib import Path

import pytest

import models.ingestion
import models.memory
from models.atomizer import build_atomizer
from models.bank import Bank
from models.config import AtomizerConfig
from models.engine import Engine
from models.errors import AtomizerError, BaseModelError, CheckpointError
from models.ingestion import backup_of, swap_folders
from models.memory import DocumentMemory
from tests.models.tiny import tiny_spec
from tests.models.worlds import TOWN, ZOO, memory_config, write_checkpoint

RULES = build_atomizer(AtomizerConfig())


class FaultyAtomizer:
    """The rules, with the fault that a test asks for."""

    fingerprint = "faulty"

    def __init__(self, *, failed_windows: int = 0, only_invalid: bool = False, error: Exception | None = None) -> None:
        self.failed_windows, self.only_invalid, self.error = failed_windows, only_invalid, error

    def estimate(self, document):
        return None

    def atomize(self, document, *, on_progress=None):
        if self.error is not None:
            raise self.error
        result = RULES.atomize(document)
        atoms = tuple(replace(a, span_valid=i > 0 and not self.only_invalid) for i, a in enumerate(result.atoms))
        meta = replace(
            result.meta, num_failed_windows=self.failed_windows, num_windows=2, warnings=("window 2: empty reply",)
        )
        return replace(result, atoms=atoms, meta=meta)


@pytest.fixture
def memory(tmp_path):
    return DocumentMemory(memory_config(tmp_path))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def outcomes(report):
    return [i.outcome for i in report.items]


def spans(memory, ref):
    return [a.atom.source_span for a in memory.atoms(ref)]


def use(monkeypatch, atomizer):
    monkeypatch.setattr(models.memory, "build_atomizer", lambda _config: atomizer)


def test_a_new_document_is_added_with_its_atoms_in_order(memory, folder):
    [item] = memory.ingest([write(folder, "town.txt", TOWN)]).items
    assert (item.outcome, item.document.status, item.document.num_atoms) == ("added", "ok", 3)
    assert spans(memory, "town.txt") == [
        "Ilse Kant was born in Marn.",
        "She built nine bridges there in 1920.",
        "The town of Marn burned in 1953.",
    ]
    assert item.seconds > 0


def test_unchanged_documents_load_no_model(memory, folder, monkeypatch):
    source = write(folder, "town.txt", TOWN)
    memory.ingest([source])
    fresh = DocumentMemory(memory.config)
    monkeypatch.setattr(Engine, "load", lambda *_: pytest.fail("the model was loaded"))
    assert outcomes(fresh.ingest([source])) == ["unchanged"]
    assert len(fresh.documents()) == 1


def test_a_change_that_was_cut_off_and_taken_back_is_pending_no_more(memory, folder):
    source = write(folder, "town.txt", TOWN)
    memory.ingest([source])
    memory._open_bank(create=False).begin(source, "ab" * 32)
    assert [d.status for d in memory.documents()] == ["ok", "pending"]
    assert outcomes(memory.ingest([source])) == ["unchanged"]
    assert [d.status for d in memory.documents()] == ["ok"]


def test_rebuild_compiles_unchanged_documents_again(memory, folder):
    source = write(folder, "town.txt", TOWN)
    before = memory.ingest([source]).items[0].document
    [item] = memory.ingest([source], rebuild=True).items
    assert item.outcome == "replaced"
    assert item.document.document_id == before.document_id and item.document.ingested_at > before.ingested_at
    assert memory.status().num_atoms == 3


def test_the_same_content_under_another_path_is_one_document(memory, folder):
    first, second = write(folder, "a.txt", TOWN), write(folder, "b.txt", TOWN)
    [_, item] = memory.ingest([first, second]).items
    assert item.outcome == "duplicate" and first in item.message
    [document] = memory.documents()
    assert document.sources == (first, second)
    assert outcomes(memory.ingest([first, second])) == ["unchanged", "unchanged"]


def test_a_changed_document_is_replaced(memory, folder):
    source = write(folder, "a.txt", TOWN)
    memory.ingest([source])
    write(folder, "a.txt", ZOO)
    assert outcomes(memory.ingest([source])) == ["replaced"]
    [document] = memory.documents()
    assert document.sources == (source,)
    assert spans(memory, source)[0] == "Otters live in lake Tor."


def test_a_changed_copy_leaves_the_other_path_its_document(memory, folder):
    first, second = write(folder, "a.txt", TOWN), write(folder, "b.txt", TOWN)
    memory.ingest([first, second])
    write(folder, "a.txt", ZOO)
    assert outcomes(memory.ingest([first, second])) == ["replaced", "unchanged"]
    assert {d.sources for d in memory.documents()} == {(first,), (second,)}


def test_a_path_that_turns_into_a_copy_gives_up_its_document(memory, folder):
    first, second = write(folder, "a.txt", TOWN), write(folder, "b.txt", ZOO)
    memory.ingest([first, second])
    write(folder, "b.txt", TOWN)
    assert outcomes(memory.ingest([second])) == ["duplicate"]
    [document] = memory.documents()
    assert document.sources == (first, second)


@pytest.mark.parametrize("step", ["models.engine.Engine.compile", "models.bank_tables.BankTables.add_atoms"])
def test_a_change_that_is_cut_off_leaves_the_old_document_whole(memory, folder, monkeypatch, step):
    source = write(folder, "a.txt", TOWN)
    memory.ingest([source])
    write(folder, "a.txt", ZOO)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, interrupt)
        memory.ingest([source])
    again = DocumentMemory(memory.config)
    old, pending = again.documents()
    assert (old.status, pending.status, pending.sources) == ("ok", "pending", (source,))
    assert spans(again, old.document_id)[0] == "Ilse Kant was born in Marn."
    assert outcomes(again.ingest([source])) == ["replaced"]
    assert [d.status for d in again.documents()] == ["ok"]


def test_faulty_sources_fail_alone_and_stay_in_the_ledger(memory, folder):
    good, empty = write(folder, "a.txt", TOWN), write(folder, "b.txt", "")
    missing = str(folder / "none.txt")
    report = memory.ingest([empty, missing, good])
    assert outcomes(report) == ["failed", "failed", "added"]
    assert "is empty" in report.items[0].message and "does not exist" in report.items[1].message
    assert report.failed == report.items[:2]
    # A path that is not there is a typing error, not a document to be tried again.
    assert [(d.sources, d.status) for d in memory.documents()] == [((good,), "ok"), ((empty,), "failed")]
    write(folder, "b.txt", ZOO)
    assert outcomes(memory.ingest([empty])) == ["added"]
    assert [d.status for d in memory.documents()] == ["ok", "ok"]


def test_a_failed_change_keeps_what_was_stored(memory, folder, monkeypatch):
    source = write(folder, "a.txt", TOWN)
    memory.ingest([source])
    write(folder, "a.txt", ZOO)
    use(monkeypatch, FaultyAtomizer(error=AtomizerError("the endpoint is down", hint="Try later")))
    [item] = memory.ingest([source]).items
    assert (item.outcome, item.message) == ("failed", "the endpoint is down. Try later")
    assert [d.status for d in memory.documents()] == ["ok", "failed"]
    assert memory.status().num_atoms == 3


def test_lost_windows_make_a_partial_document_that_is_tried_again(memory, folder, monkeypatch):
    source = write(folder, "a.txt", TOWN)
    use(monkeypatch, FaultyAtomizer(failed_windows=1))
    [item] = memory.ingest([source]).items
    assert (item.outcome, item.document.status) == ("partial", "partial")
    assert "1 of 2 windows failed: window 2: empty reply" in item.message
    assert memory.documents()[0].reason == item.message
    use(monkeypatch, RULES)
    assert outcomes(memory.ingest([source])) == ["replaced"]
    assert [d.status for d in memory.documents()] == ["ok"]


def test_atoms_whose_span_is_not_in_the_text_are_not_stored(memory, folder, monkeypatch):
    use(monkeypatch, FaultyAtomizer())
    memory.ingest([write(folder, "a.txt", TOWN)])
    assert spans(memory, "a.txt") == ["She built nine bridges there in 1920.", "The town of Marn burned in 1953."]


def test_a_document_without_a_usable_atom_fails(memory, folder, monkeypatch):
    use(monkeypatch, FaultyAtomizer(only_invalid=True))
    [item] = memory.ingest([write(folder, "a.txt", TOWN)]).items
    assert item.outcome == "failed" and "no statement could be made of its text" in item.message


def test_two_texts_from_standard_input_are_two_documents(memory):
    assert outcomes(memory.ingest(["-"], stdin=TOWN.encode())) == ["added"]
    assert outcomes(memory.ingest(["-"], stdin=ZOO.encode())) == ["added"]
    assert outcomes(memory.ingest(["-"], stdin=TOWN.encode())) == ["unchanged"]
    assert [d.sources for d in memory.documents()] == [("-",), ("-",)]


def test_a_missing_base_ends_the_batch_and_marks_no_document(memory, folder, tmp_path):
    broken = DocumentMemory(replace(memory.config, base_path=tmp_path / "nowhere"))
    with pytest.raises(BaseModelError, match=r"holds no model"):
        broken.ingest([write(folder, "a.txt", TOWN)])
    assert memory.documents() == []


def test_a_checkpoint_of_another_base_ends_the_batch(memory, folder, tmp_path):
    other = write_checkpoint(tmp_path / "other", "llama", tiny_spec("d2a"))
    meta = other / "memory.json"
    meta.write_text(meta.read_text().replace('"base_fingerprint": "', '"base_fingerprint": "0'), "utf-8")
    broken = DocumentMemory(replace(memory.config, checkpoint=other))
    with pytest.raises(CheckpointError, match="was trained on base 0"):
        broken.ingest([write(folder, "a.txt", TOWN)])


def test_progress_goes_through_every_stage_and_counts(memory, folder):
    steps = []
    memory.ingest([write(folder, "a.txt", TOWN), write(folder, "b.txt", ZOO)], on_progress=steps.append)
    ours = [s for s in steps if s.source_index == 0]
    assert list(dict.fromkeys(s.stage for s in ours)) == ["read", "atomize", "compile", "store", "done"]
    compiled = [s for s in ours if s.stage == "compile"]
    assert [(s.atoms, s.num_atoms) for s in compiled] == [(0, 3), (3, 3)]
    assert {s.num_sources for s in steps} == {2} and steps[-1].source_index == 1


def test_large_batches_are_compacted_at_the_end(memory, folder, monkeypatch):
    monkeypatch.setattr(models.ingestion, "COMPACT_AFTER", 2)
    calls = []
    monkeypatch.setattr(Bank, "compact", lambda self: calls.append(self))
    memory.ingest([write(folder, "a.txt", TOWN)])
    assert not calls
    memory.ingest([write(folder, "b.txt", ZOO), write(folder, "c.txt", "Hens sleep at night in the barn.")])
    assert len(calls) == 1


def test_a_swap_puts_the_new_folder_in_place_and_leaves_nothing_else(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "which").write_text(name, "utf-8")
    # A swap that was cut off after its renames has left this behind.
    stale = backup_of(tmp_path / "old")
    stale.mkdir()
    (stale / "which").write_text("older", "utf-8")
    swap_folders(tmp_path / "new", tmp_path / "old")
    assert [p.name for p in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "which").read_text("utf-8") == "new"
