"""Claims about distant supervision: marks of the set's authors become roles of atoms."""

from __future__ import annotations

from dataclasses import replace

from models.atoms import AnnotationRecord, Question
from models.config import AtomizerConfig
from training.annotation import build_annotator
from training.annotation.offline import MAX_DISTRACTORS, MAX_GOLD_OF_EVIDENCE, OfflineAnnotator
from training.datasets.context import Answer, Context, QAItem, join_paragraphs, locate

TEXT = (
    "Gannet Rock has a lighthouse. Its lamp was lit in 1868. The keeper of Gannet Rock was Ines Okafor. "
    "A storm took the keeper's boat in 1901. Tern Island has a lighthouse too, and its keeper was Paul Reyes."
)


def item(question: str, *answers: str, name: str = "q", **more: object) -> QAItem:
    return QAItem(question_id=name, question=question, answers=tuple(locate(TEXT, a) for a in answers), **more)


def rock(*items: QAItem, mode: str = "extractive", text: str = TEXT, name: str = "rock") -> Context:
    return Context(dataset="made", context_id=name, title="Gannet Rock", text=text, questions=items, mode=mode)


def annotated(context: Context, *others: Context, num_probes: int = 0, num_altered: int = 0) -> AnnotationRecord:
    contexts = [context, *others]
    annotator = OfflineAnnotator(AtomizerConfig(), contexts, num_probes=num_probes, num_altered=num_altered)
    return annotator.annotate(context)


def spans(record: AnnotationRecord, ids: tuple[str, ...]) -> list[str]:
    by_id = {a.atom_id: a.source_span for a in record.atoms}
    return [by_id[i] for i in ids]


def only(record: AnnotationRecord) -> Question:
    (question,) = record.qa_pairs
    return question


def test_the_atom_under_an_answer_is_gold_and_the_nearest_others_distract() -> None:
    record = annotated(rock(item("Who was the keeper of Gannet Rock?", "Ines Okafor")))
    question = only(record)
    assert spans(record, question.gold_atom_ids) == ["The keeper of Gannet Rock was Ines Okafor."]
    found = spans(record, question.distractor_atom_ids)
    # The same entity's other field, and the right attribute of the wrong entity.
    assert "Gannet Rock has a lighthouse." in found
    assert "Tern Island has a lighthouse too, and its keeper was Paul Reyes." in found
    assert len(found) <= MAX_DISTRACTORS
    assert (question.annotation_warnings, question.is_irrelevant) == ((), False)


def test_an_atom_that_repeats_the_answer_is_no_distractor() -> None:
    text = f"{TEXT} Ines Okafor kept the lamp of Gannet Rock until her death."
    record = annotated(rock(item("Who was the keeper of Gannet Rock?", "Ines Okafor"), text=text))
    assert not any("Okafor" in span for span in spans(record, only(record).distractor_atom_ids))


def test_references_in_different_sentences_are_all_gold() -> None:
    record = annotated(rock(item("When was there light?", "1868", "1901")))
    assert spans(record, only(record).gold_atom_ids) == [
        "Its lamp was lit in 1868.",
        "A storm took the keeper's boat in 1901.",
    ]


def evidence(*sentences: str) -> tuple[tuple[int, int], ...]:
    return tuple((TEXT.index(s), TEXT.index(s) + len(s)) for s in sentences)


def test_evidence_beside_the_answer_is_supporting() -> None:
    marked = evidence("Its lamp was lit in 1868.", "The keeper of Gannet Rock was Ines Okafor.")
    record = annotated(rock(item("Who kept the lamp of 1868?", "Ines Okafor", evidence=marked), mode="multi_hop"))
    question = only(record)
    assert spans(record, question.gold_atom_ids) == ["The keeper of Gannet Rock was Ines Okafor."]
    assert spans(record, question.supporting_atom_ids) == ["Its lamp was lit in 1868."]
    assert question.question_type == "multi_hop"


def test_evidence_is_gold_where_the_answer_is_not_in_the_text() -> None:
    marked = evidence("Gannet Rock has a lighthouse.", "Tern Island has a lighthouse too")
    asked = replace(
        item("Do Gannet Rock and Tern Island both have lighthouses?", evidence=marked, question_type="comparison"),
        answers=(Answer(text="yes"),),
    )
    record = annotated(rock(asked))
    question = only(record)
    assert [s[:11] for s in spans(record, question.gold_atom_ids)] == ["Gannet Rock", "Tern Island"]
    assert (question.question_type, question.annotation_warnings) == ("comparison", ())


def test_wide_evidence_gives_its_nearest_atoms_as_gold_and_the_rest_as_support() -> None:
    sentences = [f"Light number {n} burns oil." for n in range(5)] + ["The lens of the reef light is of cut glass."]
    text = " ".join(sentences)
    asked = QAItem(
        question_id="q",
        question="What is the lens of the reef light made of?",
        answers=(Answer(text="crystal"),),
        evidence=((0, len(text)),),
    )
    record = annotated(rock(asked, text=text, mode="scientific"))
    question = only(record)
    assert len(record.atoms) == 6 and len(question.gold_atom_ids) == MAX_GOLD_OF_EVIDENCE
    assert "atom_5" in question.gold_atom_ids
    assert len(question.supporting_atom_ids) == 6 - MAX_GOLD_OF_EVIDENCE


