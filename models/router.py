"""The query router: scores, routing weights with a null slot, and the answerability gate.

Paper, Method, "Two-Stage Query Router". Stage 1 finds candidates (a bank's vector search, united with BM25
where the recipe says so); stage 2 scores them here. Where candidates come from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.atoms import SEMANTIC_TYPES, Atom
from models.presets import MemorySpec

# Where a fit on held-out passages put them for cosine and words together: these few weights barely move in a run.
INIT_LOG_SCALE = 2.3
INIT_LEXICAL = 14.0
INIT_BIAS, INIT_LEXICAL_BIAS = -5.0, -9.0
NUM_METADATA = 4
MASKED_SCORE = -1e4
SIZE, GAIN = 3, 10  # places of the logarithm of the bank's size, and of the question's gain, in the gate's features


@dataclass(frozen=True, kw_only=True)
class Routing:
    """What the router decided for a batch of questions.

    Args:
        score_BC: Fused scores of all candidates; padding holds `MASKED_SCORE`.
        index_BK: Columns of the selected candidates, best first.
        log_weight_BK: Log of their routing weights.
    """

    score_BC: Tensor
    index_BK: Tensor
    log_weight_BK: Tensor

    @property
    def weight_BK(self) -> Tensor:
        """Routing weights in [0, 1]; with a null slot their sum may be anything up to 1."""
        return self.log_weight_BK.exp()


class Router(nn.Module):
    """Scores and their softmax over the top K.

        s_i = gamma cos(k_q, k_i) + beta + a_l lexical_i + a_s stretch_i + a_r rerank_i + u . meta_i

    and for the best candidates, once the model has read each alone (`models.reading`), s_i - a_p log P_i(refusal). The
    weights of the stretch, the words of an atom's neighbours, and of the reading stay 0 in training, which computes
    neither; `training.calibration` fits them afterwards. A checkpoint from before them loads with 0.
    """

    def __init__(self, spec: MemorySpec) -> None:
        super().__init__()
        self.spec = spec.router
        self.query_head = nn.Sequential(nn.LayerNorm(spec.d_embed), nn.Linear(spec.d_embed, spec.d_key))
        self.log_scale = nn.Parameter(torch.tensor(INIT_LOG_SCALE))
        self.bias = nn.Parameter(torch.tensor(INIT_LEXICAL_BIAS if spec.router.lexical else INIT_BIAS))
        self.lexical = nn.Parameter(torch.tensor(INIT_LEXICAL if spec.router.lexical else 0.0))
        self.stretch = nn.Parameter(torch.tensor(0.0))
        self.reading = nn.Parameter(torch.tensor(0.0))
        # 0 until a checkpoint is calibrated with the reranker: its scores have another scale.
        self.rerank = nn.Parameter(torch.tensor(0.0))
        self.metadata = nn.Parameter(torch.zeros(NUM_METADATA))
        self.register_load_state_dict_pre_hook(_fill_in)

    def query_key(self, embed_BD: Tensor) -> Tensor:
        """Return query keys `[B, E]`, of unit length."""
        return F.normalize(self.query_head(embed_BD), dim=-1)

    def score(
        self,
        cosine_BC: Tensor,
        lexical_BC: Tensor,
        metadata_BCM: Tensor,
        rerank_BC: Tensor | None = None,
        *,
        stretch_BC: Tensor | None = None,
    ) -> Tensor:
        """Return fused scores `[B, C]`; 0 is as good as the null slot."""
        score = self.log_scale.exp() * cosine_BC + self.bias + metadata_BCM @ self.metadata
        if self.spec.lexical:
            score = score + self.lexical * lexical_BC
            if stretch_BC is not None:
                score = score + self.stretch * stretch_BC
        if rerank_BC is not None:
            score = score + self.rerank * rerank_BC
        return score

    @property
    def num_read(self) -> int:
        """How many of the best candidates the model reads before it chooses among them; 0 where that has no weight."""
        return self.spec.num_read if float(self.reading) != 0.0 else 0

    def after_reading(self, score_BC: Tensor, refusal_BC: Tensor) -> Tensor:
        """Return the scores of candidates that were read, `[B, C]`.

        Args:
            refusal_BC: Log P that the model refuses the question under this candidate alone, nats.
        """
        return score_BC - self.reading * refusal_BC

    def select(self, score_BC: Tensor, valid_BC: Tensor, *, top_k: int) -> Routing:
        """Pick the `top_k` best candidates and weigh them.

        Args:
            valid_BC: False at padding, which never gets weight.

        Returns:
            Weights `softmax([s_1 .. s_K, 0])[:K]` with a null slot, `softmax([s_1 .. s_K])` without.
        """
        score_BC = score_BC.masked_fill(~valid_BC, MASKED_SCORE)
        top_BK, index_BK = score_BC.topk(min(top_k, score_BC.shape[1]), dim=-1)
        logits = top_BK / self.spec.temperature
        if self.spec.null_slot:
            logits = F.pad(logits, (0, 1), value=0.0)
        log_weight = logits.log_softmax(-1)[:, : top_BK.shape[1]]
        return Routing(
            score_BC=score_BC,
            index_BK=index_BK,
            log_weight_BK=log_weight.masked_fill(top_BK <= MASKED_SCORE / 2, -torch.inf),
        )


def _fill_in(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    for name in ("stretch", "reading"):
        state.setdefault(f"{prefix}{name}", torch.tensor(0.0))


def atom_metadata(atoms: Sequence[Atom]) -> Tensor:
    """Return `[N, 4]`: confidence, answer-bearing, in a conflict group, and the semantic type as k / 5.

    Everything comes from the atom itself, in training as at ingest: a flag derived from answer spans would
    be the gold label in training and absent in use.
    """
    rows = [
        (
            a.confidence,
            float(a.is_answer_bearing),
            float(a.conflict_group is not None),
            SEMANTIC_TYPES.index(a.semantic_type) / len(SEMANTIC_TYPES),
        )
        for a in atoms
    ]
    return torch.tensor(rows, dtype=torch.float32).view(-1, NUM_METADATA)


@dataclass(frozen=True, kw_only=True)
class AnswerabilityGate:
    """`sigmoid((a + s * size) . f + b)` over the features `f` of `gate_features`, refusing below `threshold`.

    The best fused score says more than the sum of the weights, which grows with K; the size of the bank is there
    because the best of many strangers scores higher than the best of few, and because what tells a stranger from an
    answer is another thing there; doubts tell near misses. Fitted on held-out training passages and stored in the
    checkpoint; a gate of fewer numbers leaves the last features out.

    Args:
        coefficients: a.
        slopes: s, what the logarithm of the bank's size adds to each.
        largest: The largest log size it was fitted on: a larger bank counts as one of that size. None has no end.
    """

    coefficients: tuple[float, ...] = (1.0, 4.0, 0.0, 0.0)
    slopes: tuple[float, ...] = ()
    largest: float | None = None
    bias: float = 0.0
    threshold: float = 0.5

    def __call__(self, features_BF: Tensor) -> Tensor:
        """Return answerability in [0, 1] from features `[..., F]` as `gate_features` builds them.

        The gain's weight is at least 0, for that a memory expects a question never speaks against an answer. A fit
        would have it so in the smallest banks, where all that is not answered are near misses.
        """
        a = torch.tensor(self.coefficients, dtype=features_BF.dtype)
        s = torch.zeros_like(a)
        s[: len(self.slopes)] = torch.tensor(self.slopes)
        features_BF = features_BF[..., : len(a)].clone()
        if self.largest is not None:
            features_BF[..., SIZE].clamp_(max=self.largest)
        weight_BF = a + features_BF[..., SIZE, None] * s
        weight_BF[..., GAIN:].clamp_(min=0.0)
        return torch.sigmoid((weight_BF * features_BF).sum(-1) + self.bias)

    @property
    def sees_gain(self) -> bool:
        """Whether it was fitted with the last feature, which costs a pass of the base over the question."""
        return len(self.coefficients) > GAIN

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> AnswerabilityGate:
        """Build from what a checkpoint keeps of it."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()})


