"""What a benchmark asks and what it keeps: samples over documents, and one row a system and sample.

Holds plain data alone; where it comes from and how it is scored is the business of the other modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from training.datasets.context import Context, QAItem

# How a question that its bank cannot answer came about: written by people, asked of another passage of the same
# article, asked of another article, or made by the annotator.
Kind = Literal["answerable", "human", "sibling", "off_topic", "probe"]
# What the name of a suite begins with that measures refusal: `refusal/squad`. Alone it stands for several of them.
REFUSAL_SUITES = "refusal"


def is_refusal_suite(name: str) -> bool:
    """Return whether a suite measures refusal alone, so that its scores are no scores of question answering."""
    return name.partition("/")[0] == REFUSAL_SUITES


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A question asked of a document of the suite.

    Args:
        sample_id: Unique in the suite; a question that is also asked of a stranger has an id of its own there.
        document: Index into the suite's contexts of the text that it is asked of.
        item: The question with its references.
        references: Alternatives, each a string; none where the question cannot be answered.
        spans: DROP's references as their parts, alternatives first.
        answer_type: The set's own kind of answer, for scores by type.
        reference_types: The kind of each reference, where they differ, as QASPER's annotators do.
    """

    sample_id: str
    document: int
    item: QAItem
    references: tuple[str, ...]
    kind: Kind = "answerable"
    spans: tuple[tuple[str, ...], ...] = ()
    answer_type: str | None = None
    reference_types: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Documents and the samples asked of them.

    Args:
        name: As `--suite` names it, `longbench/hotpotqa` for a part of one.
        dataset: Name in `training.datasets.DATASETS`: a row is in-domain where the checkpoint trained on its family.
        metric: Official metric, a name in `training.bench.metrics`.
        contexts: All documents, also those that no drawn sample asks: a bank of all holds them.
        num_total: Samples before `--limit`.
        is_complete: Whether the file is the official set, whole.
        note: What a reader must know about the data: "subset", where it came from, what was dropped.
    """

    name: str
    dataset: str
    metric: str
    contexts: tuple[Context, ...]
    samples: tuple[Sample, ...]
    num_total: int
    is_complete: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of `predictions.jsonl`; holds no times, so that a resumed run writes the same file.

    Args:
        scores: In [0, 1]: `f1`, `em`, `rouge_l`, and `official` under the suite's metric.
        answerability: What the gate says, for systems that have one.
        refusal_logprob: Log P that the answer begins with the refusal, nats.
        refused_by: Who refuses; the gate is asked first.
        gold_rank: Rank of the best gold atom among those composed, from 1.
        error: One line, where the system failed on this sample; scores are 0 then.
    """

    suite: str
    system: str
    sample_id: str
    kind: Kind
    question: str
    references: tuple[str, ...]
    prediction: str
    scores: Mapping[str, float]
    answer_type: str | None = None
    answerability: float | None = None
    refusal_logprob: float | None = None
    refused_by: Literal["gate", "model"] | None = None
    gold_rank: int | None = None
    error: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
