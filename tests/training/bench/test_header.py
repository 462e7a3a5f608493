import json

import pytest

from models.checkpoint import find_checkpoint, read_meta
from models.presets import load_preset
from tests.training.bench.sets import record, squad, write
from training.bench.header import command_of, domain_of
from training.bench.run import BenchRequest, load_suites
from training.datasets.manifest import DataManifest, SourceManifest

MANIFEST = DataManifest(
    sources=(SourceManifest(name="squad", split="train", files={}, num_contexts=3, num_questions=9),)
)


def test_a_set_is_in_domain_where_its_family_was_trained_on():
    training = {"data": {"records": "train.jsonl", "manifest": json.loads(json.dumps(MANIFEST.to_dict()))}}
    assert domain_of(training, "squad_v2") == "in-domain"
    assert domain_of(training, "drop") == "zero-shot"
    assert domain_of(training, "longbench/hotpotqa") == "zero-shot"


@pytest.mark.parametrize("training", [{}, {"data": {"records": "train.jsonl.gz", "passages": 11}}, {"data": None}])
def test_a_checkpoint_without_a_manifest_cannot_tell(training):
    assert domain_of(training, "squad") == "unknown"


def test_the_shipped_checkpoint_has_a_domain():
    training = read_meta(find_checkpoint(load_preset("smollm2"))).training
    assert domain_of(training, "squad") in ("in-domain", "unknown")


def test_the_command_makes_the_run_again(tmp_path):
    request = BenchRequest(
        suites=("squad", "drop"),
        systems=("doc2atom", "tuned+ctx"),
        baselines={"tuned+ctx": tmp_path / "a run"},
        limit=5,
        out=tmp_path,
    )
    assert command_of(request) == (
        "d2a bench squad drop --model smollm2 --systems doc2atom,tuned+ctx --bank document --protocol paper --limit 5 "
        f"--seed 0 --device auto --out {tmp_path} --baseline 'tuned+ctx={tmp_path}/a run'"
    )


def test_the_command_names_paths_from_where_it_was_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = BenchRequest(suites=("squad",), base_path=tmp_path / "build" / "base", out=tmp_path.parent / "elsewhere")
    words = command_of(request).split()
    assert words[words.index("--base") + 1] == "build/base"
    assert words[words.index("--out") + 1] == str(tmp_path.parent / "elsewhere")


@pytest.fixture
def data(tmp_path):
    towns = ("Marn", [("Ilse Kant was born in Marn.", [("q1", "Who was born in Marn?", "Ilse Kant")])])
    zoo = ("Otter", [("Otters live in lake Tor.", [("q2", "Where do otters live?", "lake Tor")])])
    write(tmp_path / "squad" / "dev-v1.1.json", squad(towns, zoo))
    return tmp_path


def names(data, *suites):
    return [suite.name for suite in load_suites(BenchRequest(suites=suites, data=data, out=data / "out"))]


def test_refusal_follows_the_suite_that_it_is_made_of(data):
    assert names(data, "squad") == ["squad"]
    assert names(data, "refusal", "squad") == ["squad", "refusal/squad"]
    assert names(data, "refusal/squad") == ["refusal/squad"]


def test_refusal_alone_and_beside_all_is_that_of_its_group(data):
    zoo = [("q3", "Where do otters live?", "lake Tor"), ("q4", "Why do otters sing?")]
    write(data / "squad" / "dev-v2.0.json", squad(("Otter", [("Otters live in lake Tor.", zoo)])))
    assert names(data, "refusal") == ["refusal/squad_v2"]
    assert names(data, "all", "refusal") == ["squad", "squad_v2", "refusal/squad_v2"]
    assert names(data, "all", "refusal/squad") == ["squad", "refusal/squad", "squad_v2"]


def test_a_named_suite_that_its_documents_answer_whole_has_no_refusal(data):
    write(data / "longbench" / "triviaqa.jsonl", [record("1", "triviaqa", "Tor is a lake. What is Tor?")])
    assert names(data, "squad", "longbench/triviaqa", "refusal") == ["squad", "refusal/squad", "longbench/triviaqa"]


def test_the_limit_of_a_refusal_suite_counts_answerable_questions(tmp_path):
    asked = [(f"no{n}", f"Who left Marn in 190{n}?") for n in range(9)]
    passage = ("Ilse Kant was born in Marn.", [*asked, ("yes", "Who was born in Marn?", "Ilse Kant")])
    write(tmp_path / "squad" / "dev-v2.0.json", squad(("Marn", [passage])))
    request = BenchRequest(suites=("refusal/squad_v2",), data=tmp_path, out=tmp_path / "out", limit=1)
    [suite] = load_suites(request)
    assert [(s.kind, s.sample_id) for s in suite.samples if s.kind == "answerable"] == [("answerable", "yes")]
    assert {s.kind for s in suite.samples} == {"answerable", "human"}
