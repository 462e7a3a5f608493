"""Small annotated passages about an invented country, for the tests of training."""

from models.atoms import AnnotationMeta, AnnotationRecord, Atom, Question


def make_record(title: str, sentences: list[str], questions: list[tuple[str, str, list[int]]]) -> AnnotationRecord:
    """Return a record with one atom a sentence.

    Args:
        questions: `(question, answer, numbers of the gold sentences)`; none of them where it cannot be answered.
    """
    context = " ".join(sentences)
    atoms = tuple(
        Atom(
            atom_id=f"atom_{number}",
            semantic_type="fact_claim",
            content=sentence,
            source_span=sentence,
            retrieval_text="",
            char_start=context.index(sentence),
            char_end=context.index(sentence) + len(sentence),
        )
        for number, sentence in enumerate(sentences)
    )
    qa_pairs = tuple(
        Question(
            question_id=f"{title}-{sentences[0][:8]}-{number}",
            question=question,
            answers=(answer,) if gold else (),
            gold_atom_ids=tuple(f"atom_{i}" for i in gold),
            is_irrelevant=not gold,
            question_type="single_hop" if gold else "irrelevant",
        )
        for number, (question, answer, gold) in enumerate(questions)
    )
    meta = AnnotationMeta(annotator="test", num_atoms=len(atoms))
    return AnnotationRecord(context=context, title=title, atoms=atoms, qa_pairs=qa_pairs, annotation_meta=meta)


def river_and_town() -> list[AnnotationRecord]:
    """Return two passages of one article, one of another, and one without a title; six questions."""
    return [
        make_record(
            "Oland",
            ["The river Brenn feeds lake Tor.", "Its water is green.", "Otters live there."],
            [
                ("Which lake does the Brenn feed?", "lake Tor", [0]),
                ("What colour is the water, and who lives in it?", "green, otters", [1, 2]),
            ],
        ),
        make_record(
            "Oland",
            ["Mayor Ilse Kant rules Marn.", "Marn has nine bridges."],
            [("Who rules Marn?", "Ilse Kant", [0]), ("When was Marn founded?", "", [])],
        ),
        make_record(
            "Physics",
            ["Quarks carry colour charge.", "Gluons bind quarks.", "Leptons feel no colour.", "Photons are light."],
            [("What binds quarks?", "gluons", [1])],
        ),
        make_record("", ["The shop sells blue kettles."], [("What does the shop sell?", "blue kettles", [0])]),
    ]


def colours(count: int, *, articles: int = 4) -> list[AnnotationRecord]:
    """Return passages that each give three invented places a colour, with a question a place."""
    names = ["red", "blue", "green", "white", "black", "brown"]
    records = []
    for number in range(count):
        places = [f"{kind}{number}" for kind in ("lake", "hill", "town")]
        picked = [names[(number + i) % len(names)] for i in range(3)]
        records.append(
            make_record(
                f"Article {number % articles}",
                [f"The {place} shows {colour}." for place, colour in zip(places, picked, strict=True)],
                [
                    (f"Which colour does {place} show?", colour, [i])
                    for i, (place, colour) in enumerate(zip(places, picked, strict=True))
                ],
            )
        )
    return records
