"""One forward pass of memory and upper layers over a batch, and the losses that it gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.base import FrozenBase
from models.composer import compose
from models.injection import ComposedAdapter, attached
from models.microkv import AtomSlots, latent_slots, token_slots
from models.network import MemoryNetwork
from models.router import Router, Routing
from training.batches import Batch
from training.config import TrainConfig
from training.features import FeatureCache, LiveFeatures
from training.losses import irrelevant_loss, listwise_loss, lm_loss, route_loss

CONTRASTIVE_SCALE = 20.0
NUM_NEAREST = 32
MAX_IRRELEVANT = 32


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A batch after routing.

    Args:
        atom_U: Flat rows of the batch's distinct candidates; `column_BC` says which is which.
        cosine_BC: Question keys against the row's candidates.
    """

    routing: Routing
    atom_U: Tensor
    latent_UZ: Tensor
    column_BC: Tensor
    cosine_BC: Tensor


class TrainStep:
    """Forward passes over a feature cache."""

    def __init__(
        self, base: FrozenBase, network: MemoryNetwork, cache: FeatureCache | LiveFeatures, metadata_NM: Tensor
    ) -> None:
        self.base = base
        self.network = network
        self.cache = cache
        self.metadata_NM = metadata_NM

    @torch.no_grad()
    def nearest(self, question_B: Tensor) -> Tensor:
        """Return the atoms whose present keys are nearest to some questions, flat rows `[B, M]`, nearest first.

        Keys of the whole library are made anew each time: they are cheap, and negatives are never stale.
        """
        key_NE, _ = self.network.compile_atoms(self.cache.atom_pooled_ND)
        query_BE = self.network.query_keys(self.cache.question_pooled(question_B))
        return (query_BE @ key_NE.T).topk(min(NUM_NEAREST, len(key_NE)), dim=-1).indices

    def route(self, batch: Batch, *, top_k: int) -> Routed:
        """Compile the batch's candidates, score them and select."""
        atom_U, column_BC = batch.candidate_BC.unique(return_inverse=True)
        key_UE, latent_UZ = self.network.compile_atoms(self.cache.atom_pooled(atom_U))
        query_BE = self.network.query_keys(self.cache.question_pooled(batch.question_B))
        cosine_BC = (key_UE[column_BC] @ query_BE[:, :, None]).squeeze(-1)
        router = self.network.router
        score_BC = router.score(cosine_BC, batch.lexical_BC, self.metadata_NM[batch.candidate_BC])
        routing = router.select(score_BC, batch.valid_BC, top_k=top_k)
        return Routed(routing=routing, atom_U=atom_U, latent_UZ=latent_UZ, column_BC=column_BC, cosine_BC=cosine_BC)

    def adapter(self, routed: Routed, index_BK: Tensor, log_weight_BK: Tensor) -> ComposedAdapter:
        """Compose the chosen candidates (columns of the batch) into one adapter a question."""
        column_BK = routed.column_BC[: len(index_BK)].gather(1, index_BK)
        distinct_D, rows_BK = column_BK.unique(return_inverse=True)
        return compose(
            self.network.compiler,
            log_weight_BK.exp(),
            log_weight_BK,
            latent_BKZ=routed.latent_UZ[column_BK],
            slots=self._slots(routed, distinct_D),
            slot_rows_BK=rows_BK,
        )

    def _slots(self, routed: Routed, distinct_D: Tensor) -> AtomSlots | None:
        source = self.network.spec.kv.source
        if source == "none":
            return None
        if source == "latent":
            return latent_slots(self.base, self.network.compiler, routed.latent_UZ[distinct_D])
        x_USD, lengths_U = self.cache.atom_entry(routed.atom_U[distinct_D])
        return token_slots(self.base, self.network.compiler, x_USD, lengths_U)

    def answer_logits(self, adapter: ComposedAdapter | None, row_B: Tensor) -> tuple[Tensor, Tensor]:
        """Run the upper layers over prompts with answers.

        Args:
            row_B: Rows of the cache's targets.

        Returns:
            Logits at the answer's tokens `[T, V]`, and the tokens `[T]`.
        """
        targets = self.cache.targets(row_B)
        start = self.base.num_layers - self.network.spec.num_memory_layers
        with attached(self.base, adapter):
            out_BLD = self.base.run_layers(targets.state_BLD, targets.mask_BL, start=start, stop=self.base.num_layers)
        return self.base.logits(out_BLD[targets.before_BL]), targets.token_BL[targets.answer_BL]

    def losses(
        self, batch: Batch, config: TrainConfig, *, progress: float, generator: torch.Generator
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Return every loss as (sum, count)."""
        routed = self.route(batch, top_k=config.top_k_at(progress))
        routing = routed.routing
        out = {"route": route_loss(routing.score_BC, batch.gold_BC, batch.valid_BC, batch.distractor_BC)}
        out["null_slot"] = listwise_loss(routing.score_BC, batch.gold_BC, batch.valid_BC, null_slot=True)
        out["contrastive"] = listwise_loss(
            CONTRASTIVE_SCALE * routed.cosine_BC, batch.gold_BC, batch.contrast_BC, null_slot=False
        )
        out["irrelevant"] = self._irrelevant(routed, batch)
        lm = slice(0, batch.num_lm)
        index_BK, log_weight_BK = with_gold(
            self.network.router, routing, batch, lm, share=config.gold_forcing * (1 - progress), generator=generator
        )
        adapter = self.adapter(routed, index_BK, log_weight_BK)
        row_B = self.cache.target_rows(batch.question_B[lm], batch.refuse_B[lm])
        out["lm"] = lm_loss(*self.answer_logits(adapter, row_B))
        return out

    def _irrelevant(self, routed: Routed, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = batch.off_topic_B.nonzero().squeeze(1)
        rows = rows[:: max(1, -(-len(rows) // MAX_IRRELEVANT))]  # evenly: both kinds of off-topic row take part
        weight_BK = routed.routing.weight_BK[rows]
        column_BK = routed.column_BC[rows].gather(1, routed.routing.index_BK[rows])
        adapter = compose(
            self.network.compiler, weight_BK, routed.routing.log_weight_BK[rows], latent_BKZ=routed.latent_UZ[column_BK]
        )
        return irrelevant_loss(adapter, weight_BK.sum(1))


def with_gold(
    router: Router, routing: Routing, batch: Batch, rows: slice, *, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Make sure that the language model can find its answer in what it is given.

    A share of the questions gets its gold atoms alone, in equal parts. The others keep the router's choice; where
    it misses every gold atom, the best of them takes the last place, with the weight that the router gives it.

    Returns:
        Columns and log-weights `[B, K]`.
    """
    index, gold, score = routing.index_BK[rows], batch.gold_BC[rows], routing.score_BC[rows]
    has_gold = gold.any(-1)
    missed = has_gold & ~gold.gather(1, index).any(-1)
    best = score.masked_fill(~gold, -torch.inf).argmax(-1)
    index = torch.where(missed[:, None] & _last(index), best[:, None], index)
    kept = torch.zeros_like(gold).scatter(1, index, True)
    chosen = router.select(score, batch.valid_BC[rows] & kept, top_k=index.shape[1])
    top_gold, gold_index = gold.float().topk(index.shape[1], dim=-1)
    uniform = (top_gold / top_gold.sum(-1, keepdim=True).clamp(min=1)).log()
    forced = has_gold & (torch.rand(len(index), generator=generator, device=index.device) < share)
    return (
        torch.where(forced[:, None], gold_index, chosen.index_BK),
        torch.where(forced[:, None], uniform, chosen.log_weight_BK),
    )


def _last(index_BK: Tensor) -> Tensor:
    return torch.arange(index_BK.shape[1], device=index_BK.device) == index_BK.shape[1] - 1
