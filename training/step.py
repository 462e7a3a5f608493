"""Doc-to-Atom as the loop trains it: memory and upper layers over a batch, and every loss that this gives.

A step routes, composes, and runs the upper layers. A loss is computed only where the curriculum gives it weight.
Paper: Method, "Training Objective". The losses themselves are `training.losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import FrozenBase, Site
from models.composer import compose
from models.errors import ConfigError
from models.injection import ComposedAdapter
from models.microkv import AtomSlots, latent_slots, slots_from_inputs
from models.network import MemoryNetwork
from models.router import Router, Routing
from training.batches import Batch
from training.config import TrainConfig
from training.curriculum import Phase
from training.features import FeatureCache, LiveFeatures, Targets
from training.losses import (
    composition_loss,
    confidence_loss,
    conflict_loss,
    distill_topk_loss,
    irrelevant_loss,
    listwise_loss,
    lm_loss,
    protect_loss,
    protect_prefix_loss,
    rerank_loss,
    route_loss,
    sparse_loss,
)
from training.systems.answers import AnswerLogits, answer_logits

CONTRASTIVE_SCALE = 20.0
NUM_NEAREST = 32

# A sum over a batch, and what to divide it by.
Sums = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A batch after routing.

    Args:
        atom_U: Flat rows of the batch's distinct candidates; `column_BC` says which is which.
        query_BE: Keys of the questions.
        cosine_BC: These against the keys of the row's candidates.
    """

    routing: Routing
    atom_U: Tensor
    latent_UZ: Tensor
    column_BC: Tensor
    query_BE: Tensor
    cosine_BC: Tensor


