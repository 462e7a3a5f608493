"""Claims about reading atoms out of a model's reply."""

from __future__ import annotations

import pytest

from models.atomizer.xml import ParsedReply, parse_atoms
from models.atoms import Relation

LOOM = """<atom id="1" semantic_type="entity_attribute" answer_bearing="no" level="hybrid" confidence="0.8"
  conflict="g">
<content>The loom weighs 90 kg.</content>
<source_span>It weighs 90 kg.</source_span>
<retrieval_text>loom weight</retrieval_text>
<relation type="part_of" target="2"/>
</atom>"""
DRAFT = "<atom id='9'><content>Draft.</content><source_span>x</source_span></atom>"
YARN = "<atom id='2'><content>The yarn is wool.</content><source_span>yarn is wool</source_span></atom>"


def read(reply: str) -> ParsedReply:
    return parse_atoms(reply, is_echo=lambda text: text == "copied")


def contents(reply: str) -> list[str]:
    return [d.content for d in read(reply).drafts]


def with_field(**attributes: str) -> str:
    written = " ".join(f'{k}="{v}"' for k, v in attributes.items())
    return f"<atom {written}><content>A loom.</content><source_span>loom</source_span></atom>"


def test_every_field_of_a_well_formed_atom_is_read() -> None:
    (draft,) = read(f"<atoms>{LOOM}</atoms>").drafts
    assert (draft.local_id, draft.semantic_type, draft.abstraction_level) == ("1", "entity_attribute", "hybrid")
    assert (draft.content, draft.source_spans) == ("The loom weighs 90 kg.", ("It weighs 90 kg.",))
    assert (draft.retrieval_text, draft.is_answer_bearing) == ("loom weight", False)
    assert (draft.confidence, draft.conflict_group) == (0.8, "g")
    assert draft.relations == (Relation(type="part_of", target="2"),)


@pytest.mark.parametrize("num_cut", range(1, len(YARN)))
def test_a_cut_at_any_character_keeps_the_atoms_before_it(num_cut: int) -> None:
    parsed = read(f"<atoms>{LOOM}\n{YARN[:-num_cut]}")
    assert [d.content for d in parsed.drafts] == ["The loom weighs 90 kg."]


@pytest.mark.parametrize(
    "broken",
    [
        "<atom id='3'><content>Half.<source_span>x</source_span></atom>",
        "<atom id='3'><content>Half.</content></atom>",
        "<atom id='3'><content>Half.</content><source_span>x</source_span>",
        "<atom id='3'><content>Half.</contnet><source_span>x</source_span></atom>",
    ],
)
def test_a_broken_atom_is_counted_and_costs_its_neighbours_nothing(broken: str) -> None:
    parsed = read(f"<atoms>{LOOM}\n{broken}\n{YARN}</atoms>")
    assert [d.local_id for d in parsed.drafts] == ["1", "2"]
    assert parsed.dropped == {"broken tags": 1}


def test_unescaped_signs_in_the_text_survive() -> None:
    atom = (
        "<atom id='1'><content>AT&T holds p < 0.05 & x > 3.</content><source_span>p < 0.05 &amp; x</source_span></atom>"
    )
    (draft,) = read(atom).drafts
    assert draft.content == "AT&T holds p < 0.05 & x > 3."
    assert draft.source_spans == ("p < 0.05 & x", "p < 0.05 &amp; x")


def test_entities_of_xml_are_resolved_once_and_those_of_html_are_left() -> None:
    atom = "<atom id='1'><content>&lt;b&gt; &amp;lt; &#233;&#xe9; R&copy</content><source_span>b</source_span></atom>"
    assert contents(atom) == ["<b> &lt; éé R&copy"]


@pytest.mark.parametrize(
    "reply",
    [
        f"Here you are:\n```xml\n<atoms>{YARN}</atoms>\n```\nAnything else?",
        f"<think>First {DRAFT}</think><atoms>{YARN}</atoms>",
        f"So I write {DRAFT}\n</think>\n\n<atoms>{YARN}</atoms>",
    ],
    ids=["fence and prose", "thinking", "thinking without its opening tag"],
)
def test_text_around_the_atoms_is_ignored(reply: str) -> None:
    assert contents(reply) == ["The yarn is wool."]


def test_thinking_that_never_ends_holds_no_atoms() -> None:
    assert contents(f"<think>Perhaps {YARN}") == []


def test_tags_named_in_a_text_are_not_taken_for_tags() -> None:
    atom = "<atom id='1'><content>Every <atom> closes; <b> is bold.</content><source_span>closes</source_span></atom>"
    assert contents(atom + YARN) == ["Every <atom> closes; <b> is bold.", "The yarn is wool."]


def test_control_characters_are_stripped_from_what_is_stored() -> None:
    atom = "<atom id='1'><content>Red\x1b[31m \x9b2J\u202eloom\n two</content><source_span>loom</source_span></atom>"
    assert contents(atom) == ["Red[31m 2Jloom two"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [("0.9", 0.9), ("0,9", 0.9), ("90%", 0.9), ("90", 0.9), ("1.7", 1.0), ("-3", 0.0), ("nan", 0.5), ("high", 0.5)],
)
def test_confidence_is_read_on_any_scale_and_clamped(written: str, expected: float) -> None:
    (draft,) = read(with_field(confidence=written)).drafts
    assert draft.confidence == pytest.approx(expected)


@pytest.mark.parametrize(
    ("written", "expected", "num_repaired"),
    [
        ("Process Step", "process_step", 0),
        ("fact", "fact_claim", 0),
        ("e", "fact_claim", 1),
        ("opinion", "fact_claim", 1),
    ],
)
def test_a_semantic_type_is_understood_or_replaced_with_a_count(written: str, expected: str, num_repaired: int) -> None:
    parsed = read(with_field(semantic_type=written, confidence="1", level="evidence"))
    assert parsed.drafts[0].semantic_type == expected
    assert parsed.repaired["unknown semantic type"] == num_repaired


def test_relations_without_a_known_type_or_a_target_are_dropped_and_counted() -> None:
    relations = '<relation type="hates" target="1"/><relation type="causes"/><relation type="Same-Entity" target="7">'
    parsed = read(YARN.replace("</atom>", relations + "</atom>"))
    assert parsed.drafts[0].relations == (Relation(type="same_entity", target="7"),)
    assert parsed.repaired["unknown relation type"] == 2


def test_short_fields_may_be_elements() -> None:
    fields = "<id>4</id><semantic_type>process_step</semantic_type><content>Oil it.</content>"
    (draft,) = read(f"<atom>{fields}<source_span>Oil</source_span></atom>").drafts
    assert (draft.local_id, draft.semantic_type) == ("4", "process_step")


def test_copies_of_the_prompt_and_empty_atoms_are_dropped_and_counted() -> None:
    reply = "".join(
        f"<atom id='{i}'><content>{c}</content><source_span>x</source_span></atom>"
        for i, c in enumerate(["copied", "...", ""])
    )
    parsed = read(reply)
    assert parsed.drafts == ()
    assert parsed.dropped == {"copied from the prompt": 1, "no content": 2}


def test_a_missing_retrieval_text_falls_back_to_the_content() -> None:
    parsed = read(YARN)
    assert parsed.drafts[0].retrieval_text == "The yarn is wool."
    assert parsed.repaired["missing retrieval_text"] == 1
