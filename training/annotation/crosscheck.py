"""The last word on a record: deterministic checks of what an annotator said against the atoms and the set.

Holds the step from labels to questions. The same labels always give the same record; nothing is asked again.
Paper: appendix "Cross-validation", "Failure Handling and Quality Logging", and the rescued probe of the example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from models.atomizer import Atomization
from models.atoms import QUESTION_TYPES, AnnotationRecord, Question
from training.annotation.adapters import ADAPTERS
from training.annotation.prompts import question_name
from training.annotation.replies import Label
from training.datasets.context import Context, QAItem

PROBE = "/probe_"  # in the name of a question that is not one of the set


def probe_item(context: Context, number: int, text: str) -> QAItem:
    """Return a probe as a question of the context, without an answer."""
    return QAItem(question_id=f"{context.context_id}{PROBE}{number}", question=text, answers=())


def question_of(item: QAItem, *, is_probe: bool) -> Question:
    """Return a question as the set has it, before any atom has a role."""
    return Question(
        question_id=item.question_id,
        question=item.question,
        answers=tuple(dict.fromkeys(answer.text for answer in item.answers)),
        question_type=item.question_type or "single_hop",
        is_irrelevant=is_probe or item.is_impossible,
        is_generated_irrelevant=is_probe,
    )


def checked_record(
    context: Context, atomization: Atomization, questions: Sequence[Question], warnings: Sequence[str] = ()
) -> AnnotationRecord:
    """Join the stages into a record that keeps the invariants of the schema.

    Ids that name no atom with a valid span are dropped with a warning, irrelevant questions lose their gold atoms,
    and `relevant_atom_ids` and `has_conflict` are derived from what is left. An answerable question that ends
    without a gold atom is warned about, since no router could be taught by it.
    """
    bank = tuple(atom for atom in atomization.atoms if atom.span_valid)
    record = AnnotationRecord(
        context=context.text,
        title=context.title,
        atoms=bank,
        qa_pairs=tuple(questions),
        annotation_meta=replace(
            atomization.meta,
            num_questions=len(questions),
            num_irrelevant_generated=sum(question.is_generated_irrelevant for question in questions),
            warnings=tuple(dict.fromkeys((*atomization.meta.warnings, *warnings))),
        ),
    ).validated()
    return replace(record, atoms=atomization.atoms, qa_pairs=tuple(_warned(q) for q in record.qa_pairs))


def _warned(question: Question) -> Question:
    if question.is_irrelevant or question.gold_atom_ids or question.annotation_warnings:
        return question
    return replace(question, annotation_warnings=("no gold atom",))


def labelled_questions(
    context: Context, probes: Sequence[QAItem], labels: Mapping[str, Label]
) -> tuple[list[Question], list[str]]:
    """Return the questions of a set and its probes with the roles that an annotator gave.

    Args:
        labels: By `question_name` of a question's place among the set's questions and then the probes.

    Returns:
        The questions in that order, and warnings for the record.
    """
    items = (*context.questions, *probes)
    questions, warnings = [], []
    for number, item in enumerate(items):
        question = question_of(item, is_probe=number >= len(context.questions))
        label = labels.get(question_name(number))
        if label is None:
            warnings.append(f"question {item.question_id} was left out of the reply")
            questions.append(replace(question, annotation_warnings=("not annotated",)))
        else:
            questions.append(_labelled(question, label, context.mode, is_impossible=item.is_impossible))
    names = {question_name(number) for number in range(len(items))}
    warnings += [f"the reply names an unknown question {name}" for name in labels if name not in names]
    return questions, warnings


def _labelled(question: Question, label: Label, mode: str, *, is_impossible: bool) -> Question:
    """Settle where an annotator and the set differ.

    A probe with gold atoms that the annotator finds answerable is rescued: it stays marked as generated, and keeps
    its roles. People who wrote a question to be unanswerable are believed against the annotator.
    """
    warnings = []
    question_type = label.question_type
    if question_type not in QUESTION_TYPES:
        warnings.append(f"unknown question type {question_type!r}")
    if question_type not in QUESTION_TYPES or question_type == "irrelevant":
        question_type = ADAPTERS[mode].question_type
    says_irrelevant = label.is_answerable is False
    if question.is_generated_irrelevant:
        is_irrelevant = says_irrelevant or not label.gold
    else:
        is_irrelevant = says_irrelevant or is_impossible
        if says_irrelevant and not is_impossible:
            warnings.append("reclassified as irrelevant by the annotator")
        elif is_impossible and not says_irrelevant and label.gold:
            warnings.append("unanswerable in the set, answerable to the annotator")
    return replace(
        question,
        question_type=question_type,
        is_irrelevant=is_irrelevant,
        gold_atom_ids=label.gold,
        supporting_atom_ids=label.supporting,
        distractor_atom_ids=label.distractors,
        annotation_warnings=tuple(warnings),
    )
