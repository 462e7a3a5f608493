"""Claims about joining the atoms of replies into the atoms of a document."""

from __future__ import annotations

from models.atomizer.assemble import SPAN_NOT_FOUND, LocatedReply, locate, merge
from models.atomizer.xml import parse_atoms

TEXT = "Ada Finch was born in 1815 and died in 1852. Her \u201cnotes\u201d are\nlost. Born in 1815, her twin lived on."


def located(*atoms: tuple[str, str], char_start: int = 0) -> LocatedReply:
    reply = "".join(
        f"<atom id='{i}'><content>{c}</content><source_span>{s}</source_span></atom>" for i, (c, s) in enumerate(atoms)
    )
    parsed = parse_atoms(reply, is_echo=lambda text: False)
    return locate(parsed, TEXT, char_start=char_start, char_end=len(TEXT))


def test_a_span_with_plain_quotation_marks_and_other_white_space_is_stored_as_it_stands_in_the_document() -> None:
    atoms, dropped, _ = merge([located(("The notes are lost.", 'Her "notes" are lost.'))], TEXT)
    assert [a.source_span for a in atoms] == ["Her \u201cnotes\u201d are\nlost."]
    assert dropped.total() == 0


def test_a_span_is_looked_for_only_in_the_window_that_the_model_saw() -> None:
    beyond_the_first_sentence = TEXT.index("Her")
    reply = located(("Ada Finch died in 1852.", "died in 1852"), char_start=beyond_the_first_sentence)
    assert reply.atoms == ()
    assert reply.dropped == {SPAN_NOT_FOUND: 1}


def test_offsets_of_a_later_window_are_those_of_the_document() -> None:
    start = TEXT.index("Her")
    (atom,) = located(("The twin lived on.", "her twin lived on."), char_start=start).atoms
    assert (atom.char_start, atom.char_end) == (TEXT.index("her twin"), len(TEXT))


def test_a_phrase_that_recurs_is_found_where_the_order_of_the_atoms_puts_it() -> None:
    reply = located(("Ada was born in 1815.", "orn in 1815"), ("Her twin was born in 1815.", "orn in 1815"))
    assert [a.char_start for a in reply.atoms] == [TEXT.index("orn in"), TEXT.rindex("orn in")]


def test_two_facts_that_quote_one_sentence_both_stay_and_a_paraphrase_without_news_goes() -> None:
    sentence = TEXT[: TEXT.index(" Her")]
    reply = located(
        ("Ada Finch was born in 1815.", sentence),
        ("Ada Finch died in 1852.", sentence),
        ("Born in 1815: Ada Finch", sentence),
    )
    atoms, dropped, _ = merge([reply], TEXT)
    assert [a.content for a in atoms] == ["Ada Finch was born in 1815.", "Ada Finch died in 1852."]
    assert dropped == {"duplicates": 1}


def test_the_same_statement_in_another_window_is_a_duplicate_whatever_its_case() -> None:
    first = located(("The notes are lost.", "are lost"))
    second = located(("the notes ARE lost", "lost"), char_start=TEXT.index("Her"))
    atoms, dropped, _ = merge([first, second], TEXT)
    assert [a.atom_id for a in atoms] == ["atom_0"]
    assert dropped == {"duplicates": 1}


def test_a_span_without_a_letter_or_digit_proves_nothing() -> None:
    assert located(("The notes are lost.", ".")).dropped == {SPAN_NOT_FOUND: 1}
