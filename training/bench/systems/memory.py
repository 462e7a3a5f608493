"""Doc-to-Atom and its controls: everything whose adapter the memory network writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch

from models.composer import compose
from models.injection import ComposedAdapter
from training.bench.bank import SuiteBank, taken
from training.bench.systems.system import Given
from training.library import RoutedAsks

# Atoms below this weight add nothing to the memory, and none of their words to a prompt.
CONTEXT_WEIGHT = 0.01


class Memory:
    """Routed atoms, composed into an adapter.

    Args:
        routing: `own` routes the question in its bank; `strange` gives it the memory that a question of another
            article has in its own; `gold` gives it the atoms that hold the answer.
        text: What of the routed stands in the prompt as well.
        writes: `all`; `lora`, without micro-KV; `static`, micro-KV beside a LoRA made of the mean latent of the
            suite's atoms, the same for every question.
    """

    is_trained = True

    def __init__(
        self,
        name: str,
        *,
        routing: Literal["own", "strange", "gold"] = "own",
        text: Literal["none", "atoms", "document"] = "none",
        writes: Literal["all", "lora", "static"] = "all",
    ) -> None:
        self.name, self.routing, self.text, self.writes = name, routing, text, writes

    def give(self, bank: SuiteBank, rows: Sequence[int]) -> Given:
        """Give each question its memory."""
        routes = {"own": bank.route, "strange": bank.route_strangers, "gold": bank.route_gold}
        routed = routes[self.routing](rows)
        own = self.routing == "own"
        return Given(
            texts=self._texts(bank, rows, routed),
            adapter=partial(self._adapter, bank, routed),
            routed=None if self.routing == "strange" else routed,
            gated=own,
            may_refuse=not bank.library.network.spec.router.gate_alone,
            # Slots of an atom take about as much memory as that many tokens of a prompt.
            weights=[bank.top_k * bank.library.network.spec.max_atom_tokens] * len(rows),
        )

    def _texts(self, bank: SuiteBank, rows: Sequence[int], routed: RoutedAsks) -> list[str | None]:
        if self.text == "atoms":
            return atom_texts(bank, routed)
        if self.text == "document" and bank.kind == "all":
            return [bank.document_of_atom(atom) for atom in routed.row_BK[:, 0].tolist()]
        return [bank.document(row) if self.text == "document" else None for row in rows]

    def _adapter(self, bank: SuiteBank, routed: RoutedAsks, places: Sequence[int]) -> ComposedAdapter:
        adapter = bank.library.adapter(taken(routed, places))
        if self.writes == "lora":
            return ComposedAdapter(lora=adapter.lora)
        if self.writes == "static":
            return ComposedAdapter(lora=mean_adapter(bank).lora, prefix=adapter.prefix)
        return adapter


def atom_texts(bank: SuiteBank, routed: RoutedAsks) -> list[str]:
    """Return the words of each question's routed atoms, best first."""
    pairs = zip(routed.row_BK.tolist(), routed.log_weight_BK.tolist(), strict=True)
    least = math.log(CONTEXT_WEIGHT)
    return [
        " ".join(bank.library.texts[atom] for atom, weight in zip(atoms, weights, strict=True) if weight > least)
        for atoms, weights in pairs
    ]


@torch.no_grad()
def mean_adapter(bank: SuiteBank) -> ComposedAdapter:
    """Return the LoRA of one atom of weight 1 that has the mean latent of all atoms; it broadcasts over questions."""
    library = bank.library
    latent_11Z = library.latent_NZ.mean(0)[None, None]
    weight_11 = torch.ones(1, 1, device=latent_11Z.device)
    return compose(library.network.compiler, weight_11, weight_11.log(), latent_BKZ=latent_11Z)