class TrainStep(nn.Module):
    """Forward passes over frozen features; the base stays outside of the module's parameters.

    Args:
        metadata_NM: Of every atom, as `models.router.atom_metadata` gives it.
        basis: Protected inputs of every site, for the null-space form of protection.
    """

    def __init__(
        self,
        base: FrozenBase,
        network: MemoryNetwork,
        features: FeatureCache | LiveFeatures,
        metadata_NM: Tensor,
        config: TrainConfig,
        *,
        basis: Mapping[Site, Tensor] | None = None,
    ) -> None:
        super().__init__()
        if network.compiler.shared is not None and (wrong := config.active_losses & {"sparse", "protect"}):
            raise ConfigError(
                f"train: loss {min(wrong)} shapes what atoms write, and with memory.lora static they share one LoRA",
                hint=f"Set loss.{min(wrong)} to 0",
            )
        if network.compiler.shared is not None and network.spec.kv.source == "none":
            raise ConfigError(
                "train: memory.lora static needs micro-KV: without it nothing of an atom is kept",
                hint="Set memory.kv.source to tokens or latent",
            )
        self.base = base
        self.network = network
        self.features = features
        self.metadata_NM = metadata_NM
        self.config = config
        self.basis = basis

    def forward(self, batch: Batch, phase: Phase, *, mean_gate_G: Tensor | None = None) -> Sums:
        """Return every loss that is on as (sum, count), and the figures `top1` and `tokens` alike.

        Args:
            mean_gate_G: Mean gates over the global batch, where this batch is a part of it.
        """
        routed = self.route(batch, top_k=phase.top_k)
        sums = self._routing_losses(routed, batch, phase)
        if "sparse" in phase.weights:
            logits_NG = self._gate_logits(routed, batch)
            sums["sparse"] = sparse_loss(logits_NG, density=self.config.target_density, mean_gate_G=mean_gate_G)
        if "irrelevant" in phase.weights:
            sums["irrelevant"] = self._irrelevant(routed, batch)
        if batch.num_lm:
            sums |= self._language_losses(routed, batch, phase)
        hit_B = batch.gold_BC.gather(1, routed.routing.index_BK[:, :1]).squeeze(1)
        sums["top1"] = (hit_B.sum(), batch.gold_BC.any(-1).sum())
        return sums

    @torch.no_grad()
    def shared(self, batch: Batch, phase: Phase) -> dict[str, Tensor]:
        """Return what the parts of a global batch add up before any of them runs backward: every loss's count.

        `gates` is the sum of the gates `[G]` behind the count of `sparse`.
        """
        routed = self.route(batch, top_k=phase.top_k)
        counts = {name: count for name, (_, count) in self._routing_losses(routed, batch, phase).items()}
        row_B = self._target_rows(batch)
        length_B, taught_B = self.features.answer_length(row_B), self.features.is_taught(row_B)
        tokens = length_B.sum()
        counts |= {"lm": tokens, "composition": tokens, "distill": (length_B * taught_B).sum()}
        counts["protect"] = torch.tensor(batch.num_lm, device=tokens.device)
        counts["irrelevant"] = torch.tensor(len(batch.suppress), device=tokens.device)
        if "sparse" in phase.weights:
            gate_NG = self._gate_logits(routed, batch).sigmoid()
            counts |= {"gates": gate_NG.sum(0), "sparse": torch.tensor(len(gate_NG), device=tokens.device)}
        return {name: count for name, count in counts.items() if name in phase.weights or name == "gates"}

    def answer(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows under the router's own choice of atoms."""
        routed = self.route(batch, top_k=top_k)
        rows = slice(0, batch.num_lm)
        adapter = self.adapter(routed, routed.routing.index_BK[rows], routed.routing.log_weight_BK[rows])
        return self.answer_under(adapter, self._target_rows(batch))

    def answer_with_gold(self, batch: Batch, *, top_k: int) -> AnswerLogits:
        """Return the logits of the batch's language-model rows under their gold atoms alone."""
        routed = self.route(batch, top_k=top_k)
        rows = slice(0, batch.num_lm)
        chosen = gold_alone(batch, rows, routed.routing.index_BK[rows], routed.routing.log_weight_BK[rows])
        return self.answer_under(self.adapter(routed, *chosen), self._target_rows(batch))

    @torch.no_grad()
    def nearest(self, question_B: Tensor) -> Tensor:
        """Return the atoms whose present keys are nearest to some questions, flat rows `[B, M]`, nearest first.

        Keys of the whole library are made anew each time: they are cheap, and negatives are never stale.
        """
        key_NE, _ = self.network.compile_atoms(self.features.atom_pooled_ND)
        query_BE = self.network.query_keys(self.features.question_pooled(question_B))
        return (query_BE @ key_NE.T).topk(min(NUM_NEAREST, len(key_NE)), dim=-1).indices

    def route(self, batch: Batch, *, top_k: int) -> Routed:
        """Compile the batch's candidates, score them and select."""
        atom_U, column_BC = batch.candidate_BC.unique(return_inverse=True)
        key_UE, latent_UZ = self.network.compile_atoms(self.features.atom_pooled(atom_U))
        query_BE = self.network.query_keys(self.features.question_pooled(batch.question_B))
        cosine_BC = (key_UE[column_BC] @ query_BE[:, :, None]).squeeze(-1)
        router = self.network.router
        score_BC = router.score(cosine_BC, batch.lexical_BC, self.metadata_NM[batch.candidate_BC], batch.rerank_BC)
        routing = router.select(score_BC, batch.valid_BC, top_k=top_k)
        return Routed(
            routing=routing,
            atom_U=atom_U,
            latent_UZ=latent_UZ,
            column_BC=column_BC,
            query_BE=query_BE,
            cosine_BC=cosine_BC,
        )

    def adapter(
        self, routed: Routed, index_BK: Tensor, log_weight_BK: Tensor, *, dtype: torch.dtype | None = None
    ) -> ComposedAdapter:
        """Compose the chosen candidates (columns of the batch) into one adapter a question.

        Args:
            dtype: Of the update's factors; None takes the base's.
        """
        column_BK = routed.column_BC[: len(index_BK)].gather(1, index_BK)
        distinct_D, rows_BK = column_BK.unique(return_inverse=True)
        return compose(
            self.network.compiler,
            log_weight_BK.exp(),
            log_weight_BK,
            latent_BKZ=routed.latent_UZ[column_BK],
            slots=self._slots(routed, distinct_D),
            slot_rows_BK=rows_BK,
            dtype=dtype or self.base.dtype,
        )

    def _slots(self, routed: Routed, distinct_D: Tensor) -> AtomSlots | None:
        source = self.network.spec.kv.source
        if source == "none":
            return None
        if source == "latent":
            return latent_slots(self.base, self.network.compiler, routed.latent_UZ[distinct_D])
        x_MUSD, lengths_U = self.features.atom_inputs(routed.atom_U[distinct_D])
        return slots_from_inputs(self.base, self.network.compiler, x_MUSD, lengths_U)

    def answer_under(self, adapter: ComposedAdapter | None, row_B: Tensor) -> AnswerLogits:
        """Run the upper layers over prompts with answers.

        Args:
            row_B: Rows of the features' targets.
        """
        return self._answers(adapter, self.features.targets(row_B))

    def _answers(self, adapter: ComposedAdapter | None, targets: Targets) -> AnswerLogits:
        first_layer = self.base.num_layers - self.network.spec.num_memory_layers
        return answer_logits(self.base, targets, adapter, first_layer=first_layer)

    def _routing_losses(self, routed: Routed, batch: Batch, phase: Phase) -> Sums:
        """Return the losses that need no language model."""
        on, score_BC = phase.weights, routed.routing.score_BC
        gold_BC, valid_BC = batch.gold_BC, batch.valid_BC
        null_slot = self.network.router.spec.null_slot
        sums = {}
        if "route" in on:
            supporting = None if self.config.supporting_as_negative else batch.supporting_BC
            sums["route"] = route_loss(score_BC, gold_BC, valid_BC, batch.distractor_BC, supporting)
        if "null_slot" in on:
            sums["null_slot"] = listwise_loss(score_BC, gold_BC, valid_BC, null_slot=True)
        if "contrastive" in on:
            sums["contrastive"] = self._contrastive(routed, batch)
        if "rerank" in on and batch.rerank_BC is not None:
            sums["rerank"] = rerank_loss(score_BC, gold_BC, valid_BC, null_slot=null_slot)
        if "conflict" in on:
            sums["conflict"] = conflict_loss(score_BC, gold_BC, valid_BC, batch.group_BC)
        if "confidence" in on:
            index_BK = routed.routing.index_BK
            confidence_BK = self.metadata_NM[batch.candidate_BC.gather(1, index_BK), 0]
            relevant_BK = gold_BC.gather(1, index_BK)
            sums["confidence"] = confidence_loss(routed.routing.log_weight_BK, confidence_BK, relevant_BK)
        return sums

    def _contrastive(self, routed: Routed, batch: Batch) -> tuple[Tensor, Tensor]:
        """Hold the gold atoms' cosines against those of near atoms, which are hard, and of random ones, which are many.

        The nearest atoms of keys that know nothing yet are no better than chance; random ones give the keys their
        first order.
        """
        key_RE, _ = self.network.compile_atoms(self.features.atom_pooled(batch.random_R))
        cosine = torch.cat([routed.cosine_BC, routed.query_BE @ key_RE.T], dim=1)
        gold = F.pad(batch.gold_BC, (0, len(batch.random_R)))
        valid = torch.cat([batch.contrast_BC, batch.random_BR], dim=1)
        return listwise_loss(CONTRASTIVE_SCALE * cosine, gold, valid, null_slot=False)

    def _language_losses(self, routed: Routed, batch: Batch, phase: Phase) -> Sums:
        """Return the losses of what the routed atoms write, and the number of tokens that ran."""
        on, sums = phase.weights, {}
        index_BK, log_weight_BK = self._choice(routed, batch, phase)
        # Protection's gradient is small: added in half precision to the language model's, it would be rounded away.
        adapter = self.adapter(routed, index_BK, log_weight_BK, dtype=torch.float32 if "protect" in on else None)
        if "protect" in on:
            sums["protect"] = self._protect(adapter)
        row_B = self._target_rows(batch)
        targets = self.features.targets(row_B)
        answer = self._answers(adapter, targets)
        logits_TV = answer.logits_TV
        sums["tokens"] = (targets.mask_BL.sum(), torch.ones((), device=logits_TV.device))
        if "lm" in on:
            sums["lm"] = lm_loss(logits_TV, answer.target_T)
        if "distill" in on:
            teacher = self.features.teacher(row_B)
            student = logits_TV[teacher.taught_A]
            sums["distill"] = distill_topk_loss(student, teacher.best, temperature=self.config.distill_temperature)
        if "composition" in on:
            forced_BK = gold_alone(batch, slice(0, batch.num_lm), index_BK, log_weight_BK)
            forced = self._answers(self.adapter(routed, *forced_BK), targets)
            sums["composition"] = composition_loss(logits_TV, forced.logits_TV)
        return sums

    def _choice(self, routed: Routed, batch: Batch, phase: Phase) -> tuple[Tensor, Tensor]:
        """Return which candidates the language model gets, as columns and log-weights `[B, K]`."""
        rows = slice(0, batch.num_lm)
        index_BK, log_weight_BK = routed.routing.index_BK[rows], routed.routing.log_weight_BK[rows]
        if self.config.rescue_gold:
            index_BK, log_weight_BK = with_gold(self.network.router, routed.routing, batch, rows)
        if phase.gold_forcing > 0:
            gold_index_BK, even_BK = gold_alone(batch, rows, index_BK, log_weight_BK)
            forced_B1 = (batch.coin_B[rows] < phase.gold_forcing)[:, None]
            index_BK = torch.where(forced_B1, gold_index_BK, index_BK)
            log_weight_BK = torch.where(forced_B1, even_BK, log_weight_BK)
        return index_BK, log_weight_BK

    def _target_rows(self, batch: Batch) -> Tensor:
        lm = slice(0, batch.num_lm)
        return self.features.target_rows(batch.question_B[lm], batch.refuse_B[lm])

    def _gate_logits(self, routed: Routed, batch: Batch) -> Tensor:
        """Return the mask logits of the candidates of the language model's questions, `[N, G]`."""
        lm = slice(0, batch.num_lm)
        column_N = routed.column_BC[lm][batch.valid_BC[lm]]
        return self.network.compiler.mask_head(routed.latent_UZ)[column_N]

    def _protect(self, adapter: ComposedAdapter) -> tuple[Tensor, Tensor]:
        total, count = protect_loss(adapter, basis=self.basis)
        if adapter.prefix:
            total = total + protect_prefix_loss(adapter, basis=self.basis)[0]
        return total, count

    def _irrelevant(self, routed: Routed, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = batch.suppress
        weight_BK = routed.routing.weight_BK[rows]
        column_BK = routed.column_BC[rows].gather(1, routed.routing.index_BK[rows])
        adapter, compiler = ComposedAdapter(), self.network.compiler
        if compiler.shared is None:
            log_weight_BK = routed.routing.log_weight_BK[rows]
            adapter = compose(compiler, weight_BK, log_weight_BK, latent_BKZ=routed.latent_UZ[column_BK])
        has_slots = self.network.spec.kv.source != "none"
        return irrelevant_loss(adapter, weight_BK.sum(1) if has_slots else None)


def with_gold(router: Router, routing: Routing, batch: Batch, rows: slice) -> tuple[Tensor, Tensor]:
    """Make sure that the language model can find its answer in what it is given.

    Where the router misses every gold atom, the best of them takes the last place, with the weight that the router
    gives it.

    Returns:
        Columns and log-weights `[B, K]`.
    """
    index, gold, score = routing.index_BK[rows], batch.gold_BC[rows], routing.score_BC[rows]
    missed = gold.any(-1) & ~gold.gather(1, index).any(-1)
    best = score.masked_fill(~gold, -torch.inf).argmax(-1)
    index = torch.where(missed[:, None] & _last(index), best[:, None], index)
    kept = torch.zeros_like(gold).scatter(1, index, True)
    chosen = router.select(score, batch.valid_BC[rows] & kept, top_k=index.shape[1])
    return chosen.index_BK, chosen.log_weight_BK


def gold_alone(batch: Batch, rows: slice, index_BK: Tensor, log_weight_BK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gold atoms in equal parts and nothing else; questions without any keep what they had."""
    gold = batch.gold_BC[rows]
    top_gold, gold_index_BK = gold.float().topk(index_BK.shape[1], dim=-1)
    even_BK = (top_gold / top_gold.sum(-1, keepdim=True).clamp(min=1)).log()
    has_gold_B1 = gold.any(-1, keepdim=True)
    return torch.where(has_gold_B1, gold_index_BK, index_BK), torch.where(has_gold_B1, even_BK, log_weight_BK)


def _last(index_BK: Tensor) -> Tensor:
    return torch.arange(index_BK.shape[1], device=index_BK.device) == index_BK.shape[1] - 1
