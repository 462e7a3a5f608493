"""The question-answering sets that `d2a` knows: where each is kept, how it reads, and what it is for.

Holds the sets to train on and the sets to evaluate on, as data. Licences are those that the sets' authors state;
None where they state none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from training.datasets.choices import parse_boolq, parse_multirc
from training.datasets.context import Context
from training.datasets.drop import parse_drop
from training.datasets.files import HubFiles, Reading
from training.datasets.longbench import FAMILIES, parse_longbench
from training.datasets.multihop import parse_hotpot, parse_musique
from training.datasets.qasper import parse_qasper
from training.datasets.ropes import parse_ropes
from training.datasets.spans import parse_friendsqa, parse_quoref, parse_squad, parse_timeqa
from training.datasets.stories import parse_fairytaleqa, parse_narrativeqa

Parser = Callable[[Path, Reading], Iterator[Context]]
CONVERTED = "refs/convert/parquet"


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A set of questions over texts.

    Args:
        family: Sets of one family share their kind of question and text: training on one makes the others in-domain.
        folder: Its folder in a collection of sets.
        files: Globs below that folder of the files of each split, those of published names first. A set that no
            evaluation uses trains on all its splits.
        is_paper_source: One of the five sets that the paper trains on.
        eval_sets: Names in `EVAL_SETS` of what measures it.
    """

    name: str
    family: str
    folder: str
    mode: str
    parse: Parser
    files: dict[str, tuple[str, ...]]
    licence: str | None
    language: str = "en"
    hub: HubFiles | None = None
    homepage: str = ""
    is_paper_source: bool = False
    eval_sets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """What measures a trained memory, and is kept out of its training.

    Args:
        dataset: Name in `DATASETS`, whose form it has.
        files: Globs below the set's folder.
    """

    name: str
    dataset: str
    files: tuple[str, ...]

    @property
    def is_published_dev(self) -> bool:
        """Whether the hub's dev split is this set."""
        return self.name == self.dataset


