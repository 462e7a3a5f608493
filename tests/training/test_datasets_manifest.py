"""The data manifest: what took part, what was left out and why, and what is in-domain."""

import hashlib
import json
from collections import Counter

from training.datasets import LoadedSource
from training.datasets.context import Context, QAItem
from training.datasets.manifest import DataManifest, SourceManifest, clean_sources


def passage(text, *questions, dataset="squad"):
    items = tuple(QAItem(question_id=q, question=q, answers=()) for q in questions)
    return Context(dataset=dataset, context_id=text, title="", text=text, questions=items, mode="extractive")


def sources(tmp_path):
    file = tmp_path / "train.json"
    file.write_text("[]")
    first = (passage("Ann sat.", "Who?", "Why?"), passage("Held out.", "What?"), passage("No questions."))
    second = (passage("Ann sat.", "How?", dataset="boolq"), passage("Bo ran.", "Who?", dataset="boolq"))
    return [
        LoadedSource(name="squad", split="train", contexts=first, files=(file,), dropped=Counter(malformed=2)),
        LoadedSource(name="boolq", split="train", contexts=second, files=()),
    ]


def test_what_is_left_goes_to_the_first_source_that_has_it(tmp_path):
    kept, _ = clean_sources(sources(tmp_path), {"drop": [passage("Held out!")]})
    assert {
        name: [(c.text, [q.question for q in c.questions]) for c in contexts] for name, contexts in kept.items()
    } == {
        "squad": [("Ann sat.", ["Who?", "Why?", "How?"])],
        "boolq": [("Bo ran.", ["Who?"])],
    }


def test_the_manifest_counts_what_is_left_and_every_reason(tmp_path):
    _, manifest = clean_sources(sources(tmp_path), {"drop": [passage("Held out!")], "musique": []})
    squad, boolq = manifest.sources
    assert squad == SourceManifest(
        name="squad",
        split="train",
        files={"train.json": hashlib.sha256(b"[]").hexdigest()},
        num_contexts=1,
        num_questions=3,
        dropped={"malformed": 2, "no_questions": 1, "overlap": 1},
        overlaps={"drop": 1},
    )
    assert (boolq.num_contexts, boolq.dropped, boolq.overlaps) == (1, {"merged": 1}, {})
    assert manifest.held_out == {"drop": 1, "musique": 0}


def test_a_manifest_comes_back_from_json(tmp_path):
    _, manifest = clean_sources(sources(tmp_path), {"drop": [passage("Held out!")]})
    assert DataManifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest


def test_many_files_share_one_fingerprint_that_each_of_them_changes(tmp_path):
    def fingerprint(last):
        files = [tmp_path / f"{number}.csv" for number in range(17)]
        for file in files:
            file.write_text("x")
        files[-1].write_text(last)
        source = LoadedSource(name="fairytaleqa", split="train", contexts=(), files=tuple(files))
        return clean_sources([source], {})[1].sources[0].files

    assert list(fingerprint("x")) == ["17 files"]
    assert fingerprint("x") == fingerprint("x") != fingerprint("y")


def test_a_set_is_in_domain_if_its_family_took_part():
    def source(name, num_contexts=1):
        return SourceManifest(name=name, split="train", files={}, num_contexts=num_contexts, num_questions=1)

    manifest = DataManifest(sources=(source("squad"), source("2wikimultihopqa"), source("drop", num_contexts=0)))
    names = ("squad_v2", "longbench/2wikimqa", "2wikimultihopqa", "drop", "hotpotqa", "longbench/triviaqa")
    assert [manifest.in_domain(name) for name in names] == [
        "in-domain",
        "in-domain",
        "in-domain",
        "zero-shot",
        "zero-shot",
        "zero-shot",
    ]
