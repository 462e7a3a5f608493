"""From a document to knowledge atoms: the interface that every backend keeps.

Holds what a backend promises and returns, and the one function that builds a backend. It holds no
decomposition of its own: `rules` works offline (`models.atomizer.rules`), `openai` asks a language
model (`models.atomizer.llm`). Paper: section "Data Atomization and Processing".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from models.atoms import AnnotationMeta, Atom
from models.config import AtomizerConfig
from models.documents import Document


@dataclass(frozen=True, kw_only=True)
class Atomization:
    """What became of one document.

    Args:
        meta: Its `num_failed_windows` is above 0 where the document is only partly decomposed.
    """

    atoms: tuple[Atom, ...]
    meta: AnnotationMeta


@dataclass(frozen=True, kw_only=True)
class JobEstimate:
    """What decomposing a document will take.

    Args:
        num_calls: Requests, without retries.
        cost_usd: In US dollars; None where no price is configured.
    """

    num_calls: int
    num_input_tokens: int
    num_output_tokens: int
    cost_usd: float | None


class Atomizer(Protocol):
    """Decomposes documents into atoms.

    Attributes:
        fingerprint: Changes whenever the same document would give other atoms.
    """

    fingerprint: str

    def estimate(self, document: Document) -> JobEstimate | None:
        """Return what `atomize` would cost; None where it costs nothing."""
        ...

    def atomize(
        self, document: Document, *, on_progress: Callable[[int, int | None], None] | None = None
    ) -> Atomization:
        """Decompose a document; one without text gives no atoms.

        Args:
            on_progress: Called with the characters or windows done so far and their total.

        Raises:
            AtomizerError: There is text, and nothing of it could be decomposed.
        """
        ...


def build_atomizer(config: AtomizerConfig) -> Atomizer:
    """Return the backend that `config.backend` names."""
    if config.backend == "openai":
        from models.atomizer.llm import OpenAIAtomizer

        return OpenAIAtomizer(config)
    from models.atomizer.rules import RulesAtomizer

    return RulesAtomizer(config)
