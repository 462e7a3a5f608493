"""Systems with trained baselines: a LoRA that knows no document, and Doc-to-LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch

from models.base import FrozenBase
from models.baselines.d2l import HyperLora, internalize
from models.injection import ComposedAdapter
from models.static_lora import StaticLora
from training.bench.bank import SuiteBank
from training.bench.systems.memory import atom_texts
from training.bench.systems.system import Given

# For so many characters a document's LoRA and the states behind it take at most the memory of a token in a prompt.
CHARS_A_TOKEN = 8
# Longer documents together are read layer by layer, with equal results, for their states would not fit.
MAX_CHARS_AT_ONCE = 65536


class Reader:
    """The base with a static LoRA, and text in the prompt or none (the blind control)."""

    is_trained = True

    def __init__(self, name: str, lora: StaticLora, *, text: Literal["none", "atoms", "document"]) -> None:
        self.name, self.text = name, text
        self._adapter = lora.adapter()

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give each question the LoRA, with the text that it was trained to read."""
        texts: Sequence[str | None] = [None] * len(rows)
        if self.text == "atoms":
            texts = atom_texts(bank, bank.route(rows))
        elif self.text == "document":
            texts = [bank.document(row) for row in rows]
        return Given(texts=texts, adapter=lambda places: self._adapter)


class DocToLora:
    """The base with a LoRA of the whole document that is asked about, read raw or as its atoms' lines."""

    is_trained = True

    def __init__(self, name: str, base: FrozenBase, hyper: HyperLora, *, form: Literal["raw", "atoms"]) -> None:
        self.name, self.base, self.hyper, self.form = name, base, hyper, form

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give each question its document's LoRA."""
        texts = [bank.document(row) if self.form == "raw" else bank.atom_lines(row) for row in rows]
        return Given(
            texts=[None] * len(rows),
            adapter=partial(self._adapter, texts),
            weights=[len(text) // CHARS_A_TOKEN for text in texts],
        )

    @torch.no_grad()
    def _adapter(self, texts: Sequence[str], places: Sequence[int]) -> ComposedAdapter:
        distinct = list(dict.fromkeys(texts[place] for place in places))
        row = [distinct.index(texts[place]) for place in places]
        long = sum(map(len, distinct)) > MAX_CHARS_AT_ONCE
        adapter = internalize(self.base, self.hyper, distinct, layers_at_once=1 if long else None)
        return ComposedAdapter(lora={site: (a[row], b[row]) for site, (a, b) in adapter.lora.items()})
