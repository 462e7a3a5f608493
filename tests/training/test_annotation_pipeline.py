"""Claims about runs over many contexts: whole shards, their order, going on after a kill, and what training takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from models.atoms import AnnotationMeta, AnnotationRecord, Atom, Question, Relation
from models.config import AtomizerConfig
from models.errors import AtomizerError
from tests.training.samples import river_and_town
from training.annotation import DiscardedSampleError, build_annotator
from training.annotation.filters import own_questions, usable, usable_records, within_reach
from training.annotation.pipeline import AnnotationProgress, annotate_contexts, remaining
from training.annotation.shards import read_shards
from training.config import TrainConfig, load_config
from training.datasets.context import Context, QAItem, locate
from training.records import DataError, write_records
from training.sources import load_data

REPOSITORY = Path(__file__).parents[2]


def contexts(count: int) -> list[Context]:
    made = []
    for number in range(count):
        text = f"Beacon {number} was lit in {1800 + number}. Its keeper had {number + 2} lamps."
        item = QAItem(
            question_id=f"q{number}",
            question=f"When was beacon {number} lit?",
            answers=(locate(text, str(1800 + number)),),
        )
        made.append(
            Context(dataset="made", context_id=f"c{number}", title="", text=text, questions=(item,), mode="extractive")
        )
    return made


class FakeAnnotator:
    """Makes a record of one atom; contexts named in `discards` make none, and one named `stops_at` ends the run."""

    fingerprint = "fake"

    def __init__(self, *, discards: Sequence[str] = (), stops_at: str = "", concurrency: int = 1) -> None:
        self.discards = discards
        self.stops_at = stops_at
        self.concurrency = concurrency
        self.seen: list[str] = []
        self.num_at_work = self.most_at_work = 0
        self._lock = threading.Lock()

    def estimate(self, contexts: Sequence[Context]) -> None:
        return None

    def annotate(self, context: Context) -> AnnotationRecord:
        with self._lock:
            self.seen.append(context.context_id)
            self.num_at_work += 1
            self.most_at_work = max(self.most_at_work, self.num_at_work)
        # Later contexts are done earlier.
        time.sleep(0.02 if int(context.context_id[1:]) % 2 == 0 else 0.0)
        with self._lock:
            self.num_at_work -= 1
        if context.context_id == self.stops_at:
            raise AtomizerError("the quota is used up")
        if context.context_id in self.discards:
            raise DiscardedSampleError("no atoms")
        return record(context.context_id)

    def close(self) -> None:
        """Nothing is open."""


def record(text: str, *questions: Question, span_valid: bool = True) -> AnnotationRecord:
    atom = Atom(atom_id="atom_0", semantic_type="fact_claim", content=text, source_span=text, retrieval_text=text)
    other = replace(atom, atom_id="atom_1", span_valid=span_valid)
    atom = replace(atom, relations=(Relation(type="supports", target="atom_1"),))
    return AnnotationRecord(
        context=text, atoms=(atom, other), qa_pairs=questions, annotation_meta=AnnotationMeta(annotator="fake")
    ).validated()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_records_come_in_the_order_of_their_contexts_whatever_is_done_first(tmp_path: Path) -> None:
    annotator = FakeAnnotator(concurrency=3)
    annotate_contexts(contexts(8), annotator, tmp_path, shard_size=3)
    assert [r.context for r in read_shards(tmp_path)] == [f"c{n}" for n in range(8)]
    # 8 contexts in shards of 3, 3 and 2.
    assert list(files(tmp_path)) == ["annotation.json", *(f"shard-0000{n}.jsonl" for n in range(3))]
    assert 1 < annotator.most_at_work <= 3


def test_a_stopped_run_leaves_whole_shards_and_the_next_one_writes_only_the_others(tmp_path: Path) -> None:
    made = contexts(8)
    with pytest.raises(AtomizerError, match="quota"):
        annotate_contexts(made, FakeAnnotator(stops_at="c4"), tmp_path / "a", shard_size=3)
    assert list(files(tmp_path / "a")) == ["annotation.json", "shard-00000.jsonl"]
    second = FakeAnnotator()
    assert [c.context_id for c in remaining(made, second, tmp_path / "a", shard_size=3)] == [
        f"c{n}" for n in range(3, 8)
    ]
    annotate_contexts(made, second, tmp_path / "a", shard_size=3)
    assert second.seen == [f"c{n}" for n in range(3, 8)]
    annotate_contexts(made, FakeAnnotator(), tmp_path / "b", shard_size=3)
    assert files(tmp_path / "a") == files(tmp_path / "b")


KILLED = """
import os, signal, sys
from pathlib import Path
from models.config import AtomizerConfig
from tests.training.test_annotation_pipeline import contexts
from training.annotation import build_annotator
from training.annotation import pipeline, shards

