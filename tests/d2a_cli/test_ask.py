"""`d2a ask`: what reaches stdout and stderr, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from d2a_cli import _answers, _output, _repl
from models.checkpoint import data_root

Run = Callable[..., Any]


def test_answer_and_citation_are_data_and_nothing_else_is(d2a: Run, fake: ModuleType) -> None:
    result = d2a("ask", "When was it lit?")
    assert result.exit_code == 0
    # The lone ESC of the stream is dropped; what followed it in the next token is plain text by then.
    assert result.stdout.splitlines() == [
        "In 1874 ≤ ✓ 机.[2J",
        f'[1] {_output.sanitize(fake.HOSTILE, one_line=True)}, p. iv: "The lighthouse was lit in 1874 ≤ ✓ 机."',
    ]
    assert result.stderr == ""


def test_gate_and_model_refusals_print_one_word_and_say_who_refused(d2a: Run) -> None:
    gate = d2a("ask", "the gate")
    assert (gate.exit_code, gate.stdout) == (3, "unanswerable\n")
    assert "refused by the gate: answerability 0.125 < threshold 0.500" in gate.stderr
    model = d2a("ask", "the model")
    assert (model.exit_code, model.stdout) == (3, "unanswerable\n")
    assert "refused by the model" in model.stderr


def test_answer_without_support_is_marked(d2a: Run) -> None:
    assert "[!] not supported by the memory's atoms" in d2a("ask", "a guess").stdout.splitlines()
    assert "not supported" not in d2a("ask", "known").stdout


def test_short_answer_that_begins_like_a_refusal_is_still_printed(
    capsys: pytest.CaptureFixture[str], fake: ModuleType
) -> None:
    stream = _answers.AnswerStream()
    stream("UN")
    assert capsys.readouterr().out == ""
    stream.finish(fake.answer("who?", text="UN"))
    assert capsys.readouterr().out == "UN\n"


def test_answer_reaches_the_terminal_token_by_token(capsys: pytest.CaptureFixture[str]) -> None:
    stream = _answers.AnswerStream()
    shown = []
    for token in (" Un", "der ", "the 桥"):
        stream(token)
        shown.append(capsys.readouterr().out)
    assert shown == ["", "Under ", "the 桥"]


def test_json_answer_has_the_documented_fields(d2a: Run) -> None:
    result = d2a("ask", "--json", "When?")
    form = json.loads(result.stdout)
    assert list(form) == list(_answers.ANSWER_SCHEMA)
    assert list(form["citations"][0]) == list(_answers.ANSWER_SCHEMA["citations"][0])
    assert list(form["atoms"][0]) == list(_answers.ANSWER_SCHEMA["atoms"][0])
    assert (form["status"], form["answer"], form["refused_by"]) == ("answered", "In 1874 ≤ ✓ 机.", None)
    assert "\x9b" not in result.stdout and "\u202e" not in result.stdout
    assert "\x9b31m" in form["citations"][0]["document_title"]  # JSON keeps the data; only its spelling is safe


def test_json_refusal_and_error_keep_their_exit_codes(d2a: Run) -> None:
    refusal = d2a("ask", "--json", "the gate")
    assert refusal.exit_code == 3
    assert json.loads(refusal.stdout)["refused_by"] == "gate"
    error = d2a("ask", "--json", "broken")
    assert error.exit_code == 1
    assert json.loads(error.stdout)["next_step"] == "Run: d2a train --model gemma"
    usage = d2a("ask", "--json", stdin="")
    assert usage.exit_code == 2
    assert json.loads(usage.stdout)["status"] == "error"


def test_error_is_one_line_that_ends_in_the_next_step(d2a: Run) -> None:
    result = d2a("ask", "broken")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no checkpoint for gemma. Run: d2a train --model gemma\n"
    bug = d2a("ask", "bug")
    assert bug.exit_code == 1
    assert bug.stderr == (
        "error: internal error, RuntimeError: index 7 out of range. "
        "Run it again with D2A_DEBUG=1 and report the traceback\n"
    )


def test_traceback_is_shown_only_on_request(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in d2a("ask", "bug").stderr
    monkeypatch.setenv("D2A_DEBUG", "1")
    assert "Traceback" in d2a("ask", "bug").stderr


def test_interrupt_ends_in_130(d2a: Run) -> None:
    assert d2a("ask", "stop").exit_code == 130


def test_question_comes_from_a_pipe(d2a: Run, memory: Any) -> None:
    assert d2a("ask", stdin="When was it lit?\n").exit_code == 0
    assert memory.calls == [("ask", "When was it lit?")]


def test_piped_question_may_have_a_byte_order_mark_or_bytes_that_are_no_text(d2a: Run, memory: Any) -> None:
    d2a("ask", stdin=b"\xef\xbb\xbfWhen?\r\n")
    d2a("ask", stdin=b"caf\xe9?")
    assert memory.calls == [("ask", "When?"), ("ask", "caf\ufffd?")]


def test_no_question_without_a_terminal_is_a_usage_error(d2a: Run, memory: Any) -> None:
    result = d2a("ask", stdin="  \n")
    assert result.exit_code == 2
    assert "there is no question" in result.stderr
    assert memory.calls == []


def test_question_that_looks_like_an_option_names_the_double_dash(d2a: Run, memory: Any) -> None:
    result = d2a("ask", "-5 degrees is what?")
    assert result.exit_code == 2
    assert "goes after '--'" in result.stderr
    assert "goes after '--'" not in d2a("ask", "--nonsense", "x").stderr
    assert d2a("ask", "--", "-5 degrees is what?").exit_code == 0
    assert memory.calls == [("ask", "-5 degrees is what?")]


def test_question_without_quotes_names_the_quotes(d2a: Run, memory: Any) -> None:
    result = d2a("ask", "When", "was", "it", "lit?")
    assert (result.exit_code, memory.calls) == (2, [])
    assert "Put the question in quotes" in result.stderr


def test_explain_lists_candidates_by_weight_as_tabs_when_piped(d2a: Run) -> None:
    lines = d2a("ask", "--explain", "When?").stdout.splitlines()
    start = next(i for i, text in enumerate(lines) if text.startswith("used\tatom\tcosine"))
    first = lines[start + 1].split("\t")
    assert first[:8] == ["*", "00c0ffee00c0ffee-000001", "0.750", "0.500", "-", "-", "2.250", "0.875"]
    assert first[10] == ("The lighthouse was lit in 1874. " * 8).strip()  # never cut when piped
    assert lines[start + 2].split("\t")[1] == "low"
    assert lines[-1] == "answerability 0.900, threshold 0.500"


def test_flags_reach_the_memory(d2a: Run, memory: Any) -> None:
    flags = ("--top-k", "3", "--threshold", "0.25", "--context", "atoms", "--on-irrelevant", "base")
    assert d2a("ask", "q", *flags, "--attn", "eager", "--model", "qwen", "--max-new-tokens", "9").exit_code == 0
    config = memory.config
    assert (config.top_k, config.threshold, config.context, config.on_irrelevant) == (3, 0.25, "atoms", "base")
    assert (config.attention, config.preset, config.max_new_tokens) == ("eager", "qwen", 9)


@pytest.mark.parametrize("flags", [("--top-k", "0"), ("--threshold", "1.5"), ("--device", "tpu")])
def test_flag_outside_its_range_is_a_usage_error(d2a: Run, flags: tuple[str, str]) -> None:
    result = d2a("ask", "q", *flags)
    assert (result.exit_code, result.stdout) == (2, "")


def run_repl(memory: Any, *lines: str | type[BaseException]) -> None:
    typed = iter(lines)

    def read() -> str:
        item = next(typed, EOFError)
        if isinstance(item, str):
            return item
        raise item

    _repl.run(memory, read, explain=False)


def test_prompt_survives_faults_and_interrupts_and_ends_at_quit(
    memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run_repl(memory, "broken", KeyboardInterrupt, "stop", "", "/nonsense", "When?", "/quit", "never asked")
    assert [c for c in memory.calls if c[0] == "ask"] == [("ask", "broken"), ("ask", "stop"), ("ask", "When?")]
    assert memory.calls[0] == ("warm_up", None)
    captured = capsys.readouterr()
    assert "In 1874" in captured.out
    for part in ("no checkpoint for gemma", "stopped", "unknown command /nonsense"):
        assert part in captured.err


def test_history_of_the_prompt_is_private() -> None:
    _repl.prompt_reader()
    assert (data_root() / "history").stat().st_mode & 0o777 == 0o600


def test_prompt_explains_the_last_question(memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run_repl(memory, "/explain", "When?", "/explain", "/docs")
    captured = capsys.readouterr()
    assert "there is no question yet" in captured.err
    assert captured.out.count("used\tatom") == 1
    assert "00c0ffee00c0ffee\tok\t3\t2" in captured.out
