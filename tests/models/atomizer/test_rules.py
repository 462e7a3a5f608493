"""The rules backend: what becomes of a text, from its spans to the words of its atoms."""

import json
import random
import time
from pathlib import Path

import pytest

from models.atomizer import build_atomizer
from models.atomizer.blocks import split_blocks
from models.atomizer.context import MAX_CONTENT_TOKENS
from models.atomizer.relations import MAX_RELATIONS
from models.atomizer.spans import num_tokens
from models.atoms import Atom
from models.config import AtomizerConfig
from models.documents import Document, Page

SQUAD = Path(__file__).parents[4] / "shared" / "data" / "eval" / "squad" / "dev-v1.1.json"

HANDBOOK = """# Kestrel 40 Handbook

## Engine

The Kestrel 40 burns diesel. It was built by Marlow Works in 1978. Spare parts are sold in Porto.

## Starting up

1. Open the fuel valve slowly.
2. Press the green button for three seconds.

## Data

| Part | Mass |
|---|---|
| Piston | 4 kg |
| Valve | 310 g |
"""


def document(text: str, *, title: str = "", pages: list[str] | None = None) -> Document:
    if pages is not None:
        text = "".join(pages)
    marks, offset = [], 0
    for index, page in enumerate(pages or [text]):
        marks.append(Page(index=index, label=str(index + 1), char_start=offset, char_end=offset + len(page)))
        offset += len(page)
    return Document(source="-", title=title, media_type="text/plain", text=text, pages=tuple(marks))


def atoms_of(text: str, *, title: str = "", pages: list[str] | None = None, language: str = "en") -> tuple[Atom, ...]:
    atomizer = build_atomizer(AtomizerConfig(language=language))
    return atomizer.atomize(document(text, title=title, pages=pages)).atoms


def contents(text: str, *, title: str = "", pages: list[str] | None = None) -> list[str]:
    return [a.content for a in atoms_of(text, title=title, pages=pages)]


def test_a_handbook_becomes_sentences_steps_and_rows():
    assert contents(HANDBOOK, title="Kestrel 40") == [
        "Engine: The Kestrel 40 burns diesel.",
        "Kestrel 40, Engine: It was built by Marlow Works in 1978.",
        "Kestrel 40, Engine: Spare parts are sold in Porto.",
        "Kestrel 40, Starting up: 1. Open the fuel valve slowly.",
        "Kestrel 40, Starting up: 2. Press the green button for three seconds.",
        "Kestrel 40, Data: Part | Mass",
        "Kestrel 40, Data: Part: Piston; Mass: 4 kg",
        "Kestrel 40, Data: Part: Valve; Mass: 310 g",
    ]


def test_spans_are_verbatim_and_in_order():
    atoms = atoms_of(HANDBOOK, title="Kestrel 40")
    assert all(HANDBOOK[a.char_start : a.char_end] == a.source_span and a.span_valid for a in atoms)
    assert [a.atom_id for a in atoms] == [f"atom_{i}" for i in range(8)]
    assert atoms[3].source_span == "1. Open the fuel valve slowly."


def test_the_title_stands_only_before_sentences_that_do_not_name_it():
    text = "The lighthouse of Sker was lit in 1821. Its lamp burned whale oil."
    assert contents(text, title="Sker_lighthouse.pdf") == [
        "The lighthouse of Sker was lit in 1821.",
        "Sker lighthouse: Its lamp burned whale oil.",
    ]


@pytest.mark.parametrize("title", ["scan 20240117_00031", "untitled", "4711", "", "x" * 61])
def test_a_title_that_names_nothing_is_left_out(title: str):
    assert contents("The pump runs dry at noon.", title=title) == ["The pump runs dry at noon."]


def test_a_generic_heading_gives_way_to_the_title():
    assert contents(
        "# Introduction\n\nRain fell early.\n\n# Rivers\n\nThey rose.", title="Weather of 1911 in the north"
    ) == [
        "Weather of 1911 in the north: Rain fell early.",
        "Weather of 1911 in the north, Rivers: They rose.",
    ]


def test_a_pronoun_is_given_the_subject_of_the_sentence_before():
    text = "In 1902, Ada Brook left Leeds. She taught botany. Her garden survives.\n\nShe is forgotten."
    assert contents(text, title="Gardens") == [
        "Gardens: In 1902, Ada Brook left Leeds.",
        "Gardens, Ada Brook: She taught botany.",
        "Ada Brook: Her garden survives.",
        "Gardens: She is forgotten.",
    ]