def gate_features(
    best_score: Tensor,
    top_lexical: Tensor,
    refusal_logprob: Tensor,
    num_atoms: Tensor,
    doubts_BD: Tensor,
    gain: Tensor,
) -> Tensor:
    """Return what the gate looks at, `[..., F]` on the CPU in float32.

    Args:
        best_score: Highest fused score; 0 is the null slot's.
        refusal_logprob: Log-probability that the answer begins with the refusal, nats.
        num_atoms: Atoms in the bank.
        doubts_BD: Mean log P(refusal) under each atom that the model has read alone, 0 where it read none; and what
            `models.doubts` finds in the atoms that were read, else selected; and `LexicalIndex.evidence`.
        gain: What the memory adds to the log-probabilities of those of the question's tokens that it makes likelier
            (`models.reading.gain`), nats. A memory of something else expects none more than the base alone does. With a
            text in the prompt it is what text and memory add; the gate was fitted without one.
    """
    size = num_atoms.float().clamp(min=1).log()
    # Between -0.1 and -0.01 nats lies less than between -2 and -1.9, which the logarithm alone would treat alike.
    columns = (best_score, top_lexical, refusal_logprob, size, *doubts_BD.unbind(-1), refusal_logprob.float().exp())
    return torch.stack([c.float().cpu() for c in (*columns, gain)], dim=-1)
