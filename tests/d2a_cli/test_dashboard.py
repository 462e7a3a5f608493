"""The live table of a training run: what it shows of each kind of event, and that it cannot be steered."""

import io

from rich.console import Console

from d2a_cli._dashboard import Dashboard, clock

START = {
    "event": "start",
    "system": "doc2atom",
    "device": "cuda:0",
    "processes": 2,
    "parameters": 18_000_000,
    "passages": 11637,
    "spec": {"rank": 8},
}
STEP = {
    "event": "step",
    "step": 50,
    "seconds": 30.0,
    "epoch": 0.14,
    "lr": 0.00025,
    "stage": 1,
    "top_k": 2,
    "lm": 2.5,
    "route": 0.125,
    "top1": 0.75,
    "tokens_per_s": 41000,
    "step_seconds": 0.25,
    "eta_seconds": 90,
}
EVAL = {"event": "eval", "step": 50, "seconds": 33.0, "loss": 1.75, "auroc": 0.987, "correct": 1.5, "shuffled": 2.5}


def shown(*events):
    board = Dashboard()
    for event in events:
        board.take(event)
    out = io.StringIO()
    Console(file=out, width=110, markup=False).print(board.render())
    return out.getvalue()


def test_every_figure_that_people_expect_is_there():
    text = shown(START, STEP, EVAL, {**STEP, "step": 100, "lm": 2.0, "seconds": 60.0, "eta_seconds": 60})
    assert "doc2atom on cuda:0, 2 process(es), 18,000,000 parameters, 11,637 passages" in text
    assert "50%  1:00 gone, 1:00 left" in text
    assert "step 100  epoch 0.14  stage 1  K 2  lr 2.50e-04  41,000 tokens/s  0.250 s/step" in text
    assert "routing top-1 0.75  answerability AUROC 0.987" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["loss", "now", "before", "held", "out", "step", "50"] in rows
    # Losses on the left, and beside them what the evaluation found.
    assert ["lm", "2", "2.5", "loss", "1.75"] in rows and ["route", "0.125", "0.125", "auroc", "0.987"] in rows
    assert ["correct", "1.5"] in rows and ["shuffled", "2.5"] in rows


def test_before_the_first_step_the_latest_event_is_shown():
    assert "cache: done atoms, seconds 3.5" in shown({"event": "cache", "done": "atoms", "seconds": 3.5})
    assert shown().strip() == ""


def test_names_cannot_steer_the_terminal():
    assert "\x1b" not in shown({**START, "device": "cpu\x1b[2J"}, {"event": "prepare", "out": "a\x1b]0;x\x07"})


def test_the_last_evaluations_are_kept():
    text = shown(STEP, *({**EVAL, "step": n} for n in range(1, 8)))
    [header] = [line for line in text.splitlines() if "held out" in line]
    assert header.split()[-8:] == ["step", "4", "step", "5", "step", "6", "step", "7"]


def test_times_are_short():
    assert [clock(s) for s in (0, 59.6, 123, 3723)] == ["0:00", "1:00", "2:03", "1:02:03"]
