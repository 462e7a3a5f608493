"""The suites that `d2a bench` knows, as data: which files feed each, its official size, references and metric."""

from __future__ import annotations

from dataclasses import dataclass

from training.bench.suites.forms import parse_drop_copies, parse_narrativeqa_copies
from training.bench.suites.references import (
    ReferenceReader,
    first_answer,
    plain_answers,
    read_aliases,
    read_drop,
    read_qasper,
    read_quoref,
    read_summaries,
)
from training.datasets import DATASETS
from training.datasets.files import HubFiles
from training.datasets.longbench import FAMILIES
from training.datasets.registry import Parser


@dataclass(frozen=True, kw_only=True)
class SuiteInfo:
    """A set to measure on.

    Args:
        dataset: Name in `training.datasets.DATASETS` of the set whose form it has.
        metric: Name in `training.bench.metrics`.
        num_official: Questions of the official set; fewer are a subset.
        files: Globs below its folder, the official names first; reading stops when the set is complete.
        references: Reads the references as the set's official evaluation does.
        parse: Where the form of the official distribution is not the one that training reads.
        hub: None for a set that the hub lacks.
        note: What a reader must know of the set itself.
    """

    name: str
    dataset: str
    metric: str
    num_official: int
    files: tuple[str, ...]
    references: ReferenceReader = plain_answers
    parse: Parser | None = None
    hub: HubFiles | None = None
    note: str = ""

    @property
    def folder(self) -> str:
        """Name of its folder in a collection of sets."""
        return DATASETS[self.dataset].folder


_LONGBENCH_METRICS = {"multifieldqa_zh": "qa_f1_zh", "triviaqa": "qa_f1_first_line"}


def _on_hub(dataset: str) -> HubFiles | None:
    return DATASETS[dataset].hub


_SUITES = (
    SuiteInfo(
        name="squad",
        dataset="squad",
        metric="squad",
        num_official=10570,
        files=("dev-v1*.json*",),
        hub=_on_hub("squad"),
    ),
    SuiteInfo(
        name="squad_v2",
        dataset="squad_v2",
        metric="squad_v2",
        num_official=11873,
        files=("dev-v2*.json*",),
        hub=_on_hub("squad_v2"),
    ),
    SuiteInfo(
        name="drop",
        dataset="drop",
        metric="drop",
        num_official=9536,
        files=("drop_dataset_dev.json*", "*_dev.json*", "*validation*.parquet"),
        references=read_drop,
        parse=parse_drop_copies,
        # The authors' own repository there leaves open which spans belong together.
        hub=HubFiles(repo_id="EleutherAI/drop", patterns={"dev": "drop_validation.parquet"}),
    ),
    SuiteInfo(
        name="drop-contrast",
        dataset="drop",
        metric="drop",
        num_official=947,
        files=("drop_contrast*.json*",),
        references=read_drop,
    ),
    SuiteInfo(
        name="ropes",
        dataset="ropes",
        metric="squad",
        num_official=1688,
        files=("dev-v1*.json*",),
        references=first_answer,
        hub=_on_hub("ropes"),
    ),
    SuiteInfo(
        name="ropes-contrast",
        dataset="ropes",
        metric="squad",
        num_official=974,
        files=("ropes_contrast*.json*",),
        references=first_answer,
    ),
    SuiteInfo(
        name="2wiki",
        dataset="2wikimultihopqa",
        metric="2wiki",
        num_official=12576,
        files=("dev.json*", "dev*.json*"),
        references=read_aliases,
        hub=_on_hub("2wikimultihopqa"),
    ),
    SuiteInfo(
        name="hotpotqa",
        dataset="hotpotqa",
        metric="2wiki",
        num_official=7405,
        files=("*dev_distractor*.json*", "*distractor_dev*.json*"),
        hub=_on_hub("hotpotqa"),
        note="distractor setting",
    ),
    SuiteInfo(
        name="musique",
        dataset="musique",
        metric="squad",
        num_official=2417,
        files=("musique_ans*dev*.json*", "dev*.json*"),
        hub=_on_hub("musique"),
        note="answerable questions",
    ),
    SuiteInfo(
        name="qasper",
        dataset="qasper",
        metric="qasper",
        num_official=1451,
        files=("qasper-test*.json", "*test*.json", "*test*.csv"),
        references=read_qasper,
        hub=_on_hub("qasper"),
    ),
    SuiteInfo(
        name="narrativeqa",
        dataset="narrativeqa",
        metric="rouge_l",
        num_official=10557,
        files=("qaps.csv", "test.json*"),
        references=read_summaries,
        parse=parse_narrativeqa_copies,
        hub=_on_hub("narrativeqa"),
        note="asked of the summaries",
    ),
    SuiteInfo(
        name="quoref",
        dataset="quoref",
        metric="drop",
        num_official=2418,
        files=("quoref-dev*.json*",),
        references=read_quoref,
        hub=_on_hub("quoref"),
    ),
    SuiteInfo(
        name="quoref-contrast",
        dataset="quoref",
        metric="drop",
        # The file has 700, two of them twice.
        num_official=698,
        files=("quoref_test_perturbations*.json*",),
        references=read_quoref,
    ),
    SuiteInfo(
        name="quoref-original",
        dataset="quoref",
        metric="drop",
        num_official=415,
        files=("quoref_original_subset*.json*",),
        references=read_quoref,
        note="the questions that the contrast set alters",
    ),
    *(
        SuiteInfo(
            name=f"longbench/{subset}",
            dataset="longbench",
            metric=_LONGBENCH_METRICS.get(subset, "qa_f1"),
            num_official=150 if subset == "multifieldqa_en" else 200,
            files=(f"{subset}.jsonl", "*.jsonl", "*.zip"),
            hub=_on_hub("longbench"),
            note="the document holds examples, the passage is part of the question" if subset == "triviaqa" else "",
        )
        for subset in FAMILIES
    ),
)
SUITES = {info.name: info for info in _SUITES}
# Their questions bring the passage that answers them, so that no document is needed, and none is unanswerable.
SELF_CONTAINED = ("longbench/triviaqa",)
