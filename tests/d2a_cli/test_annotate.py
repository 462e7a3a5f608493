"""`d2a annotate`: records, their summary, cost preview, and going on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2a_cli import _output
from models.atomizer import JobEstimate
from models.config import AtomizerConfig
from models.errors import AtomizerError
from training.annotation.offline import OfflineAnnotator
from training.annotation.shards import read_shards

Run = Callable[..., Any]
LARGE = JobEstimate(num_calls=120, num_input_tokens=90_000, num_output_tokens=60_000, cost_usd=0.125)


@pytest.fixture
def source(home: Path) -> Path:
    """Three passages in SQuAD's form, with a question each."""
    paragraphs = []
    for number in range(3):
        context = f"Beacon {number} of the Tern coast was lit in {1800 + number}. Its keeper had {number + 2} lamps."
        answer = str(1800 + number)
        qa = {
            "id": f"q{number}",
            "question": f"When was beacon {number} lit?",
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        paragraphs.append({"context": context, "qas": [qa]})
    path = home / "train-v1.1.json"
    path.write_text(json.dumps({"data": [{"title": "Beacons", "paragraphs": paragraphs}]}))
    return path


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline annotator that would ask an endpoint 120 times."""
    monkeypatch.setattr(OfflineAnnotator, "estimate", lambda self, contexts: LARGE if contexts else None)


def test_a_set_becomes_a_folder_of_records(d2a: Run, source: Path) -> None:
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records", "--probes", "1")
    assert (result.exit_code, result.stdout) == (0, "records\n")
    # Two sentences, one question and one probe a passage.
    assert result.stderr.splitlines() == [
        "3/3 contexts",
        "3 records of 3 contexts, 0 discarded; 6 atoms; 6 questions, 3 irrelevant, 0 with warnings",
    ]
    records = list(read_shards(Path("records")))
    assert [r.qa_pairs[0].question_id for r in records] == ["q0", "q1", "q2"]
    assert all(r.qa_pairs[0].gold_atom_ids == ("atom_0",) for r in records)


def test_json_summary_holds_every_count(d2a: Run, source: Path) -> None:
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "r", "--limit", "2", "--probes", "0", "--json")
    summary = json.loads(result.stdout)
    assert (summary["out"], summary["num_records"], summary["num_atoms"]) == ("r", 2, 4)
    assert (summary["num_questions"], summary["num_discarded"], summary["num_probes"]) == (2, 0, 0)


def test_a_finished_folder_is_kept_and_another_annotation_needs_consent(d2a: Run, source: Path) -> None:
    command = ["annotate", str(source), "--dataset", "squad", "--out", "records"]
    d2a(*command, "--shard-size", "2")
    shard = Path("records/shard-00001.jsonl")
    before = shard.stat().st_mtime_ns
    assert d2a(*command, "--shard-size", "2").exit_code == 0
    assert shard.stat().st_mtime_ns == before
    result = d2a(*command, "--shard-size", "3")
    assert (result.exit_code, shard.exists()) == (1, True)
    assert "it differs in shard_size" in result.stderr
    assert d2a(*command, "--shard-size", "3", "--no-resume").exit_code == 0
    assert not shard.exists()


@pytest.mark.parametrize(
    ("dataset", "name", "message"),
    [("squid", None, "dataset must be one of"), ("squad", "missing.json", "missing.json does not exist")],
)
def test_a_wrong_set_or_path_is_one_line(d2a: Run, source: Path, dataset: str, name: str | None, message: str) -> None:
    result = d2a("annotate", name or str(source), "--dataset", dataset, "--out", "records")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert message in result.stderr


def test_a_large_job_is_refused_without_a_terminal_and_without_consent(d2a: Run, source: Path, priced: None) -> None:
    command = ["annotate", str(source), "--dataset", "squad", "--out", "records"]
    result = d2a(*command)
    assert (result.exit_code, Path("records").exists()) == (2, False)
    assert "annotating 3 contexts takes about 120 requests: 90000 tokens in, up to 60000 out, about $0.12" in (
        result.stderr
    )
    assert "Add --yes" in result.stderr
    assert d2a(*command, "--yes").exit_code == 0
    # Nothing is left to ask.
    assert "requests" not in d2a(*command).stderr


@pytest.mark.parametrize(("reply", "exit_code"), [("y\n", 0), ("n\n", 1)])
def test_a_large_job_asks_on_a_terminal(
    d2a: Run, source: Path, priced: None, monkeypatch: pytest.MonkeyPatch, reply: str, exit_code: int
) -> None:
    monkeypatch.setattr(_output, "can_prompt", lambda: True)
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records", stdin=reply)
    assert (result.exit_code, Path("records").exists()) == (exit_code, exit_code == 0)


def test_the_llm_annotator_needs_a_key_or_a_server(d2a: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records", "--annotator", "llm")
    assert result.exit_code == 1
    assert "OPENAI_API_KEY is not set" in result.stderr


def test_ctrl_c_says_how_to_go_on(d2a: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: OfflineAnnotator, context: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OfflineAnnotator, "annotate", interrupted)
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records")
    assert result.exit_code == 130
    assert "Run the same command again to go on" in result.stderr


def test_a_run_without_a_single_record_fails(d2a: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.annotation import DiscardedSampleError

    def discarded(self: OfflineAnnotator, context: object) -> None:
        raise DiscardedSampleError("window 1 of 1: empty content")

    monkeypatch.setattr(OfflineAnnotator, "annotate", discarded)
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records")
    assert result.exit_code == 1
    assert "0 records of 3 contexts, 3 discarded" in result.stderr


def test_a_server_that_refuses_stops_the_run_with_its_reason(
    d2a: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: OfflineAnnotator, context: object) -> None:
        raise AtomizerError("the quota is used up", hint="Add credit")

    monkeypatch.setattr(OfflineAnnotator, "annotate", refused)
    result = d2a("annotate", str(source), "--dataset", "squad", "--out", "records")
    assert (result.exit_code, result.stderr) == (1, "error: the quota is used up. Add credit\n")


def test_training_on_raw_sets_with_a_model_as_annotator_previews_the_cost(
    d2a: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(name: str, contexts: Any, *, config: Any, num_probes: int) -> OfflineAnnotator:
        assert (name, config.backend) == ("llm", "openai")
        annotator = OfflineAnnotator(AtomizerConfig(), contexts, num_probes=num_probes)
        monkeypatch.setattr(annotator, "estimate", lambda contexts: LARGE if contexts else None)
        return annotator

    monkeypatch.setattr("training.annotation.build_annotator", build)
    monkeypatch.setattr("training.run.train", lambda request, *, on_event: Path("runs/done"))
    folder = source.parent / "raw" / "squad"
    folder.mkdir(parents=True)
    source.rename(folder / source.name)
    command = ["train", "--data", str(folder.parent), "--annotator", "llm", "--out", "run"]
    refused = d2a(*command)
    assert refused.exit_code == 2, refused.stderr
    assert "annotating takes about 120 requests: 90000 tokens in, up to 60000 out, about $0.12" in refused.stderr
    assert not list(Path("run").rglob("*.jsonl"))
    assert d2a(*command, "--yes").exit_code == 0
    assert [r.qa_pairs[0].question_id for r in read_shards(Path("run/records/squad"))] == ["q0", "q1", "q2"]
