"""The documents of a training set as text, and which atoms belong to which; rows are those of the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from models.atoms import AnnotationRecord
from models.errors import ConfigError
from training.features.texts import cut_texts

FORMS = ("raw", "atoms")


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Passages as text.

    Args:
        texts: One a passage.
        passage_of_atom: The passage of each atom.
        article_of_atom: A number that all passages of one article share, of each atom.
    """

    texts: Sequence[str]
    passage_of_atom: Sequence[int]
    article_of_atom: Sequence[int]

    @classmethod
    def of(cls, records: Sequence[AnnotationRecord], *, form: str = "raw") -> Documents:
        """Take the passages as their authors wrote them (`raw`), or their atoms line by line (`atoms`).

        Raises:
            ConfigError: Another form.
        """
        if form not in FORMS:
            raise ConfigError(f"train: documents must be one of {', '.join(FORMS)}, got {form!r}")
        numbers: dict[object, int] = {}
        # A passage without a title is an article of its own.
        articles = [numbers.setdefault(r.title or p, len(numbers)) for p, r in enumerate(records)]
        return cls(
            texts=[r.context if form == "raw" else "\n".join(a.content for a in r.atoms) for r in records],
            passage_of_atom=[p for p, r in enumerate(records) for _ in r.atoms],
            article_of_atom=[articles[p] for p, r in enumerate(records) for _ in r.atoms],
        )

    def cut(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> Documents:
        """Return the documents with at most `max_tokens` tokens each, cut at the end of the last one's text."""
        return replace(self, texts=cut_texts(tokenizer, self.texts, max_tokens))
