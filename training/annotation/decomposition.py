"""Stage 1: a context to atoms, by either backend of the atomizer.

Holds the choice between them and what discards a sample. A language model reads its corpus's adapter; the rules
read none, so that `training.annotation.structure` does its part for them.
Paper: appendix "Context Decomposition", "Failure Handling and Quality Logging".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from models.atomizer import Atomization, JobEstimate, build_atomizer
from models.atomizer.chat import ChatClient
from models.atomizer.llm import DecompositionError, OpenAIAtomizer
from models.atomizer.prompts import DECOMPOSITION
from models.atoms import AnnotationMeta
from models.config import AtomizerConfig
from models.documents import Document, Page
from training.annotation import DiscardedSampleError
from training.annotation.adapters import ADAPTERS
from training.annotation.structure import STRUCTURE_VERSION, atomize_paragraphs, split_quantities
from training.datasets.context import MODES, Context


class Decomposer(Protocol):
    """Decomposes contexts; threads may share it."""

    fingerprint: str

    def estimate(self, context: Context) -> JobEstimate | None:
        """Return what is left to ask about a context; None where nothing is asked."""
        ...

    def decompose(self, context: Context) -> Atomization:
        """Return the atoms of a whole context.

        Raises:
            DiscardedSampleError: A part of it, or all of it, gave no atoms.
            AtomizerError: The server refuses every request.
        """
        ...


class RulesDecomposer:
    """Offline: sentences, with paragraphs apart and bridges between them, or with quantities apart."""

    def __init__(self, config: AtomizerConfig) -> None:
        self._atomizer = build_atomizer(replace(config, backend="rules"))
        self.fingerprint = f"{self._atomizer.fingerprint}+structure-{STRUCTURE_VERSION}"

    def estimate(self, context: Context) -> JobEstimate | None:
        """Return None: rules cost nothing."""
        return None

    def decompose(self, context: Context) -> Atomization:
        """Return the atoms of a context; see `Decomposer`."""
        if context.mode == "multi_hop" and context.paragraphs:
            atoms = atomize_paragraphs(context, self._atomizer)
        else:
            atoms = self._atomizer.atomize(document_of(context)).atoms
        if context.mode == "numeric":
            atoms = split_quantities(atoms)
        if not atoms:
            raise DiscardedSampleError(f"{context.context_id} holds no text")
        return Atomization(atoms=atoms, meta=AnnotationMeta(annotator="rules", num_atoms=len(atoms), num_windows=1))


class ModelDecomposer:
    """A language model with the adapter of the context's mode.

    Args:
        client: Shared by all contexts; None opens one for each.
    """

    def __init__(self, config: AtomizerConfig, *, client: ChatClient | None = None) -> None:
        # Contexts are decomposed side by side; their windows then need not be.
        config = replace(config, concurrency=1)
        self._by_mode = {
            mode: OpenAIAtomizer(
                config,
                prompt=DECOMPOSITION.adapted(ADAPTERS[mode].decomposition),
                client=client,
                keeps_invalid_spans=True,
            )
            for mode in MODES
        }
        self.fingerprint = "+".join(atomizer.fingerprint for atomizer in self._by_mode.values())

    def estimate(self, context: Context) -> JobEstimate | None:
        """Return what is left to ask about a context; replies in the cache cost nothing."""
        return self._by_mode[context.mode].estimate(document_of(context))

    def decompose(self, context: Context) -> Atomization:
        """Return the atoms of a context; see `Decomposer`."""
        try:
            result = self._by_mode[context.mode].atomize(document_of(context))
        except DecompositionError as error:
            raise DiscardedSampleError(error.message) from error
        if result.meta.num_failed_windows:
            raise DiscardedSampleError(f"{context.context_id}: {result.meta.warnings[0]}")
        return result


def build_decomposer(config: AtomizerConfig, *, client: ChatClient | None = None) -> Decomposer:
    """Return the decomposer over the backend that `config` names."""
    return ModelDecomposer(config, client=client) if config.backend == "openai" else RulesDecomposer(config)


def document_of(context: Context) -> Document:
    """Return a context as the document that an atomizer takes."""
    page = Page(index=0, label="1", char_start=0, char_end=len(context.text))
    return Document(
        source=context.context_id, title=context.title, media_type="text/plain", text=context.text, pages=(page,)
    )
