"""From contexts to a suite: equal texts become one document, questions become samples, `--limit` draws among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from training.bench.samples import Sample
from training.bench.suites.references import References
from training.datasets.context import Context, QAItem

Asked = tuple[Context, QAItem, References]


def assemble(files: Iterable[Sequence[Asked]]) -> tuple[tuple[Context, ...], tuple[Sample, ...]]:
    """Join the questions of several files into documents and samples, both in the order of the files.

    A question that a later file repeats, by its name or about the same text, counts once.
    """
    documents: dict[str, int] = {}
    contexts: list[Context] = []
    samples: list[Sample] = []
    for asked in files:
        seen_ids = {sample.sample_id for sample in samples}
        seen_questions = {(sample.document, sample.item.question) for sample in samples}
        for context, item, references in asked:
            document = documents.setdefault(context.text, len(contexts))
            if document == len(contexts):
                contexts.append(replace(context, questions=()))
            if item.question_id in seen_ids or (document, item.question) in seen_questions:
                continue
            samples.append(_sample(document, item, references))
    return _with_questions(contexts, samples), tuple(samples)


def _sample(document: int, item: QAItem, references: References) -> Sample:
    return Sample(
        sample_id=item.question_id,
        document=document,
        item=item,
        references=references.texts,
        kind="human" if item.is_impossible else "answerable",
        spans=references.spans,
        answer_type=references.answer_type,
    )


def _with_questions(contexts: Sequence[Context], samples: Iterable[Sample]) -> tuple[Context, ...]:
    questions: list[list[QAItem]] = [[] for _ in contexts]
    for sample in samples:
        questions[sample.document].append(sample.item)
    return tuple(replace(c, questions=tuple(items)) for c, items in zip(contexts, questions, strict=True))


def draw(samples: Sequence[Sample], limit: int | None, seed: int) -> tuple[Sample, ...]:
    """Draw samples at random, in the order that they had; a larger limit keeps those of a smaller one."""
    if limit is None or limit >= len(samples):
        return tuple(samples)
    drawn = sorted(range(len(samples)), key=lambda place: shuffled(seed, samples[place].sample_id))[:limit]
    return tuple(samples[place] for place in sorted(drawn))


def shuffled(seed: int, *names: str) -> bytes:
    """Return a key to sort by that is random, the same on every machine, and independent of what else is sorted."""
    return hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=16).digest()