_SETS = (
    DatasetInfo(
        name="squad",
        family="squad",
        folder="squad",
        mode="extractive",
        parse=parse_squad,
        files={"train": ("train-v1*.json*", "train_*.json*"), "dev": ("dev-v1*.json*",)},
        licence="CC BY-SA 4.0",
        hub=HubFiles(
            repo_id="rajpurkar/squad",
            patterns={"train": "plain_text/train-*.parquet", "dev": "plain_text/validation-*.parquet"},
        ),
        is_paper_source=True,
        eval_sets=("squad", "squad_v2"),
    ),
    DatasetInfo(
        name="squad_v2",
        family="squad",
        folder="squad",
        mode="extractive",
        parse=parse_squad,
        files={"train": ("train-v2*.json*",), "dev": ("dev-v2*.json*",)},
        licence="CC BY-SA 4.0",
        hub=HubFiles(
            repo_id="rajpurkar/squad_v2",
            patterns={"train": "squad_v2/train-*.parquet", "dev": "squad_v2/validation-*.parquet"},
        ),
        eval_sets=("squad", "squad_v2"),
    ),
    DatasetInfo(
        name="squadshifts",
        family="squadshifts",
        folder="squadshifts",
        mode="extractive",
        parse=parse_squad,
        # Published as test sets; d2a trains on them and evaluates on none.
        files={"train": ("*_v1.0.json*",)},
        licence="CC BY 4.0",
        homepage="https://modestyachts.github.io/squadshifts-website",
    ),
    DatasetInfo(
        name="ropes",
        family="ropes",
        folder="ropes",
        mode="extractive",
        parse=parse_ropes,
        files={"train": ("train-v1*.json*",), "dev": ("dev-v1*.json*",)},
        licence="CC BY 4.0",
        hub=HubFiles(
            repo_id="allenai/ropes",
            patterns={"train": "plain_text/train-*.parquet", "dev": "plain_text/validation-*.parquet"},
        ),
        is_paper_source=True,
        eval_sets=("ropes", "ropes_contrast"),
    ),
    DatasetInfo(
        name="drop",
        family="drop",
        folder="drop",
        mode="numeric",
        parse=parse_drop,
        files={
            "train": ("drop_dataset_train.json*", "*train*.json*"),
            "dev": ("drop_dataset_dev.json*", "*_dev.json*"),
        },
        licence="CC BY-SA 4.0",
        hub=HubFiles(
            repo_id="ucinlp/drop",
            patterns={"train": "data/train-*.parquet", "dev": "data/validation-*.parquet"},
        ),
        is_paper_source=True,
        eval_sets=("drop", "drop_contrast"),
    ),
    DatasetInfo(
        name="2wikimultihopqa",
        family="2wikimultihopqa",
        folder="2wikimultihopqa",
        mode="multi_hop",
        parse=parse_hotpot,
        files={"train": ("train*.json*",), "dev": ("dev*.json*",)},
        licence="Apache-2.0",
        hub=HubFiles(repo_id="voidful/2WikiMultihopQA", patterns={"train": "train.json", "dev": "dev.json"}),
        is_paper_source=True,
        eval_sets=("2wikimultihopqa", "longbench/2wikimqa"),
    ),
    DatasetInfo(
        name="hotpotqa",
        family="hotpotqa",
        folder="hotpotqa",
        mode="multi_hop",
        parse=parse_hotpot,
        files={"train": ("*train*.json*",), "dev": ("*dev*.json*",)},
        licence="CC BY-SA 4.0",
        hub=HubFiles(
            repo_id="hotpotqa/hotpot_qa",
            patterns={"train": "distractor/train-*.parquet", "dev": "distractor/validation-*.parquet"},
        ),
        eval_sets=("hotpotqa", "longbench/hotpotqa"),
    ),
    DatasetInfo(
        name="musique",
        family="musique",
        folder="musique",
        mode="multi_hop",
        parse=parse_musique,
        files={"train": ("*train*.json*",), "dev": ("*dev*.json*",)},
        licence="CC BY 4.0",
        hub=HubFiles(
            repo_id="dgslibisey/MuSiQue",
            patterns={"train": "musique_ans_v1.0_train.jsonl", "dev": "musique_ans_v1.0_dev.jsonl"},
        ),
        eval_sets=("musique", "longbench/musique"),
    ),
    DatasetInfo(
        name="qasper",
        family="qasper",
        folder="qasper",
        mode="scientific",
        parse=parse_qasper,
        files={"train": ("qasper-train*.json", "*train*.json", "*evidence.json"), "dev": ("*dev*.json", "*test*.*")},
        licence="CC BY 4.0",
        hub=HubFiles(
            repo_id="allenai/qasper",
            revision=CONVERTED,
            patterns={"train": "qasper/train/*.parquet", "dev": "qasper/test/*.parquet"},
        ),
        is_paper_source=True,
        eval_sets=("qasper", "longbench/qasper"),
    ),
    DatasetInfo(
        name="boolq",
        family="boolq",
        folder="boolq",
        mode="extractive",
        parse=parse_boolq,
        files={"train": ("train.jsonl*",), "dev": ("dev.jsonl*",)},
        licence="CC BY-SA 3.0",
        hub=HubFiles(
            repo_id="google/boolq",
            patterns={"train": "data/train-*.parquet", "dev": "data/validation-*.parquet"},
        ),
    ),
    DatasetInfo(
        name="multirc",
        family="multirc",
        folder="multirc",
        mode="extractive",
        parse=parse_multirc,
        files={"train": ("train.jsonl*",), "dev": ("val.jsonl*",)},
        licence=None,
        hub=HubFiles(
            repo_id="aps/super_glue",
            patterns={"train": "multirc/train-*.parquet", "dev": "multirc/validation-*.parquet"},
        ),
    ),
    DatasetInfo(
        name="fairytaleqa",
        family="fairytaleqa",
        folder="fairytaleqa",
        mode="extractive",
        parse=parse_fairytaleqa,
        files={"train": ("questions/train/*.csv", "train.csv"), "dev": ("questions/val/*.csv", "valid.csv")},
        licence="Apache-2.0",
        hub=HubFiles(repo_id="WorkInTheDark/FairytaleQA", patterns={"train": "train.csv", "dev": "valid.csv"}),
    ),
    DatasetInfo(
        name="quoref",
        family="quoref",
        folder="quoref",
        mode="extractive",
        parse=parse_quoref,
        files={"train": ("quoref-train*.json*", "*train.json*"), "dev": ("quoref-dev*.json*",)},
        licence="CC BY 4.0",
        hub=HubFiles(
            repo_id="allenai/quoref",
            revision=CONVERTED,
            patterns={"train": "default/train/*.parquet", "dev": "default/validation/*.parquet"},
        ),
        eval_sets=("quoref", "quoref_contrast"),
    ),
    DatasetInfo(
        name="cmrc2018",
        family="cmrc2018",
        folder="cmrc2018",
        mode="extractive",
        parse=parse_squad,
        files={"train": ("*.json*",)},
        licence="CC BY-SA 4.0",
        language="zh",
        hub=HubFiles(repo_id="hfl/cmrc2018", patterns={"train": "data/train-*.parquet"}),
    ),
    DatasetInfo(
        name="drcd",
        family="drcd",
        folder="drcd",
        mode="extractive",
        parse=parse_squad,
        files={"train": ("*.json*",)},
        licence="CC BY-SA 3.0",
        language="zh",
        hub=HubFiles(repo_id="voidful/DRCD", revision=CONVERTED, patterns={"train": "default/train/*.parquet"}),
    ),
    DatasetInfo(
        name="policyqa",
        family="policyqa",
        folder="policyqa",
        mode="field_lookup",
        parse=parse_squad,
        files={"train": ("*.json*",)},
        licence=None,
        homepage="https://github.com/wasiahmad/PolicyQA",
    ),
    DatasetInfo(
        name="friendsqa",
        family="friendsqa",
        folder="friendsqa",
        mode="extractive",
        parse=parse_friendsqa,
        files={"train": ("friendsqa_*.json*",)},
        licence="Apache-2.0",
        homepage="https://github.com/emorynlp/FriendsQA",
    ),
    DatasetInfo(
        name="timeqa",
        family="timeqa",
        folder="timeqa",
        mode="field_lookup",
        parse=parse_timeqa,
        files={"train": ("human_train.*", "train.*"), "dev": ("human_dev.*", "dev.*")},
        licence="BSD-3-Clause",
        homepage="https://github.com/wenhuchen/Time-Sensitive-QA",
    ),
    DatasetInfo(
        name="narrativeqa",
        family="narrativeqa",
        folder="narrativeqa",
        mode="extractive",
        parse=parse_narrativeqa,
        files={"dev": ("test.json*",)},
        licence="Apache-2.0",
        hub=HubFiles(repo_id="deepmind/narrativeqa", patterns={"dev": "data/test-*.parquet"}),
        eval_sets=("narrativeqa", "longbench/narrativeqa"),
    ),
    DatasetInfo(
        name="longbench",
        family="longbench",
        folder="longbench",
        mode="extractive",
        parse=parse_longbench,
        files={"dev": ("*.jsonl",)},
        licence="MIT",
        hub=HubFiles(repo_id="THUDM/LongBench", patterns={"dev": "data.zip"}),
        eval_sets=tuple(f"longbench/{subset}" for subset in FAMILIES),
    ),
)
DATASETS = {info.name: info for info in _SETS}
PAPER_SOURCES = tuple(info.name for info in _SETS if info.is_paper_source)

_EVALS = (
    *(EvalSet(name=i.name, dataset=i.name, files=i.files["dev"]) for i in _SETS if i.name in i.eval_sets),
    EvalSet(name="longbench", dataset="longbench", files=("*.jsonl",)),
    EvalSet(name="ropes_contrast", dataset="ropes", files=("ropes_contrast*.json*",)),
    EvalSet(name="drop_contrast", dataset="drop", files=("drop_contrast*.json*",)),
    EvalSet(name="quoref_contrast", dataset="quoref", files=("quoref_test_perturbations*.json*",)),
    EvalSet(name="quoref_subset", dataset="quoref", files=("quoref_original_subset*.json*",)),
)
EVAL_SETS = {found.name: found for found in _EVALS}


def family_of(name: str) -> str:
    """Return the family of a set to train or to evaluate on, `longbench/SUBSET` among them."""
    if name.startswith("longbench/"):
        return FAMILIES[name.removeprefix("longbench/")]
    return DATASETS[EVAL_SETS[name].dataset if name in EVAL_SETS else name].family
