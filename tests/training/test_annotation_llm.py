"""Claims about annotation by a model: three stages, and what becomes of one that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from models.atomizer.llm import MAX_REASKS
from models.atoms import AnnotationRecord
from models.errors import AtomizerError
from tests.training.annotator_stub import (
    ATOMS_REPLY,
    HONEST,
    LABELS_REPLY,
    MILL,
    SENTENCES,
    AnnotatorStub,
    Reply,
    Script,
    label_xml,
)
from training.annotation import DiscardedSampleError
from training.annotation.llm import LLMAnnotator

Serve = Callable[[Script], AnnotatorStub]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    stubs: list[AnnotatorStub] = []

    def start(script: Script) -> AnnotatorStub:
        stub = AnnotatorStub(script)
        threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        stubs.append(stub)
        return stub

    yield start
    for stub in stubs:
        stub.shutdown()
        stub.server_close()


def honest(stage: str, number: int, user: str) -> Reply:
    return HONEST[stage]


def always(stage: str, reply: Reply) -> Script:
    """A server that is honest but for one stage."""
    return lambda asked, number, user: reply if asked == stage else HONEST[asked]


def annotated(stub: AnnotatorStub, *, num_probes: int = 2, **settings: object) -> AnnotationRecord:
    with closing(LLMAnnotator(stub.config(**settings), num_probes=num_probes)) as annotator:
        return annotator.annotate(MILL)


def test_three_requests_make_a_record_with_a_rescued_probe(serve: Serve) -> None:
    stub = serve(honest)
    record = annotated(stub)
    assert stub.counts == {"atoms": 1, "probes": 1, "questions": 1}
    assert [a.source_span for a in record.atoms] == list(SENTENCES)
    roles = [(q.question_id, q.question_type, q.gold_atom_ids, q.is_generated_irrelevant) for q in record.qa_pairs]
    assert roles == [
        ("built", "temporal", ("atom_0",), False),
        ("owner", "irrelevant", (), False),
        ("mill/probe_0", "irrelevant", (), True),
        ("mill/probe_1", "field_lookup", ("atom_1",), True),
    ]
    meta = record.annotation_meta
    assert (meta.mode, meta.decomposition_status, meta.question_status) == ("batch2step", "ok", "ok")
    assert (meta.num_atoms, meta.warnings) == (3, ())


def test_the_annotator_is_not_told_which_question_is_a_probe(serve: Serve) -> None:
    stub = serve(honest)
    annotated(stub)
    assert stub.users["questions"].endswith(
        '<question id="q_0" answer="1794">When was Harrow Mill built?</question>\n'
        '<question id="q_1">Who owned the weir?</question>\n'
        '<question id="q_2">Who designed Harrow Mill?</question>\n'
        '<question id="q_3">What did Harrow Mill grind?</question>\n</questions>'
    )


def test_rules_can_decompose_while_a_model_labels(serve: Serve) -> None:
    stub = serve(honest)
    record = annotated(stub, backend="rules")
    assert stub.counts == {"probes": 1, "questions": 1}
    assert record.annotation_meta.annotator.startswith("openai/")
    assert record.qa_pairs[0].gold_atom_ids == ("atom_0",)


def test_broken_labels_are_asked_for_again_with_the_reason(serve: Serve) -> None:
    stub = serve(
        lambda stage, number, user: "<questions><question id=" if (stage, number) == ("questions", 0) else HONEST[stage]
    )
    record = annotated(stub)
    assert stub.counts["questions"] == 2
    assert "nothing usable in the reply" in stub.users["questions"]
    assert record.annotation_meta.question_status == "ok"


@pytest.mark.parametrize(("reply", "reason"), [("no XML at all", "nothing usable"), (500, "HTTP 500")])
def test_without_labels_the_record_keeps_its_atoms_alone(reply: Reply, reason: str, serve: Serve) -> None:
    stub = serve(always("questions", reply))
    record = annotated(stub)
    assert (len(record.atoms), record.qa_pairs) == (3, ())
    assert record.annotation_meta.question_status == "failed"
    assert reason in record.annotation_meta.warnings[0]
    assert stub.counts["questions"] == (1 if reply == 500 else 1 + MAX_REASKS)
    assert AnnotationRecord.from_dict(record.to_dict()) == record


def test_a_cut_reply_keeps_the_labels_before_the_cut(serve: Serve) -> None:
    cut = (LABELS_REPLY[: LABELS_REPLY.index('<question id="q_2"') + 30], "length")
    record = annotated(serve(always("questions", cut)))
    assert record.annotation_meta.question_status == "partial"
    assert [bool(q.annotation_warnings) for q in record.qa_pairs] == [False, False, True, True]


def test_without_probes_only_a_warning_is_left(serve: Serve) -> None:
    labels = label_xml("q_0", "temporal", "atom_0") + label_xml("q_1", "irrelevant", answerable="no")
    stub = serve(lambda stage, number, user: {**HONEST, "probes": "I cannot.", "questions": labels}[stage])
    record = annotated(stub)
    assert [q.question_id for q in record.qa_pairs] == ["built", "owner"]
    assert record.annotation_meta.warnings == ("no irrelevant probes: nothing usable in the reply",)
    assert record.annotation_meta.question_status == "ok"


def test_probes_that_repeat_a_question_or_the_prompts_example_are_no_probes(serve: Serve) -> None:
    texts = ["when was harrow mill BUILT?", "Which architect designed Harrow Mill?", "Who mended the weir?", "A third?"]
    reply = "<probes>" + "".join(f"<probe>{text}</probe>" for text in texts) + "</probes>"
    record = annotated(serve(always("probes", reply)), num_probes=1)
    assert [q.question for q in record.qa_pairs[2:]] == ["Who mended the weir?"]


def test_a_window_without_atoms_discards_the_sample(serve: Serve) -> None:
    with pytest.raises(DiscardedSampleError, match="no window of mill gave an atom"):
        annotated(serve(always("atoms", "<atoms></atoms>")))


def test_one_failed_window_of_several_discards_the_sample(serve: Serve) -> None:
    def one_broken(stage: str, number: int, user: str) -> Reply:
        is_broken = stage == "atoms" and SENTENCES[2] in user
        return "<atoms>" if is_broken else HONEST[stage]

    # 12 tokens of 4 bytes: every sentence is a window of its own.
    with pytest.raises(DiscardedSampleError, match="mill: window 3 of 3"):
        annotated(serve(one_broken), window_tokens=12)


def test_an_invented_span_is_flagged_and_not_shown_to_the_question_annotator(serve: Serve) -> None:
    invented = ATOMS_REPLY.replace(f"<source_span>{SENTENCES[1]}", "<source_span>It ground rye.")
    stub = serve(always("atoms", invented))
    record = annotated(stub)
    assert [(a.atom_id, a.span_valid) for a in record.atoms] == [("atom_0", True), ("atom_1", True), ("atom_2", False)]
    assert (record.atoms[2].source_span, record.atoms[2].char_start) == ("It ground rye.", -1)
    assert (record.annotation_meta.num_atoms, record.annotation_meta.num_invalid_spans) == (3, 1)
    assert record.annotation_meta.num_dropped == 0
    assert SENTENCES[1] not in stub.users["questions"]


def test_a_server_that_refuses_the_key_stops_the_job(serve: Serve) -> None:
    with pytest.raises(AtomizerError, match="refuses the key"):
        annotated(serve(always("probes", 401)))


def test_replies_are_cached_and_useless_ones_are_not(serve: Serve, tmp_path: Path) -> None:
    is_mended = False

    def script(stage: str, number: int, user: str) -> Reply:
        return "nothing" if stage == "questions" and not is_mended else HONEST[stage]

    stub = serve(script)
    assert annotated(stub, cache_dir=tmp_path).qa_pairs == ()
    is_mended = True
    stub.counts.clear()
    assert len(annotated(stub, cache_dir=tmp_path).qa_pairs) == 4
    assert stub.counts == {"questions": 1}
    stub.counts.clear()
    assert len(annotated(stub, cache_dir=tmp_path).qa_pairs) == 4
    assert not stub.counts


def test_an_estimate_counts_three_requests_a_context_and_less_after_a_run(serve: Serve, tmp_path: Path) -> None:
    stub = serve(honest)
    prices = {"price_per_million_input_usd": 1.0, "price_per_million_output_usd": 2.0}
    with closing(LLMAnnotator(stub.config(cache_dir=tmp_path, **prices), num_probes=2)) as annotator:
        before = annotator.estimate([MILL, replace(MILL, context_id="other", text="A tern nests in the loft.")])
        # Atoms, probes and questions of two contexts.
        assert before.num_calls == 6
        assert before.cost_usd == pytest.approx((before.num_input_tokens + 2 * before.num_output_tokens) / 1e6)
        assert not stub.counts
        annotator.annotate(MILL)
        assert annotator.estimate([MILL]).num_calls == 1


def test_the_fingerprint_changes_with_whatever_changes_the_records(serve: Serve) -> None:
    stub = serve(honest)
    settings = [(2, {}), (3, {}), (2, {"model": "other"}), (2, {"backend": "rules"}), (2, {"max_output_tokens": 99})]
    prints = {LLMAnnotator(stub.config(**more), num_probes=count).fingerprint for count, more in settings}
    assert len(prints) == len(settings)


def test_the_prompts_of_a_mode_carry_its_adapter(serve: Serve) -> None:
    stub = serve(honest)
    with closing(LLMAnnotator(stub.config(), num_probes=0)) as annotator:
        annotator.annotate(replace(MILL, mode="multi_hop"))
    assert "same_entity relations, in both directions" in stub.systems["atoms"]
    assert "the asked attribute to the wrong entity" in stub.systems["questions"]
