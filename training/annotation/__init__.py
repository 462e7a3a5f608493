"""From contexts with questions to the paper's records: atoms, and the role of each atom in each answer.

    annotator = build_annotator("offline", contexts, config=AtomizerConfig(), num_probes=2)
    summary = annotate_contexts(contexts, annotator, Path("records/squad"))      # training.annotation.pipeline

Holds the interface that both annotators keep and the function that builds one. Three stages make a record:
decomposition (`decomposition`), irrelevant probes, and one annotation of all questions. `llm` asks a model for
the last two, `offline` derives them from what the set's authors marked; `crosscheck` has the last word on both.
Paper: section "Data Atomization and Processing", appendix "Atomization Pipeline".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from models.atomizer import JobEstimate
from models.atoms import AnnotationRecord
from models.config import AtomizerConfig
from models.errors import D2AError
from training.datasets.context import Context

AnnotatorName = Literal["offline", "llm"]


class DiscardedSampleError(D2AError):
    """A context without a complete bank of atoms, which no later stage can mend: it makes no sample."""


class Annotator(Protocol):
    """Makes one record of one context; threads may share it.

    Attributes:
        fingerprint: Changes whenever the same contexts would give other records.
        concurrency: How many contexts it is worth annotating at a time.
    """

    fingerprint: str
    concurrency: int

    def estimate(self, contexts: Sequence[Context]) -> JobEstimate | None:
        """Return about what annotating these contexts would cost; None where it costs nothing."""
        ...

    def annotate(self, context: Context) -> AnnotationRecord:
        """Annotate a context.

        Raises:
            DiscardedSampleError: It could not be decomposed as a whole.
            AtomizerError: No context can be annotated before the user mends something.
        """
        ...

    def close(self) -> None:
        """Let go of connections; requests under way are not waited for."""
        ...


def build_annotator(
    name: AnnotatorName, contexts: Sequence[Context], *, config: AtomizerConfig, num_probes: int = 2
) -> Annotator:
    """Return an annotator over the decomposition that `config.backend` names.

    Args:
        name: `offline` for distant supervision, `llm` for the model that `config` names.
        contexts: All that will be annotated: offline probes are questions about other contexts.
        num_probes: Irrelevant probes a context, 0 for none; offline as many again, altered from its own questions.
    """
    if name == "llm":
        from training.annotation.llm import LLMAnnotator

        return LLMAnnotator(config, num_probes=num_probes)
    from training.annotation.offline import OfflineAnnotator

    return OfflineAnnotator(config, contexts, num_probes=num_probes, num_altered=num_probes)
