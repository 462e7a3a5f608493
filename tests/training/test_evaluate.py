"""The evaluation: honest control rows, figures computed by hand, and the command from records to a summary."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from models.generation import prefill
from models.injection import attached
from models.prompts import prompt_ids
from models.router import AnswerabilityGate
from tests.models.tiny import tiny_network
from tests.models.worlds import SPECS, base_folder, write_checkpoint, write_preset
from tests.training.samples import colours, make_record, river_and_town
from tests.training.worlds import base_of
from training.evaluate import (
    CONTEXT_ROWS,
    MEMORY_ROWS,
    OFF_TOPIC_ROWS,
    Evaluation,
    bm25_ranks,
    hit_rates,
    main,
    router_ranks,
    summarize,
)
from training.library import Library, Reply
from training.records import write_records

GATE = AnswerabilityGate(coefficients=(1.0, 2.0, 0.1, 0.0), bias=-1.0, threshold=0.5)


def evaluation_of(records, recipe="d2a"):
    base = base_of("llama")
    library = Library(base, tiny_network(base, SPECS[recipe]).requires_grad_(False), records)
    library.compile()
    return Evaluation(library, GATE)


def answerable(library):
    return [a for p in range(len(library.records)) for a in library.asks(p) if a.question.answers]


@pytest.fixture(scope="module")
def evaluation():
    return evaluation_of(colours(8))


@pytest.fixture
def spied(evaluation, monkeypatch):
    """Return the evaluation with what its library composed and put into prompts, without generating."""
    seen = {"rows": [], "contexts": [], "may_refuse": []}

    def answer(asks, adapter, *, contexts=None, max_new_tokens=0, may_refuse=True):
        seen["contexts"].append(contexts)
        seen["may_refuse"].append(may_refuse)
        return [Reply(text="red", refusal_logprob=-1.0) for _ in asks]

    def adapter(routed):
        weights = routed.log_weight_BK.exp().tolist()
        rows = zip(routed.row_BK.tolist(), weights, strict=True)
        seen["rows"].append([{r: w for r, w in zip(*pair, strict=True) if w > 0} for pair in rows])

    monkeypatch.setattr(evaluation.library, "answer", answer)
    monkeypatch.setattr(evaluation.library, "adapter", adapter)
    return evaluation, seen


@pytest.mark.parametrize("group", [slice(0, 4), slice(0, 3), slice(2, 3)])
def test_no_question_of_the_shuffled_row_gets_atoms_of_its_own_article(spied, group):
    evaluation, seen = spied
    asks = answerable(evaluation.library)[group]  # among them batches of one passage, and of one question
    for _ in range(5):
        evaluation.run(asks, ["shuffled"])
    library = evaluation.library
    for composed in seen["rows"]:
        for ask, rows in zip(asks, composed, strict=True):
            titles = {library.records[library.passage_of[row]].title for row in rows}
            assert rows and titles.isdisjoint({library.records[ask.passage].title})


def test_both_shuffled_rows_attach_the_same_memory_and_only_one_lets_the_model_refuse(spied):
    evaluation, seen = spied
    evaluation.run(answerable(evaluation.library)[:4], ["shuffled", "shuffled-answering"])
    first, second = seen["rows"]
    assert first == second and all(first)
    assert seen["may_refuse"] == [True, False]


def test_a_reply_that_may_not_refuse_begins_otherwise(evaluation, monkeypatch):
    library = evaluation.library
    ask = answerable(library)[0]
    tokenizer = library.base.tokenizer
    best = int(prefill(library.base, [prompt_ids(tokenizer, ask.question.question)], [0]).next_logits_BV.argmax())
    monkeypatch.setattr("training.library.refusal_ids", lambda _: [best])  # as if it would refuse
    monkeypatch.setattr("models.generation.refusal_beginnings", lambda _: (best,))
    refusal = tokenizer.decode([best]).strip()
    free, kept = (library.answer([ask], None, max_new_tokens=1, may_refuse=may)[0] for may in (True, False))
    assert refusal and free.text == refusal != kept.text
    assert (free.overruled, kept.overruled) == (False, True)


@pytest.mark.parametrize("gate_alone", [False, True])
def test_a_gate_that_decides_alone_overrules_the_memory_and_never_the_bare_base(evaluation, monkeypatch, gate_alone):
    library = evaluation.library
    router = replace(library.network.spec.router, gate_alone=gate_alone)
    monkeypatch.setattr(library.network, "spec", replace(library.network.spec, router=router))
    ask = answerable(library)[0]
    adapter = library.adapter(library.gold_route([ask]))
    monkeypatch.setattr("models.generation.refusal_beginnings", lambda _: (0,))
    for given, expected in ((adapter, gate_alone), (None, False)):
        with attached(library.base, given):
            prompt = prompt_ids(library.base.tokenizer, ask.question.question)
            best = int(prefill(library.base, [prompt], [0]).next_logits_BV.argmax())
        monkeypatch.setattr("training.library.refusal_ids", lambda _, best=best: [best])
        (reply,) = library.answer([ask], given, max_new_tokens=1)
        assert reply.overruled == expected


def test_the_table_says_what_f1_would_be_had_the_model_kept_its_refusals():
    rows = [{"f1": 1.0, "em": 1.0}, {"f1": 0.5, "em": 0.0, "overruled": True}]
    figures = summarize({"gold": rows}, 0.5)["gold"]
    # (1.0 + 0.5) / 2 as used; (1.0 + 0) / 2 with the refusal; one of two was overruled.
    assert (figures["f1"], figures["may_refuse"], figures["overruled"]) == (75.0, 50.0, 50.0)


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, ["memory"] * 2), (1.0, ["base"] * 2)])
def test_a_wrong_document_leaves_the_answer_to_the_base_where_the_gate_refuses(monkeypatch, threshold, expected):
    evaluation = evaluation_of(colours(4))
    evaluation.gate = replace(GATE, threshold=threshold)

    def answer(asks, adapter, **_):
        return [Reply(text="base" if adapter is None else "memory", refusal_logprob=-1.0) for _ in asks]

    monkeypatch.setattr(evaluation.library, "answer", answer)
    results = evaluation.run(answerable(evaluation.library)[:2], ["wrong-document"])["wrong-document"]
    assert [r["answer"] for r in results] == expected
    assert [r["refused"] for r in results] == [threshold == 1.0] * 2


def test_rows_route_over_the_banks_that_they_name(spied):
    evaluation, seen = spied
    asks = answerable(evaluation.library)[:2]
    evaluation.run(asks, ["gold", "passage", "library"])
    gold, passage, library = seen["rows"]
    assert gold == [{0: 1.0}, {1: 1.0}]
    assert [set(rows) for rows in passage] == [{0, 1, 2}, {0, 1, 2}]
    assert all(len(rows) == 8 and set(rows) - {0, 1, 2} for rows in library)


def test_a_row_may_name_how_many_atoms_it_routes(spied):
    evaluation, seen = spied
    asks = answerable(evaluation.library)[:2]
    evaluation.run(asks, ["passage@1", "passage@2", "library@5"])
    assert [[len(rows) for rows in composed] for composed in seen["rows"]] == [[1, 1], [2, 2], [5, 5]]


def test_off_topic_banks_hold_nothing_of_the_questions_article(spied):
    evaluation, seen = spied
    library, asks = evaluation.library, answerable(evaluation.library)
    evaluation.run(asks, OFF_TOPIC_ROWS)
    for composed in seen["rows"]:
        for ask, rows in zip(asks, composed, strict=True):
            titles = {library.records[library.passage_of[row]].title for row in rows}
            assert library.records[ask.passage].title not in titles


def test_contexts_are_the_routed_atoms_or_documents(spied):
    evaluation, seen = spied
    library, asks = evaluation.library, answerable(evaluation.library)[:2]
    evaluation.run(asks, ["no-context", "base+document", "passage+atoms", "passage+document"])
    nothing, own, atoms, documents = seen["contexts"]
    assert nothing is None
    assert own == documents == [library.records[0].context] * 2
    for text, rows in zip(atoms, seen["rows"][0], strict=True):
        assert text == " ".join(library.texts[row] for row, weight in rows.items() if weight > 1e-3)


def test_results_score_the_reply_and_rank_the_gold_atom(spied):
    evaluation, _ = spied
    asks = answerable(evaluation.library)[:3]  # colours of passage 0: red, blue, green
    results = evaluation.run(asks, ["no-context", "gold", "passage"])
    assert [r["f1"] for r in results["no-context"]] == [1.0, 0.0, 0.0]
    for row in ("no-context", "gold"):  # nothing was routed, so that there is nothing to judge
        assert {"answerability", "rank"}.isdisjoint(results[row][0])
    for ask, result in zip(asks, results["passage"], strict=True):
        score, lexical, refusal, size, *_ = result["gate_features"]
        assert (refusal, size) == (-1.0, pytest.approx(np.log(3)))
        logit = score + 2 * lexical - 0.1 - 1  # the gate of these tests
        assert result["answerability"] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-4)
        found = evaluation.library.route_passages(evaluation.library.query_keys([ask]), [ask], top_k=3)
        assert found.row_BK[0, result["rank"] - 1] in ask.gold


def test_every_row_runs_on_a_tiny_model(evaluation):
    asks = answerable(evaluation.library)[:2]
    results = evaluation.run(asks, [*MEMORY_ROWS, *CONTEXT_ROWS, *OFF_TOPIC_ROWS])
    assert all([i["id"] for i in items] == [a.question.question_id for a in asks] for items in results.values())
    # Text in the prompt and memory both reach the answer: no two of these rows say the same to all questions.
    said = {row: tuple(i["answer"] for i in results[row]) for row in ("no-context", "gold", "base+document")}
    assert len(set(said.values())) == 3


def test_bm25_ranks_the_gold_atom_within_the_passage_and_among_all():
    records = river_and_town()
    records.append(make_record("Zoo", ["Nine hens rule Marn.", "Hens rule."], [("Do hens rule?", "rule", [1])]))
    library = Library(base_of("llama"), None, records)
    asks = [library.asks(1)[0], library.asks(4)[0], library.asks(1)[1]]
    ranks = bm25_ranks(library, asks)
    assert ranks["passage"] == [1, 1, 10**9]  # the last has no gold atom
    assert ranks["library"][:2] == [2, 1]  # "Nine hens rule Marn." is shorter and holds both words


def test_router_ranks_are_those_of_the_answered_rows(evaluation, monkeypatch):
    library = evaluation.library
    # Without words, which would find every answer at once.
    monkeypatch.setattr(library.network.router.lexical, "data", torch.tensor(0.0))
    asks = [a for passage in range(len(library.records)) for a in library.asks(passage) if a.question.answers]
    ranks = router_ranks(library, asks, batch=2)
    answered = evaluation.run(asks, ["library"])["library"]
    assert ranks["library"] == [item["rank"] or 10**9 for item in answered]
    assert len(set(ranks["library"])) > 1
    # A passage has fewer atoms than 8, so the gold atom is always among them.
    assert max(ranks["passage"]) <= max(len(r.atoms) for r in library.records)


def test_hit_rates_count_ranks_up_to_k():
    rates = hit_rates({"passage": [1, 2, 3, 9], "library": [1, 10**9, 8, 4]})
    assert [rates[f"passage_top{k}"] for k in (1, 2, 3, 8)] == [25.0, 50.0, 75.0, 75.0]
    assert [rates[f"library_top{k}"] for k in (1, 2, 3, 8)] == [25.0, 25.0, 25.0, 75.0]


def test_the_summary_is_the_mean_of_the_results_in_percent():
    def item(f1, answerability, rank):
        return {"f1": f1, "em": float(f1 == 1), "answerability": answerability, "rank": rank}

    results = {
        "library": [item(1.0, 0.9, 1), item(0.5, 0.4, 3), item(0.0, 0.8, None), item(0.3, 0.6, 5)],
        "off-topic library": [item(0.0, 0.1, None), item(0.0, 0.7, None)],
        "no-context": [{"f1": 0.2, "em": 0.0}],
    }
    table = summarize(results, 0.5)
    # Refused: the second. F1 (1 + 0.5 + 0 + 0.3) / 4 = 0.45; with the gate (1 + 0 + 0 + 0.3) / 4 = 0.325.
    assert table["library"] == pytest.approx(
        {"n": 4, "f1": 45, "em": 25, "refused": 25, "f1_gated": 32.5, "top1": 25, "top3": 50, "topk": 75}
    )
    # Off-topic 0.1 is refused. Pairs against 0.9, 0.4, 0.8, 0.6: all four above 0.1, two above 0.7: 6 of 8.
    # Refusing the second of the answered costs 0.5 / 4, more than a point: no higher threshold than its 0.4.
    at_one_point = {"at_one_point": 0.4, "refused_at_one_point": 50}
    assert table["off-topic library"] == pytest.approx({"n": 2, "refused": 50, "auroc": 75, **at_one_point})
    assert table["no-context"] == pytest.approx({"n": 1, "f1": 20, "em": 0})


def test_the_command_writes_a_summary_and_every_prediction(tmp_path, monkeypatch, capsys):
    write_records(tmp_path / "r.jsonl.gz", colours(6))
    write_records(tmp_path / "others.jsonl.gz", river_and_town())
    write_checkpoint(tmp_path / "checkpoint", "llama")
    arguments = {
        "--records": tmp_path / "r.jsonl.gz",
        "--strangers": tmp_path / "others.jsonl.gz",
        "--model": write_preset(tmp_path, "llama"),
        "--checkpoint": tmp_path / "checkpoint",
        "--base": base_folder("llama"),
        "--device": "cpu",
        "--limit": 3,
        "--batch": 2,
        "--out": tmp_path / "out",
    }
    asked = ["library", "shuffled", "off-topic library"]
    given = [str(x) for pair in arguments.items() for x in pair]
    monkeypatch.setattr(sys, "argv", ["evaluate", *given, "--rows", *asked])
    main()
    rows = [*asked, "off-topic strangers"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["questions"], summary["atoms"], summary["threshold"]) == (3, 18, 0.5)
    assert list(summary["rows"]) == rows
    assert summary["bm25"]["library_top1"] == 100.0  # every question names its place
    predictions = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert sorted(p["row"] for p in predictions) == sorted(rows * 3)
    own = {question.question_id for record in river_and_town() for question in record.qa_pairs}
    assert own >= {p["id"] for p in predictions if p["row"] == "off-topic strangers"}
    assert "library" in capsys.readouterr().out