def test_a_long_sentence_is_cut_at_its_clauses():
    first = (
        "The committee met in the old customs house on the first Monday of every month of that year to hear complaints"
    )
    second = (
        "and the clerk, who had served under three mayors, wrote down each of them in a book bound in green leather"
    )
    third = "which his widow later sold to the county archive together with two maps and a box of undated letters"
    text = f"{first}, {second}, {third}, although the buyers never learned where the last of the maps had come from."
    spans = [a.source_span for a in atoms_of(text)]
    assert spans == [f"{first}, {second},", text[len(first) + len(second) + 4 :]]


def test_every_content_fits_an_atom():
    text = "Words " * 900 + "12345678 " * 200 + "机器学习" * 300
    assert max(num_tokens(a.content) for a in atoms_of(text, title="A title of some length")) <= MAX_CONTENT_TOKENS


def test_fragments_join_their_neighbours():
    assert contents("Did it work? Yes. The valve held.") == ["Did it work? Yes.", "The valve held."]
    assert contents("Owner:\n\nMaria Lund Hansen") == ["Owner: Maria Lund Hansen"]


def test_one_word_list_items_share_an_atom():
    assert contents("Take these along:\n\n- flour\n- eggs\n- a pinch of salt") == [
        "Take these along:",
        "flour; eggs",
        "a pinch of salt",
    ]


def test_labelled_rows_are_atoms_of_their_own():
    assert contents("name: Ada; born: 1815\nname: Emmy; born: 1882") == [
        "name: Ada; born: 1815",
        "name: Emmy; born: 1882",
    ]


def test_a_heading_without_a_body_is_kept_as_an_atom():
    atoms = atoms_of("# Closed on 3 May\n\n# Prices\n\nA ticket costs 4 euros.")
    assert [(a.content, a.is_answer_bearing) for a in atoms] == [
        ("Closed on 3 May", True),
        ("Prices: A ticket costs 4 euros.", True),
    ]


def test_page_numbers_go_and_other_numbers_stay():
    pages = [
        "The mill stood idle for years.\n\n12\n\nThen it burned down at night.\n\n7\n",
        "8\n\nNobody rebuilt the mill.\n",
    ]
    assert contents("", pages=pages) == [
        "The mill stood idle for years. 12",
        "Then it burned down at night.",
        "Nobody rebuilt the mill.",
    ]


def test_raised_citation_numbers_stay_with_their_sentence():
    text = " ".join(
        f"Claim number {w} was shown before. {i} Another one follows it." for i, w in enumerate("abcdefgh", 1)
    )
    spans = [a.source_span for a in atoms_of(text)]
    assert spans[:2] == ["Claim number a was shown before. 1", "Another one follows it."]


def test_a_number_that_opens_one_sentence_belongs_to_it():
    assert contents("The hall was full. 12 Judges sat in it.") == ["The hall was full.", "12 Judges sat in it."]


def test_references_stay_whole_and_are_trusted_little():
    text = (
        "# References\n\n(1) Holm, E. On tides. Journal of Seas 1999, 4, 1-9.\n(2) Rask, J. Sand. Dunes 2003, 7, 2-5."
    )
    atoms = atoms_of(text)
    assert len(atoms) == 2
    assert all(a.confidence < 0.4 and a.semantic_type == "evidence_fragment" for a in atoms)


def test_receipt_lines_are_not_torn_apart():
    lines = [f"Item {name} number {i} sold at 3.99 each" for i, name in enumerate("ABCDEFGHIJKL")]
    spans = [a.source_span for a in atoms_of("\n".join(lines))]
    assert len(spans) > 1
    assert "\n".join(spans).split("\n") == lines


def test_chinese_text_becomes_one_atom_a_sentence():
    text = "港口在冬天关闭了三个月。船长带着两名水手离开了城市！"
    assert [a.source_span for a in atoms_of(text, language="zh")] == [
        "港口在冬天关闭了三个月。",
        "船长带着两名水手离开了城市！",
    ]


def test_retrieval_text_holds_title_names_and_key_terms_once():
    atom = atoms_of("In 1911 the Marlow Works delivered a pump to the Port of Sker.", title="Pumps")[0]
    assert atom.retrieval_text == "Pumps; Marlow Works; Port of Sker; 1911 delivered pump"


def test_a_document_without_text_gives_no_atoms():
    result = build_atomizer(AtomizerConfig()).atomize(document(" \n\n "))
    assert result.atoms == () and result.meta.decomposition_status == "empty"


def test_progress_ends_with_the_whole_text():
    calls: list[tuple[int, int | None]] = []
    text = "The bell rang twice today. " * 500
    build_atomizer(AtomizerConfig()).atomize(
        document(text), on_progress=lambda done, total: calls.append((done, total))
    )
    assert calls == sorted(calls) and len(calls) > 2 and calls[-1] == (len(text), len(text))


