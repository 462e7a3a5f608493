"""The scores of an answer: the paper's F1 and ROUGE-L, exact match, and the official metric of its set, by name.

Each module holds what a set's official evaluation adds to SQuAD's, which is in `training.metrics`. Means, intervals
and Overall are elsewhere (`training.bench.summary`, `training.bench.overall`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from models.errors import ConfigError
from training.bench.metrics.drop import drop_f1, spans_of
from training.bench.metrics.longbench import first_line_f1, qa_f1_zh
from training.bench.metrics.qasper import best_type
from training.bench.metrics.rouge import rouge_l
from training.bench.metrics.squad import squad_v2_f1
from training.bench.metrics.twowiki import two_wiki_f1
from training.bench.refusal import REFUSAL
from training.bench.samples import Sample
from training.metrics import exact_match, token_f1

__all__ = ["METRICS", "answer_type", "score"]

_PLAIN: dict[str, Callable[[str, Sequence[str]], float]] = {
    "squad": token_f1,
    "2wiki": two_wiki_f1,
    "qasper": token_f1,
    "qa_f1": token_f1,
    "qa_f1_first_line": first_line_f1,
    "qa_f1_zh": qa_f1_zh,
    "rouge_l": rouge_l,
}
METRICS = (*_PLAIN, "squad_v2", "drop")


def score(metric: str, prediction: str, sample: Sample) -> dict[str, float]:
    """Score an answer.

    Args:
        metric: The suite's, one of `METRICS`.

    Returns:
        `f1` of words, `em`, `rouge_l`, and `official` under `metric`, each in [0, 1] and the best over the references.
        Words of Chinese, which spaces do not part, are the official metric's. A sample that has no references is
        answered by the refusal alone.

    Raises:
        ConfigError: No such metric.
        D2AError: The metric needs a package that is not installed.
    """
    references = sample.references or (REFUSAL,)
    official = _official(metric, prediction, sample)
    return {
        "f1": official if metric == "qa_f1_zh" else token_f1(prediction, references),
        "em": exact_match(prediction, references),
        "rouge_l": rouge_l(prediction, references),
        "official": official,
    }


def answer_type(metric: str, prediction: str, sample: Sample) -> str | None:
    """Return the type of answer under which a scored sample counts; None where its set has no types."""
    if metric == "qasper" and sample.reference_types:
        return best_type(prediction, sample.references, sample.reference_types)
    return sample.answer_type


def _official(metric: str, prediction: str, sample: Sample) -> float:
    references = sample.references or (REFUSAL,)
    if metric in _PLAIN:
        return _PLAIN[metric](prediction, references)
    if metric == "squad_v2":
        return squad_v2_f1(prediction, sample.references, refusal=REFUSAL)
    if metric == "drop":
        return drop_f1(spans_of(prediction), sample.spans or [(reference,) for reference in references])
    raise ConfigError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
