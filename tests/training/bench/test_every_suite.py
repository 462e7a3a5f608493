"""Every name that `d2a bench` takes for a suite, from small files in the official forms to rows, on a CPU."""

import json
from dataclasses import replace

import pytest

import training.bench.protocols
from tests.training.bench.sets import GAME, HARBOUR, drop_answer, hop, judged, paper, record, ropes, squad, write
from tests.training.bench.worlds import request, rows_of
from training.bench.run import run_bench
from training.bench.suites import GROUPS, SUITES

SYSTEMS = ("no-context", "doc2atom")


def drop(passage, question, **answer):
    qa = {"query_id": question, "question": question, "answer": drop_answer(**answer), "validated_answers": []}
    return {"passage": passage, "qa_pairs": [qa]}


def write_squads(folder):
    asked = [("a", "Who beat the Hens?", "The Otters"), ("b", "Who scored for the Hens?", "Cy")]
    dug = [("c", "When was the harbour of Marn dug?", "1802"), ("d", "What did ships carry?", "wool")]
    articles = ("Otters", [(GAME, asked)]), ("Marn", [(HARBOUR, dug)])
    write(folder / "squad" / "dev-v1.1.json", squad(*articles))
    impossible = [*asked, ("e", "Who lost to the Badgers?")]
    write(folder / "squad" / "dev-v2.0.json", squad(("Otters", [(GAME, impossible)]), articles[1]))
    for name in ("quoref-dev-v0.1", "quoref_test_perturbations_1", "quoref_original_subset_1"):
        write(folder / "quoref" / f"{name}.json", squad(*articles))


def write_drop(folder):
    passages = {
        "1": drop(GAME, "How many points did the Otters score?", number="14"),
        "2": drop(HARBOUR, "Where did ships carry wool?", spans=["to the north"]),
    }
    for name in ("drop_dataset_dev", "drop_contrast_sets_test"):
        write(folder / "drop" / f"{name}.json", passages)


def write_ropes(folder):
    wind = ("Wind cools.", "Ann stood at sea.", [("1", "Was Ann or the miller colder?", ["Ann"])])
    sun = ("Sun warms.", "Bo lay in grass.", [("2", "Was Bo or the smith warmer?", ["Bo"])])
    for name in ("dev-v1.0", "ropes_contrast_set_1"):
        write(folder / "ropes" / f"{name}.json", ropes(wind, sun))


def write_hops(folder):
    hops = [hop("1", "Which lake lies by Tor?", "Tor"), hop("2", "Which sea lies by Sol?", "Sol")]
    write(folder / "2wikimultihopqa" / "dev.json", hops)
    write(folder / "hotpotqa" / "hotpot_dev_distractor_v1.json", hops)
    rows = [
        {
            "id": row["_id"],
            "question": row["question"],
            "answer": row["answer"],
            "answerable": True,
            "paragraphs": [
                {"title": title, "paragraph_text": " ".join(lines), "is_supporting": title != "Hens"}
                for title, lines in row["context"]
            ],
        }
        for row in hops
    ]
    write(folder / "musique" / "musique_ans_v1.0_dev.jsonl", rows)


def write_documents(folder):
    papers = {}
    for name, bird in (("Marn", "owls"), ("Sol", "terns")):
        papers[name] = paper((name, [judged([bird])]))
        papers[name]["qas"][0]["question"] = f"What lives in {name}?"
        papers[name]["full_text"][0]["paragraphs"] = [f"In {name} there are {bird}."]
    write(folder / "qasper" / "qasper-test-v0.3.json", papers)
    stories = [
        {
            "document": {"summary": {"text": text}},
            "question": {"text": question},
            "answers": [{"text": answer}, {"text": answer}],
        }
        for text, question, answer in ((GAME, "Who won the game?", "the Otters"), (HARBOUR, "When was it dug?", "1802"))
    ]
    write(folder / "narrativeqa" / "test.json", stories)


def write_longbench(folder):
    for name in GROUPS["longbench"]:
        part = name.removeprefix("longbench/")
        if part == "multifieldqa_zh":
            rows = [record(f"{part}1", part, "谁在湖里？", "水獭住在湖里。", ["水獭"])]
        else:
            rows = [record(f"{part}1", part, "Who sits by lake Tor?", "Ann sits by lake Tor.", ["Ann"])]
            rows.append(record(f"{part}2", part, "Who sleeps on moor Sol?", "Bo sleeps on moor Sol.", ["Bo"]))
        write(folder / "longbench" / f"{part}.jsonl", rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for fill in (write_squads, write_drop, write_ropes, write_hops, write_documents, write_longbench):
        fill(folder)
    return folder


@pytest.fixture(autouse=True)
def short_answers(monkeypatch):
    protocol_for = training.bench.protocols.protocol_for
    monkeypatch.setattr(
        training.bench.protocols, "protocol_for", lambda *asked: replace(protocol_for(*asked), max_new_tokens=3)
    )


def measured(folder, data, *suites):
    """Run two systems with --limit 1; return the names of the suites in the order of their rows."""
    out = run_bench(
        request(folder, suites=suites, data=data, systems=SYSTEMS, limit=1, protocol="official"), lambda event: None
    )
    rows = rows_of(out)
    assert [row["error"] for row in rows] == [None] * len(rows)
    header = json.loads((out / "run.json").read_text())
    for name, facts in header["suites"].items():
        systems = [row["system"] for row in rows if row["suite"] == name]
        assert systems == [system for system in SYSTEMS for _ in range(facts["n"])], name
    return list(dict.fromkeys(row["suite"] for row in rows)), header["suites"]


def test_every_set_has_rows(tmp_path, data):
    names, facts = measured(tmp_path, data, *SUITES)
    assert names == list(SUITES)
    assert {name: found["n"] for name, found in facts.items()} == dict.fromkeys(SUITES, 1)


def test_groups_have_the_rows_of_their_sets(tmp_path, data):
    assert measured(tmp_path / "longbench", data, "longbench")[0] == list(GROUPS["longbench"])
    everything, _ = measured(tmp_path / "all", data, "all", "refusal")
    assert [name for name in everything if not name.startswith("refusal/")] == list(SUITES)


def test_refusal_has_rows_of_both_sides_for_every_set_that_has_such_questions(tmp_path, data):
    names, _ = measured(tmp_path, data, "refusal")
    # A single Chinese text has no stranger whose question it could be asked.
    assert names == [f"refusal/{name}" for name in GROUPS["refusal"] if name != "longbench/multifieldqa_zh"]
    kinds = {name: {row["kind"] for row in rows_of(tmp_path / "out") if row["suite"] == name} for name in names}
    assert all("answerable" in found and len(found) > 1 for found in kinds.values()), kinds
