"""Invented documents over the words of a tokenizer that gives a token a word: what speed and memory need, and no more.

Bases with random weights to go with them are in `training.bench.efficiency.bases`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from models.atoms import AnnotationRecord, Atom, Question

NUM_WORDS = 20_000  # of the documents; the vocabulary may have more
QUESTION_WORDS = 12


@dataclass(frozen=True, kw_only=True)
class DocumentShape:
    """What an invented document has.

    Args:
        atom_tokens: Of the longest atom; lengths are even between a quarter of it and all.
        questions: One of them cannot be answered.
        answer_tokens: Of the longest answer; lengths are even between 1 and that.
        longest: Give every atom and answer its greatest length.
    """

    atoms: int = 64
    atom_tokens: int = 96
    questions: int = 8
    answer_tokens: int = 128
    longest: bool = False


def documents(count: int, shape: DocumentShape, *, num_words: int = NUM_WORDS, seed: int = 0) -> list[AnnotationRecord]:
    """Return invented documents, two an article, whose context is all their atoms one after the other."""
    rng = random.Random(seed)
    return [_document(number, shape, rng, num_words) for number in range(count)]


def _document(number: int, shape: DocumentShape, rng: random.Random, num_words: int) -> AnnotationRecord:
    def words(least: int, most: int) -> str:
        length = most if shape.longest else rng.randint(least, most)
        return " ".join(f"w{rng.randrange(num_words)}" for _ in range(length))

    contents = [words(max(1, shape.atom_tokens // 4), shape.atom_tokens) for _ in range(shape.atoms)]
    atoms, begin = [], 0
    for place, content in enumerate(contents):
        atoms.append(
            Atom(
                atom_id=f"atom_{place}",
                semantic_type="fact_claim",
                content=content,
                source_span=content,
                retrieval_text="",
                conflict_group="same" if place < 2 else None,
                confidence=round(rng.uniform(0.2, 1.0), 2),
                char_start=begin,
                char_end=begin + len(content),
            )
        )
        begin += len(content) + 1
    questions = [
        _question(place, contents, words(1, shape.answer_tokens), is_irrelevant=place == shape.questions - 1)
        for place in range(shape.questions)
    ]
    return AnnotationRecord(
        context=" ".join(contents), title=f"Article {number // 2}", atoms=tuple(atoms), qa_pairs=tuple(questions)
    )


def _question(place: int, contents: list[str], answer: str, *, is_irrelevant: bool) -> Question:
    """Ask with an atom's first words; it and the next one are gold, the third is a distractor."""
    gold, second, distractor = (f"atom_{(place + i) % len(contents)}" for i in range(3))
    first_words = contents[place % len(contents)].split()[:QUESTION_WORDS]
    return Question(
        question_id=f"q{place}",
        question=" ".join(first_words),
        answers=() if is_irrelevant else (answer,),
        gold_atom_ids=() if is_irrelevant else (gold, second),
        distractor_atom_ids=(distractor,),
        is_irrelevant=is_irrelevant,
        question_type="irrelevant" if is_irrelevant else "multi_hop",
    )


class NotAsked:
    """Stands where a run's held-out passages are, and says that all is well."""

    def evaluate(self) -> dict[str, float]:
        """Return a loss of nothing."""
        return {"loss": 0.0}
