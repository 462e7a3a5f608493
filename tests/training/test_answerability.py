"""Answerability: areas and refusals computed by hand, and the command from records to its figures."""

import json
import sys

import pytest

from tests.models.worlds import base_folder, write_checkpoint, write_preset
from tests.training.samples import river_and_town
from training.answerability import main, summarize
from training.records import write_records


def result(answerability, router, bm25, refusal):
    return {"answerability": answerability, "gate_features": [router, bm25, refusal, 1.0]}


def test_each_signal_has_the_area_of_its_own_order():
    answerable = [result(0.9, 3.0, 5.0, -4.0), result(0.4, 1.0, 2.0, -2.0)]
    unanswerable = [result(0.3, 2.0, 5.0, -1.0), result(0.6, 0.0, 9.0, -3.0)]
    figures = summarize(answerable, unanswerable, 0.5)
    # Pairs won of four. Gate: 0.9 both, 0.4 one. Router: 3 both, 1 one. BM25: 5 ties once, 2 none. Of the refusal, the
    # less likely the surer: 4 both, 2 one.
    assert figures["auroc"] == pytest.approx({"gate": 75.0, "router": 75.0, "bm25": 12.5, "refusal": 75.0})
    assert figures["refused"] == {"answerable": 50.0, "unanswerable": 50.0}
    assert figures["n"] == {"answerable": 2, "unanswerable": 2}


def test_the_command_asks_every_question_of_its_passage(tmp_path, monkeypatch, capsys):
    write_records(tmp_path / "r.jsonl", river_and_town())
    write_checkpoint(tmp_path / "checkpoint", "llama")
    arguments = {
        "--records": tmp_path / "r.jsonl",
        "--model": write_preset(tmp_path, "llama"),
        "--checkpoint": tmp_path / "checkpoint",
        "--base": base_folder("llama"),
        "--device": "cpu",
        "--batch": 4,
        "--out": tmp_path / "new" / "rows.jsonl",
    }
    monkeypatch.setattr(sys, "argv", ["answerability", *(str(x) for pair in arguments.items() for x in pair)])
    main()
    figures = json.loads(capsys.readouterr().out)
    assert figures["n"] == {"answerable": 5, "unanswerable": 1}
    # "When was Marn founded?" shares one word with its passage, which both sentences hold; the others share rarer ones.
    assert figures["auroc"]["bm25"] == 100.0
    assert set(figures["auroc"]) == {"gate", "router", "bm25", "refusal"}
    rows = [json.loads(line) for line in (tmp_path / "new" / "rows.jsonl").read_text("utf-8").splitlines()]
    assert [row["is_answerable"] for row in rows] == [True] * 5 + [False]
