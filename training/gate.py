"""Fitting the answerability gate on held-out training passages, over small and large banks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.router import AnswerabilityGate
from training.library import Ask, Library, RoutedAsks
from training.metrics import auroc

ANSWERABLE_REFUSED = 0.03


def fit_gate(
    library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit logistic regression on (sum of weights, top BM25, log P(refusal)), answerable against off-topic.

    Each question is asked of its passage (K = 3), of all passages (K = 8), of a passage of another article, and of
    all passages but those of its article. The threshold refuses at most 3 % of the answerable ones.

    Returns:
        The gate, and figures for the record.
    """
    rng = random.Random(seed)
    asks = [a for p in range(len(library.records)) for a in library.asks(p) if a.gold]
    rng.shuffle(asks)
    asks = asks[:max_questions]
    features = {name: [] for name in ("passage", "library", "off_passage", "off_library")}
    for start in range(0, len(asks), batch_size):
        for name, values in gate_features(library, asks[start : start + batch_size], rng).items():
            features[name].append(values)
    rows = {name: torch.cat(values) for name, values in features.items()}
    positive = torch.cat([rows["passage"], rows["library"]])
    negative = torch.cat([rows["off_passage"], rows["off_library"]])
    gate = _logistic(positive, negative)
    scores = {name: gate(*x.T).tolist() for name, x in rows.items()}
    threshold = float(np.quantile(scores["passage"] + scores["library"], ANSWERABLE_REFUSED, method="lower"))
    gate = AnswerabilityGate(coefficients=gate.coefficients, bias=gate.bias, threshold=threshold)
    figures = {
        "questions": len(asks),
        "auroc_passage": auroc(scores["passage"], scores["off_passage"]),
        "auroc_library": auroc(scores["library"], scores["off_library"]),
        "refused": {name: float(np.mean(np.array(s) < threshold)) for name, s in scores.items()},
    }
    return gate, figures


def gate_features(library: Library, asks: Sequence[Ask], rng: random.Random) -> dict[str, Tensor]:
    """Return `[B, 3]` features of the questions under each kind of bank."""
    key_BE = library.query_keys(asks)
    strangers = [Ask(question=a.question, passage=other_article(library, a.passage, rng), gold=()) for a in asks]
    own, far = (
        library.library_candidates(asks, key_BE),
        library.library_candidates(asks, key_BE, without=lambda a: same_article(library, a)),
    )
    routed = {
        "passage": library.route(key_BE, [library.passage_candidates(a) for a in asks], top_k=3),
        "library": library.route(key_BE, own, top_k=8),
        "off_passage": library.route(key_BE, [library.passage_candidates(a) for a in strangers], top_k=3),
        "off_library": library.route(key_BE, far, top_k=8),
    }
    return {name: _features(library, asks, r) for name, r in routed.items()}


def _features(library: Library, asks: Sequence[Ask], routed: RoutedAsks) -> Tensor:
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=0)
    refusal = torch.tensor([r.refusal_logprob for r in replies])
    return torch.stack([routed.weight_sum_B.cpu(), routed.top_lexical_B.cpu(), refusal], dim=-1)


def same_article(library: Library, ask: Ask) -> np.ndarray:
    """Return a mask over all atoms: True in passages of the asked passage's article."""
    title = library.records[ask.passage].title
    passages = [i == ask.passage or (title != "" and r.title == title) for i, r in enumerate(library.records)]
    return np.array(passages)[library.passage_of]


def other_article(library: Library, passage: int, rng: random.Random) -> int:
    """Return a random passage of another article; of the same one where there is no other."""
    title = library.records[passage].title
    others = [i for i in range(len(library.records)) if i != passage]
    return rng.choice([i for i in others if not title or library.records[i].title != title] or others)


def _logistic(positive: Tensor, negative: Tensor) -> AnswerabilityGate:
    x = torch.cat([positive, negative]).double()
    y = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).double()
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    weight = torch.zeros(3, dtype=torch.double, requires_grad=True)
    bias = torch.zeros((), dtype=torch.double, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = (x - mean) / std @ weight + bias
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y) + 1e-4 * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    scaled = (weight / std).detach()
    return AnswerabilityGate(coefficients=tuple(scaled.tolist()), bias=float(bias.detach() - (scaled * mean).sum()))