def test_paragraphs_marked_as_needed_support_where_no_sentence_is() -> None:
    text, placed = join_paragraphs(
        [("Salt Road", "Salt Road was made by Ines Okafor.", True), ("Ines Okafor", "She was born in Lisbon.", True)]
    )
    asked = QAItem(question_id="q", question="Where was the maker born?", answers=(locate(text, "Lisbon"),))
    context = Context(
        dataset="made",
        context_id="hop",
        title="",
        text=text,
        questions=(asked,),
        mode="multi_hop",
        paragraphs=placed,
    )
    record = annotated(context)
    assert spans(record, only(record).gold_atom_ids) == ["She was born in Lisbon."]
    assert spans(record, only(record).supporting_atom_ids) == ["Salt Road was made by Ines Okafor."]


def test_an_answer_without_a_place_and_without_evidence_is_warned_about() -> None:
    record = annotated(rock(replace(item("Is it far?"), answers=(Answer(text="no"),))))
    assert only(record).annotation_warnings == ("no gold atom",)


def test_human_unanswerable_questions_stay_irrelevant_and_are_not_called_generated() -> None:
    question = only(annotated(rock(item("Who painted the lighthouse of Gannet Rock?", is_impossible=True))))
    assert (question.is_irrelevant, question.is_generated_irrelevant) == (True, False)
    assert (question.question_type, question.gold_atom_ids) == ("irrelevant", ())
    assert question.distractor_atom_ids[0] == "atom_0"


def sibling(*pairs: tuple[str, str]) -> Context:
    text = " ".join(f"{answer} it was." for _, answer in pairs)
    items = tuple(
        QAItem(question_id=f"s{n}", question=question, answers=(locate(text, answer),))
        for n, (question, answer) in enumerate(pairs)
    )
    return rock(*items, text=text, name="sibling")


def test_probes_are_the_nearest_sibling_questions_that_the_context_does_not_answer() -> None:
    other = sibling(
        ("What does copper cost?", "Nine pence"),
        ("What colour is the lighthouse of Gannet Rock?", "Grey"),
        ("Who wrote of the keeper of Gannet Rock?", "Ines Okafor"),
        ("Who was the keeper of Gannet Rock?", "Someone"),
        ("Which keeper of the lighthouse drowned?", "Tom Weld"),
    )
    own = rock(item("Who was the keeper of Gannet Rock?", "Ines Okafor"))
    record = annotated(own, other, num_probes=2)
    probes = [q for q in record.qa_pairs if q.is_generated_irrelevant]
    # The context knows Ines Okafor, and asks for its keeper itself; copper shares no word with it.
    assert {q.question for q in probes} == {
        "What colour is the lighthouse of Gannet Rock?",
        "Which keeper of the lighthouse drowned?",
    }
    assert [(q.question_id, q.is_irrelevant, q.question_type, q.answers) for q in probes] == [
        ("rock/probe_0", True, "irrelevant", ()),
        ("rock/probe_1", True, "irrelevant", ()),
    ]


def test_an_altered_question_is_irrelevant_and_the_atom_with_the_answer_distracts_first() -> None:
    context = rock(item("When was its first lamp lit?", "1868"))
    original, question = annotated(context, num_altered=2).qa_pairs
    assert (question.question, question.answers) == ("When was its last lamp lit?", ())
    assert (question.is_irrelevant, question.is_generated_irrelevant) == (True, True)
    assert (question.question_type, question.question_id) == ("irrelevant", "rock/altered_0_antonym")
    assert (question.gold_atom_ids, question.supporting_atom_ids) == ((), ())
    assert question.distractor_atom_ids[:1] == original.gold_atom_ids
    assert len(set(question.distractor_atom_ids)) == len(question.distractor_atom_ids) <= MAX_DISTRACTORS


def test_shards_without_altered_questions_are_not_taken_for_shards_with_them() -> None:
    prints = {
        OfflineAnnotator(AtomizerConfig(), [], num_probes=probes, num_altered=altered).fingerprint
        for probes, altered in ((2, 2), (2, 0), (0, 2), (0, 0))
    }
    assert len(prints) == 4


def test_as_many_questions_are_altered_as_there_are_probes() -> None:
    first, last = item("When was its first lamp lit?", "1868"), item("When was its first light seen?", "1868")
    context = rock(first, last)
    numbers = []
    for probes in (0, 1, 2):
        annotator = build_annotator("offline", [context], config=AtomizerConfig(), num_probes=probes)
        numbers.append(sum("/altered_" in q.question_id for q in annotator.annotate(context).qa_pairs))
    assert numbers == [0, 1, 2]


def test_the_same_contexts_give_the_same_records() -> None:
    contexts = (rock(item("Who was the keeper?", "Ines Okafor")), sibling(("What colour is Gannet Rock?", "Grey")))
    first, second = (annotated(*contexts, num_probes=1, num_altered=1) for _ in range(2))
    assert first == second