def test_the_rules_cost_nothing_and_name_their_language():
    rules = build_atomizer(AtomizerConfig())
    assert rules.estimate(document("One line.")) is None
    assert rules.fingerprint != build_atomizer(AtomizerConfig(language="de")).fingerprint


def test_no_text_breaks_the_rules_or_is_lost():
    rng = random.Random(11)
    words = [
        "The",
        "He",
        "Ada",
        "1911",
        "3 kg",
        "was",
        "tar.",
        "No?",
        "-",
        "1.",
        "#",
        "|",
        "\t",
        "\n",
        "\n\n",
        "A:",
        "é中。",
    ]
    for _ in range(300):
        text = " ".join(rng.choices([*words, "\x00", "\ud800"], k=rng.randrange(60)))
        text += "".join(chr(rng.randrange(1, 0x3000)) for _ in range(rng.randrange(40)))
        atoms = atoms_of(text, title=rng.choice(["", "Ada", "1911"]))
        ids = {a.atom_id for a in atoms}
        covered: set[int] = set()
        end = 0
        for atom in atoms:
            assert end <= atom.char_start < (end := atom.char_end)
            assert text[atom.char_start : atom.char_end] == atom.source_span
            covered.update(range(atom.char_start, atom.char_end))
            assert len(atom.relations) <= MAX_RELATIONS
            assert {r.target for r in atom.relations} <= ids - {atom.atom_id}
        body = [b for b in split_blocks(text) if b.kind not in ("heading", "furniture")]
        assert all(i in covered for b in body for i in range(b.start, b.end) if not text[i].isspace())


def test_time_grows_in_line_with_the_text():
    sentence = "On 4 May 1911, Ada Brook of Leeds sold 12 kg of tar to the harbour of Sker, and it paid her late. "

    def seconds(repeats: int) -> float:
        start = time.process_time()
        atoms_of((sentence * 20 + "\n\n") * repeats, title="Tar")
        return time.process_time() - start

    seconds(2)
    short, long = seconds(10), seconds(100)
    assert long < 25 * short + 0.2  # ten times the text; a quadratic step would take a hundred times as long


@pytest.mark.skipif(not SQUAD.exists(), reason="../shared/data/eval/squad is not there")
def test_answers_of_squad_lie_inside_one_short_atom():
    spans = missed = num_atoms = num_passages = 0
    for article in json.loads(SQUAD.read_text("utf-8"))["data"][::8]:
        for paragraph in article["paragraphs"]:
            atoms = atoms_of(paragraph["context"], title=article["title"])
            num_atoms, num_passages = num_atoms + len(atoms), num_passages + 1
            answers = {(a["answer_start"], a["text"]) for q in paragraph["qas"] for a in q["answers"]}
            for start, answer in answers:
                spans += 1
                missed += sum(a.char_start <= start and start + len(answer) <= a.char_end for a in atoms) != 1
    assert missed < 0.005 * spans
    assert 4.5 < num_atoms / num_passages < 5.5


def test_a_caption_is_an_atom_of_its_own_and_has_no_heading() -> None:
    contents = [a.content for a in atoms_of("The Gull Was Sold\nFigure 2. The Gull at the pier in the summer of 1909.")]
    assert contents == ["The Gull Was Sold", "Figure 2. The Gull at the pier in the summer of 1909."]
    contents = [a.content for a in atoms_of("The pilot often worked with\nFigure 2: The pier. It stood until 1912.")]
    assert contents[0] == "The pilot often worked with"


def test_a_row_without_gaps_is_no_heading() -> None:
    row = "Fourth Gull Eva Kral 1912 Granite"
    text = f"{row}\nThe pier was built by the harbour company and stood for eleven years in all."
    assert any(row in a.source_span for a in atoms_of(text))


def test_the_bar_of_a_set_makes_no_table_row() -> None:
    text = "The language {xx | x is a binary string} is decided in linear time. It needs two tapes."
    assert [a.source_span for a in atoms_of(text)] == [
        "The language {xx | x is a binary string} is decided in linear time.",
        "It needs two tapes.",
    ]


def test_a_list_of_labels_and_values_has_no_header() -> None:
    atoms = atoms_of("Company type | Public\nTraded as | MRLW 100\nFounded | 4 April 1975")
    assert [a.content for a in atoms] == ["Company type: Public", "Traded as: MRLW 100", "Founded: 4 April 1975"]
    assert {a.semantic_type for a in atoms} == {"entity_attribute"}


def test_two_columns_of_figures_have_a_header() -> None:
    contents = [a.content for a in atoms_of("Owner | Share\nMarlow Works | 8.9%\nThe crew | 5.6%")]
    assert contents[1:] == ["Owner: Marlow Works; Share: 8.9%", "Owner: The crew; Share: 5.6%"]
