"""Claims about decomposition by a model: windows, order, cache, budget, and what becomes of their atoms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from models.atomizer.llm import MAX_CONTINUATIONS, MAX_REASKS, OpenAIAtomizer
from models.atomizer.prompts import DECOMPOSITION
from models.config import AtomizerConfig
from models.errors import AtomizerError
from tests.models.atomizer.stub_server import (
    SENTENCES,
    Answer,
    Serve,
    atom_xml,
    atoms_xml,
    completion,
    config,
    document,
    honest,
)


def test_each_window_is_asked_once_and_every_span_is_the_documents_own(serve: Serve) -> None:
    stub = serve(honest)
    steps: list[tuple[int, int | None]] = []
    result = OpenAIAtomizer(config(stub)).atomize(document(), on_progress=lambda *step: steps.append(step))
    assert stub.passages == list(SENTENCES)
    assert [a.source_span for a in result.atoms] == list(SENTENCES)
    assert [a.atom_id for a in result.atoms] == ["atom_0", "atom_1", "atom_2", "atom_3"]
    assert all(document().text[a.char_start : a.char_end] == a.source_span for a in result.atoms)
    assert (result.meta.decomposition_status, result.meta.num_atoms, result.meta.num_windows) == ("ok", 4, 4)
    assert result.meta.warnings == ()
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_atoms_come_in_the_order_of_the_document_whatever_window_ends_first(serve: Serve) -> None:
    def slow_start(passage: str, num_before: int) -> Answer:
        answer = honest(passage)
        answer.delay_s = 0.3 if passage == SENTENCES[0] else 0.0
        return answer

    result = OpenAIAtomizer(config(serve(slow_start), concurrency=4)).atomize(document())
    assert [a.source_span for a in result.atoms] == list(SENTENCES)


def test_one_window_that_always_fails_costs_the_others_nothing_and_only_it_is_asked_again(
    serve: Serve, tmp_path: Path
) -> None:
    is_mended = False

    def one_broken(passage: str, num_before: int) -> Answer:
        is_broken = passage == SENTENCES[2] and not is_mended
        return completion(f"<atoms>{atom_xml(passage)[:-9]}") if is_broken else honest(passage)

    stub = serve(one_broken)
    atomizer = OpenAIAtomizer(config(stub, cache_dir=tmp_path))
    partial = atomizer.atomize(document())
    assert [a.source_span for a in partial.atoms] == [SENTENCES[0], SENTENCES[1], SENTENCES[3]]
    assert (partial.meta.decomposition_status, partial.meta.num_failed_windows) == ("partial", 1)
    assert partial.meta.warnings[0] == "window 3 of 4 (page iv): no usable atom (1 with broken tags)"
    assert len(stub.passages) == 3 + 1 + MAX_REASKS

    is_mended = True
    stub.passages.clear()
    whole = atomizer.atomize(document())
    assert stub.passages == [SENTENCES[2]]
    assert [a.source_span for a in whole.atoms] == list(SENTENCES)
    assert whole.meta.decomposition_status == "ok"


def test_a_cut_reply_keeps_its_whole_atoms_and_the_rest_is_asked_for_once(serve: Serve) -> None:
    def short_of_breath(passage: str, num_before: int) -> Answer:
        if passage == " ".join(SENTENCES):
            return completion(f"<atoms>{atom_xml(SENTENCES[0])}{atom_xml(SENTENCES[1])[:60]}", finish_reason="length")
        return honest(passage)

    stub = serve(short_of_breath)
    result = OpenAIAtomizer(config(stub, window_tokens=500)).atomize(document())
    assert stub.passages == [" ".join(SENTENCES), " " + " ".join(SENTENCES[1:])]
    assert [a.source_span for a in result.atoms] == list(SENTENCES)
    assert result.meta.decomposition_status == "ok"


def test_a_reply_that_is_cut_again_and_again_makes_the_document_partial(serve: Serve) -> None:
    def breathless(passage: str, num_before: int) -> Answer:
        first = next(s for s in SENTENCES if s in passage)
        return completion(f"<atoms>{atom_xml(first)}<atom", finish_reason="length")

    stub = serve(breathless)
    text = " ".join([*SENTENCES, "Few people live who saw it whole."])
    result = OpenAIAtomizer(config(stub, window_tokens=500)).atomize(document(text))
    assert len(stub.passages) == 1 + MAX_CONTINUATIONS == 4
    assert [a.source_span for a in result.atoms] == list(SENTENCES)
    assert (result.meta.num_failed_windows, result.meta.decomposition_status) == (1, "partial")
    # Four requests reach one sentence each; a blank and the 33 characters of the fifth are left.
    assert "its last 34 characters are missing: the reply was cut again and again" in result.meta.warnings[0]


def test_a_failure_after_a_cut_keeps_what_came_before_it(serve: Serve) -> None:
    def breaking_down(passage: str, num_before: int) -> Answer:
        if SENTENCES[0] in passage:
            return completion(f"<atoms>{atom_xml(SENTENCES[0])}<atom", finish_reason="length")
        return completion("")

    result = OpenAIAtomizer(config(serve(breaking_down), window_tokens=500)).atomize(document())
    assert [a.source_span for a in result.atoms] == [SENTENCES[0]]
    # A blank before each of three sentences: 1 + 42 + 1 + 44 + 1 + 43 = 132.
    assert "its last 132 characters are missing: empty content (finish_reason stop)" in result.meta.warnings[0]


def test_duplicates_and_invented_spans_are_dropped_and_counted(serve: Serve) -> None:
    reply = atoms_xml(*[SENTENCES[0]] * 50, "No such words.", SENTENCES[1])
    stub = serve(lambda passage, num_before: completion(reply))
    result = OpenAIAtomizer(config(stub, window_tokens=500)).atomize(document())
    assert [a.source_span for a in result.atoms] == list(SENTENCES[:2])
    # 50 equal atoms leave one, so 49 duplicates, and one invented span: 50 dropped of 52.
    assert (result.meta.num_dropped, result.meta.num_invalid_spans) == (50, 1)
    assert "dropped 49 atoms: duplicates" in result.meta.warnings


def test_relations_follow_their_atoms_across_windows_and_duplicates(serve: Serve) -> None:
    def related(passage: str, num_before: int) -> Answer:
        present = [s for s in SENTENCES if s in passage]
        relation = '<relation type="supports" target="3"/><relation type="causes" target="9"/>'
        return completion(atoms_xml(*present, present[1], relation=relation))

    # 24 tokens of 4 bytes hold two sentences: two windows, and the third atom of each repeats its second.
    stub = serve(related)
    result = OpenAIAtomizer(config(stub, window_tokens=24)).atomize(document())
    assert len(stub.passages) == 2
    targets = {a.atom_id: [(r.type, r.target) for r in a.relations] for a in result.atoms}
    assert targets == {
        "atom_0": [("supports", "atom_1")],
        "atom_1": [],
        "atom_2": [("supports", "atom_3")],
        "atom_3": [],
    }
    # Each of 4 atoms names an unknown target 9, and atoms 1 and 3 name themselves: 4 + 2 = 6.
    assert "6 times: unknown relation target" in result.meta.warnings


def test_conflict_groups_of_different_windows_stay_apart(serve: Serve) -> None:
    def conflicting(passage: str, num_before: int) -> Answer:
        return completion(
            honest(passage).body["choices"][0]["message"]["content"].replace(" level", " conflict='c' level")
        )

    two_windows = OpenAIAtomizer(config(serve(conflicting), window_tokens=24)).atomize(document())
    assert [a.conflict_group for a in two_windows.atoms] == ["conflict_0", "conflict_0", "conflict_1", "conflict_1"]
    alone = OpenAIAtomizer(config(serve(conflicting))).atomize(document())
    assert [a.conflict_group for a in alone.atoms] == [None] * 4


def test_a_job_above_the_budget_is_refused_before_the_first_request(serve: Serve) -> None:
    stub = serve(honest)
    with pytest.raises(AtomizerError, match=r"max_calls must be at least 4 for bridge\.txt, got 3"):
        OpenAIAtomizer(config(stub, max_calls=3)).atomize(document())
    assert stub.passages == []


def test_asking_again_never_exceeds_the_budget(serve: Serve) -> None:
    stub = serve(lambda passage, num_before: completion("") if passage == SENTENCES[0] else honest(passage))
    result = OpenAIAtomizer(config(stub, max_calls=4)).atomize(document())
    assert len(stub.passages) == 4
    assert result.meta.num_failed_windows > 0
    assert any("the budget of 4 requests is used up" in w for w in result.meta.warnings)


def test_an_estimate_counts_only_what_the_cache_lacks(serve: Serve, tmp_path: Path) -> None:
    stub = serve(honest)
    prices = {"price_per_million_input_usd": 2.0, "price_per_million_output_usd": 10.0}
    atomizer = OpenAIAtomizer(config(stub, cache_dir=tmp_path, **prices))
    before = atomizer.estimate(document())
    # 41, 42, 44 and 43 bytes are 11 tokens each, 5 output tokens for each of them: 4 * 11 * 5 = 220.
    assert (before.num_calls, before.num_output_tokens) == (4, 220)
    assert before.cost_usd == pytest.approx((before.num_input_tokens * 2 + 220 * 10) / 1e6)
    assert before.num_input_tokens > 4 * len(DECOMPOSITION.system) // 4
    assert stub.passages == []
    atomizer.atomize(document())
    after = atomizer.estimate(document())
    assert (after.num_calls, after.num_input_tokens, after.cost_usd) == (0, 0, 0.0)


def test_a_damaged_cache_entry_is_asked_for_again(serve: Serve, tmp_path: Path) -> None:
    stub = serve(honest)
    atomizer = OpenAIAtomizer(config(stub, cache_dir=tmp_path))
    first = atomizer.atomize(document())
    entries = sorted(tmp_path.rglob("*.json"))
    assert len(entries) == 4
    damages = ["", '{"text": "half', "[]", '{"text": 7, "finish_reason": "stop"}']
    for entry, damage in zip(entries, damages, strict=True):
        entry.write_text(damage)
    stub.passages.clear()
    assert atomizer.atomize(document()) == first
    assert sorted(stub.passages) == sorted(SENTENCES)
    stub.passages.clear()
    assert atomizer.atomize(document()) == first
    assert stub.passages == []
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".json"]


@pytest.mark.parametrize("change", [{"model": "other"}, {"max_output_tokens": 99}])
def test_another_model_or_limit_does_not_share_the_cache(change: dict[str, Any], serve: Serve, tmp_path: Path) -> None:
    stub = serve(honest)
    OpenAIAtomizer(config(stub, cache_dir=tmp_path)).atomize(document())
    assert OpenAIAtomizer(config(stub, cache_dir=tmp_path, **change)).estimate(document()).num_calls == 4


def test_a_blank_document_is_refused(serve: Serve) -> None:
    with pytest.raises(AtomizerError, match=r"bridge\.txt holds no text"):
        OpenAIAtomizer(config(serve(honest))).atomize(document(" \n "))


def test_the_fingerprint_changes_with_whatever_changes_the_atoms() -> None:
    base = AtomizerConfig(backend="openai")
    variants = [
        OpenAIAtomizer(base),
        OpenAIAtomizer(AtomizerConfig(backend="openai", model="other")),
        OpenAIAtomizer(AtomizerConfig(backend="openai", window_tokens=7)),
        OpenAIAtomizer(base, prompt=DECOMPOSITION.adapted("Mind the numbers.")),
    ]
    assert len({a.fingerprint for a in variants}) == 4
    assert OpenAIAtomizer(base).fingerprint == variants[0].fingerprint
