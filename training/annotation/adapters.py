"""What is special about the corpora of one mode, in words for an annotator.

Holds the instructions that a mode adds to the prompts for decomposition and for questions. What the rules do
instead of reading them is `training.annotation.structure`.
Paper: appendix "Context Decomposition", "Question-to-Atom Annotation" (dataset-specific adapter).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Instructions for the corpora of one mode.

    Args:
        decomposition: What the atoms must bring out.
        distractors: What makes an atom a hard distractor.
        question_type: Of a question whose set does not tell.
    """

    decomposition: str
    distractors: str
    question_type: str


ADAPTERS = {
    "extractive": Adapter(
        decomposition="""\
The questions ask for short stretches of the text. Keep names, dates, places and numbers as they are written,
and give every fact that could be asked for on its own an atom of its own.""",
        distractors="""\
Prefer atoms that name the same person or thing but state something else about it, and atoms that state the
asked kind of fact about someone or something else.""",
        question_type="single_hop",
    ),
    "multi_hop": Adapter(
        decomposition="""\
The text is a series of titled paragraphs, and questions join facts from several of them. Bring out bridge
entities, that is, every person, place, work or organisation by which one paragraph leads to another: name it in
full, in the form of its own paragraph's title, in each atom that mentions it. Wherever atoms of different
paragraphs are about the same entity, connect them by same_entity relations, in both directions. Decompose every
paragraph, whether or not it seems to matter.""",
        distractors="""\
Prefer atoms that tie the asked attribute to the wrong entity: another person's birthplace, another village's
country, another film's director.""",
        question_type="multi_hop",
    ),
    "numeric": Adapter(
        decomposition="""\
Questions count, compare, add and subtract. Give every quantity that could be compared (a score, distance, share,
amount, count, age, date) an atom of its own, with whose it is, its unit and its time. The source_span of such an
atom is the exact sequence of characters in the text around that one quantity; never round, convert or compute.""",
        distractors="""\
Prefer atoms with the same kind of quantity for another subject or another time, and other quantities of the same
subject.""",
        question_type="single_hop",
    ),
    "field_lookup": Adapter(
        decomposition="""\
The text is a set of entries with fields, clauses or table cells. Make one atom of each pair of an entity and a
field, name both in its content, and keep the value as it is written. Carry the heading or row that a value
belongs to into its atom.""",
        distractors="""\
Prefer atoms with the same entity but another field, and atoms with the same field but another entity.""",
        question_type="field_lookup",
    ),
    "scientific": Adapter(
        decomposition="""\
The text is a research paper. Keep apart what was done, what was measured, what was concluded, and what others
found. Name the method, data set, metric and setting that a result belongs to, and keep its numbers. Resolve
"we" to the authors of this paper and abbreviations to their full form at least once.""",
        distractors="""\
Prefer atoms about the same method with another data set or metric, the same metric of another method, and
related work that sounds like the paper's own.""",
        question_type="evidence_grounded",
    ),
}
"""By `training.datasets.context.MODES`."""