made = contexts(9)
annotator = build_annotator("offline", made, config=AtomizerConfig())

def kill_in_the_middle(path, records):
    # The second shard is half written when the process dies.
    path.write_text('{"context": "half')
    os.kill(os.getpid(), signal.SIGKILL)

def second(folder, number, records, write=shards.write_shard):
    if number == 1:
        shards.write_records = kill_in_the_middle
    write(folder, number, records)

pipeline.write_shard = second
pipeline.annotate_contexts(made, annotator, Path(sys.argv[1]), shard_size=4)
"""


def test_a_killed_run_that_goes_on_gives_the_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a")], env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert list(files(tmp_path / "a")) == ["annotation.json", "shard-00000.jsonl", "shard-00001.tmp"]
    made = contexts(9)
    for name in ("a", "b"):
        annotator = build_annotator("offline", made, config=AtomizerConfig())
        annotate_contexts(made, annotator, tmp_path / name, shard_size=4)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_discarded_samples_are_counted_and_leave_no_record(tmp_path: Path) -> None:
    steps: list[AnnotationProgress] = []
    annotator = FakeAnnotator(discards=("c1", "c2", "c3"))
    summary = annotate_contexts(contexts(4), annotator, tmp_path, shard_size=2, on_progress=steps.append)
    assert (summary.num_contexts, summary.num_records, summary.num_discarded) == (4, 1, 3)
    assert [(s.done, s.total, s.discarded) for s in steps] == [(1, 4, 0), (2, 4, 1), (3, 4, 2), (4, 4, 3)]
    # A shard of discarded contexts alone is empty, and finished all the same.
    assert files(tmp_path)["shard-00001.jsonl"] == b""
    again = FakeAnnotator()
    assert annotate_contexts(contexts(4), again, tmp_path, shard_size=2) == summary
    assert again.seen == []


def test_a_folder_of_another_annotation_is_refused_unless_it_is_replaced(tmp_path: Path) -> None:
    annotate_contexts(contexts(4), FakeAnnotator(), tmp_path, shard_size=1)
    with pytest.raises(DataError, match=r"another annotation \(it differs in contexts, num_contexts\).*--no-resume"):
        annotate_contexts(contexts(2), FakeAnnotator(), tmp_path, shard_size=1)
    summary = annotate_contexts(contexts(2), FakeAnnotator(), tmp_path, shard_size=1, resume=False)
    assert summary.num_records == 2
    assert len(files(tmp_path)) == 3


def test_an_unfinished_or_foreign_folder_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no annotation"):
        list(read_shards(tmp_path))
    annotate_contexts(contexts(4), FakeAnnotator(), tmp_path, shard_size=2)
    (tmp_path / "shard-00000.jsonl").unlink()
    with pytest.raises(DataError, match=r"not finished, 1 of 2 shards are missing"):
        list(read_shards(tmp_path))


def test_the_summary_of_an_offline_run_counts_what_is_on_disk(tmp_path: Path) -> None:
    made = contexts(6)
    annotator = build_annotator("offline", made, config=AtomizerConfig(), num_probes=1)
    summary = annotate_contexts(made, annotator, tmp_path)
    # Two sentences, one question and one sibling's question a context.
    assert (summary.num_records, summary.num_atoms, summary.num_questions) == (6, 12, 12)
    assert (summary.num_probes, summary.num_irrelevant, summary.num_rescued, summary.num_warned) == (6, 6, 0, 0)
    assert summary.num_usable_questions == 12


def test_training_takes_no_invalid_spans_and_no_warned_questions() -> None:
    clean = Question(question="a", gold_atom_ids=("atom_0",), distractor_atom_ids=("atom_1",))
    warned = replace(clean, question="b", annotation_warnings=("unknown atom id atom_7",))
    lost = replace(clean, question="c", gold_atom_ids=("atom_1",))
    taken = usable(record("x", clean, warned, lost, span_valid=False))
    assert [a.atom_id for a in taken.atoms] == ["atom_0"]
    assert taken.atoms[0].relations == ()
    assert [q.question for q in taken.qa_pairs] == ["a"]
    assert taken.qa_pairs[0].distractor_atom_ids == ()
    assert usable(taken) == taken


def test_records_of_atoms_alone_load_and_pass_the_filter(tmp_path: Path) -> None:
    annotate_contexts(contexts(2), FakeAnnotator(), tmp_path)
    taken = list(usable_records(tmp_path))
    assert [(r.context, len(r.atoms), r.qa_pairs) for r in taken] == [("c0", 2, ()), ("c1", 2, ())]


def test_a_clean_record_passes_the_filter_unchanged() -> None:
    whole = record("x", Question(question="a", gold_atom_ids=("atom_0",)))
    assert usable(whole) == whole


def test_a_question_whose_gold_lies_behind_what_a_sample_shows_is_not_asked() -> None:
    whole = river_and_town()[0]
    one, both = whole.qa_pairs
    assert (one.gold_atom_ids, both.gold_atom_ids) == (("atom_0",), ("atom_1", "atom_2"))
    assert within_reach(whole, 2).qa_pairs == (one,)
    assert within_reach(whole, 2).atoms == whole.atoms
    assert within_reach(whole, 3) == whole


def test_an_offline_record_keeps_its_own_questions_and_what_was_altered_of_them() -> None:
    annotator = build_annotator("offline", contexts(12), config=AtomizerConfig(), num_probes=2)
    made = [annotator.annotate(context) for context in contexts(12)]
    kept = [own_questions(each) for each in made]
    names = [[q.question_id for q in each.qa_pairs] for each in kept]
    assert any("/probe_" in q.question_id for each in made for q in each.qa_pairs)
    assert not any("/probe_" in name for each in names for name in each)
    assert [[q.question_id for q in each.qa_pairs if "/probe_" not in q.question_id] for each in made] == names
    written = replace(made[0], annotation_meta=replace(made[0].annotation_meta, annotator="llm"))
    assert own_questions(written) == written  # a language model's probes are of this document


def test_a_run_of_d2a_leaves_out_the_probes_of_other_documents(tmp_path: Path) -> None:
    probe = Question(question_id="Oland/probe_0", question="Who?", question_type="irrelevant", is_irrelevant=True)
    offline = AnnotationMeta(annotator="offline")
    records = [replace(r, qa_pairs=(*r.qa_pairs, probe), annotation_meta=offline) for r in river_and_town()]
    write_records(tmp_path / "r.jsonl", records)
    counts = {}
    for foreign_probes in (True, False):
        found, _ = load_data(tmp_path / "r.jsonl", TrainConfig(foreign_probes=foreign_probes), lambda _: None)
        counts[foreign_probes] = sum(len(r.qa_pairs) for r in found)
    assert counts[True] - counts[False] == len(records)
    assert not load_config("smollm2").foreign_probes and load_config("smollm2", recipe="paper").foreign_probes
