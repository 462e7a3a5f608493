"""Citations: verbatim quotes only, the atoms that hold the answer first, and answers that nothing supports."""

from dataclasses import replace

import pytest

from models.atoms import Atom
from models.citations import MAX_CITATIONS, cite
from models.results import DocumentInfo, RoutedAtom, StoredAtom

TEXT = (
    "Ilse Kant was born in Marn. She built nine bridges in 1920. The bridges cost 1,200 crowns.\n"
    "Otters live in lake Tor. 她生于马尔恩。"
)
BORN, BUILT, COST, OTTERS, CHINESE = (
    "Ilse Kant was born in Marn.",
    "She built nine bridges in 1920.",
    "The bridges cost 1,200 crowns.",
    "Otters live in lake Tor.",
    "她生于马尔恩。",
)
INFO = DocumentInfo(
    document_id="d0",
    title="Marn",
    sources=("/a/marn.txt", "/b/copy.txt"),
    media_type="text/plain",
    content_hash="",
    num_pages=2,
    num_atoms=5,
    status="ok",
)


def stored(number, span, *, content=None, **changes):
    start = TEXT.find(span)
    atom = Atom(
        atom_id=f"atom_{number}",
        semantic_type="fact_claim",
        content=content or span,
        source_span=span,
        retrieval_text="",
        char_start=start,
        char_end=start + len(span),
    )
    return StoredAtom(
        uid=f"d0-{number:06x}",
        document_id="d0",
        atom=replace(atom, **changes),
        page_index=number,
        page_label=f"p{number}",
    )


def cited(answer, *atoms, weights=None, text=TEXT):
    """Return what is cited, the atoms given best first."""
    weights = weights or [0.1] * len(atoms)
    routed = [
        RoutedAtom(
            uid=a.uid,
            document_id=a.document_id,
            document_title="Marn",
            page_label=a.page_label,
            content=a.atom.content,
            cosine=0.0,
            lexical=0.0,
            rerank=None,
            score=0.0,
            weight=w,
            selected=True,
        )
        for a, w in zip(atoms, weights, strict=True)
    ]
    return cite(answer, routed, atoms, text_of={"d0": text}.__getitem__, document_of={"d0": INFO}.__getitem__)


def quotes(*args, **kwargs):
    return [c.quote for c in cited(*args, **kwargs)[0]]


def test_the_atom_that_holds_the_answer_is_cited_with_its_place():
    [citation], supported = cited("in MARN.", stored(0, OTTERS), stored(1, BORN), weights=[0.14, 0.05])
    assert supported
    assert (citation.quote, citation.page_index, citation.page_label) == (BORN, 1, "p1")
    assert TEXT[citation.char_start : citation.char_end] == citation.quote
    assert (citation.source, citation.document_title, citation.weight) == ("/a/marn.txt", "Marn", 0.05)
    assert citation.holds_answer


def test_the_heaviest_of_several_holders_is_cited():
    assert quotes("Marn", stored(0, BORN), stored(1, TEXT[:60]), weights=[0.03, 0.1]) == [TEXT[:60]]


def test_an_unsupported_answer_cites_the_heaviest_atom_and_says_so():
    [citation], supported = cited("Paris", stored(0, OTTERS), stored(1, BORN), weights=[0.14, 0.1])
    assert (supported, citation.quote, citation.holds_answer) == (False, OTTERS, False)


def test_parts_of_words_support_nothing():
    assert not cited("tter", stored(0, OTTERS))[1]
    assert not cited("192", stored(0, BUILT))[1]


def test_words_of_span_and_content_do_not_join_to_an_answer():
    atom = stored(0, OTTERS, content="Kant Otters live there.")
    assert not cited("Tor Kant", atom)[1]
    assert cited("Kant otters", atom)[1]


@pytest.mark.parametrize("answer", ["Marn and lake Tor", "Marn, lake Tor", "lake Tor; Marn"])
def test_an_answer_of_two_parts_cites_one_atom_for_each(answer):
    citations, supported = cited(answer, stored(0, BUILT), stored(1, OTTERS), stored(2, BORN))
    assert supported
    assert {c.quote for c in citations} == {OTTERS, BORN}


def test_an_answer_with_one_part_missing_is_unsupported_and_cites_the_other():
    citations, supported = cited("Marn and Paris", stored(0, OTTERS), stored(1, BORN))
    assert not supported
    assert [(c.quote, c.holds_answer) for c in citations] == [(BORN, True)]


def test_two_parts_in_one_atom_cite_it_once():
    assert quotes("nine bridges and 1920", stored(0, BORN), stored(1, BUILT)) == [BUILT]


def test_a_comma_inside_a_number_does_not_part_it():
    one, two_hundred = stored(0, "Marn has 1 mayor", char_start=-1), stored(1, "and 200 cats", char_start=-1)
    assert not cited("1,200", one, two_hundred, text="Marn has 1 mayor and 200 cats")[1]
    assert quotes("1,200", stored(0, BUILT), stored(1, COST)) == [COST]


def test_scripts_without_spaces_are_found_inside_a_sentence():
    assert quotes("马尔恩", stored(0, OTTERS), stored(1, CHINESE)) == [CHINESE]
    assert not cited("尔马", stored(0, CHINESE))[1]


def test_atoms_of_weight_are_cited_beside_the_holder_up_to_three():
    atoms = [stored(0, BUILT), stored(1, COST), stored(2, BORN), stored(3, OTTERS)]
    assert quotes("Marn", *atoms, weights=[0.3, 0.25, 0.1, 0.15]) == [BORN, BUILT, COST]
    assert MAX_CITATIONS == 3
    assert quotes("Marn", *atoms, weights=[0.3, 0.14, 0.1, 0.14]) == [BORN, BUILT]


def test_a_span_that_moved_is_quoted_as_the_document_has_it():
    atom = stored(0, BORN, source_span="Ilse  Kant\nwas born in Marn.", char_start=5, char_end=9)
    [citation], _ = cited("Marn", atom)
    assert (citation.quote, citation.char_start, citation.char_end) == (BORN, 0, len(BORN))


def test_a_tampered_span_is_left_out():
    forged = stored(0, BORN, source_span="Ilse Kant was born in Paris.")
    assert cited("Paris", forged)[0] == ()
    assert quotes("Paris", forged, stored(1, OTTERS), weights=[0.5, 0.3]) == [OTTERS]


def test_nothing_routed_gives_no_citation():
    assert cited("Marn") == ((), False)
