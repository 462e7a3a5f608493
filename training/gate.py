"""Fitting the answerability gate on held-out training passages, over banks of all sizes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.router import AnswerabilityGate, gate_features
from training.banks import Bank, banks_of, held_out_asks
from training.library import MAX_NEW_TOKENS, Ask, Library, RoutedAsks
from training.metrics import auroc, token_f1

F1_LOST = 0.01


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions asked of one kind of bank: what the gate sees `[B, 4]`, and the F1 of the answers if any."""

    features: Tensor
    f1: tuple[float, ...] = ()


def fit_gate(
    library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit logistic regression on the gate's four features, answerable against not.

    Each question is asked of three banks: its passage (K = 3), a tenth of all passages with its own among them, and
    all passages (K = 8); and of four that cannot answer it: a passage of another article, both large banks without
    its article, and its passage without the atoms that hold the answer. The threshold is the highest that costs at
    most one point of F1 in each bank that can.

    Returns:
        The gate, and figures for the record.
    """
    rng = random.Random(seed)
    asks = held_out_asks(library, seed=seed, limit=max_questions)
    parts: dict[str, list[Asked]] = defaultdict(list)
    for start in range(0, len(asks), batch_size):
        for name, asked in ask_banks(library, asks[start : start + batch_size], rng).items():
            parts[name].append(asked)
    features = {name: torch.cat([a.features for a in part]) for name, part in parts.items()}
    f1 = {name: [x for a in part for x in a.f1] for name, part in parts.items()}
    own = [name for name in features if not name.startswith("off_")]
    # Each kind without the answer is held against the one with it that it comes from.
    off = {
        name: "passage" if name == "off_atoms" else name.removeprefix("off_") for name in features if name not in own
    }
    gate = _logistic(*(torch.cat([features[name] for name in names]) for names in (own, off)))
    scores = {name: gate(x).tolist() for name, x in features.items()}
    threshold = min(_threshold(scores[name], f1[name]) for name in own)
    refused = {name: np.array(values) < threshold for name, values in scores.items()}
    figures = {
        "questions": len(asks),
        "atoms": len(library.atoms),
        "auroc": {name: auroc(scores[known], scores[name]) for name, known in off.items()},
        "refused": {name: float(np.mean(flags)) for name, flags in refused.items()},
        "f1": {name: float(np.mean(f1[name])) for name in own},
        "f1_lost": {name: float(np.mean(refused[name] * np.array(f1[name]))) for name in own},
    }
    return replace(gate, threshold=threshold), figures


def _threshold(scores: Sequence[float], f1: Sequence[float]) -> float:
    """Return the highest score below which refusing costs at most `F1_LOST` of the mean F1."""
    lost = 0.0
    for score, value in sorted(zip(scores, f1, strict=True)):
        lost += value / len(scores)
        if lost > F1_LOST:
            return score
    return max(scores)


def ask_banks(library: Library, asks: Sequence[Ask], rng: random.Random) -> dict[str, Asked]:
    """Ask the questions of every kind of bank; answers are generated where the bank knows them."""
    key_BE = library.query_keys(asks)
    asked = {}
    for name, bank in banks_of(library, asks, key_BE, rng).items():
        routed = library.route(key_BE, bank.candidates, top_k=bank.top_k, num_atoms=bank.num_atoms, asks=asks)
        asked[name] = _read(library, asks, bank, routed)
    return asked


def _read(library: Library, asks: Sequence[Ask], bank: Bank, routed: RoutedAsks) -> Asked:
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=MAX_NEW_TOKENS if bank.knows else 0)
    refusal = torch.tensor([r.refusal_logprob for r in replies])
    features = gate_features(routed.best_score_B, routed.top_lexical_B, refusal, routed.num_atoms_B)
    pairs = zip(asks, replies, strict=True) if bank.knows else ()
    return Asked(features=features, f1=tuple(token_f1(r.text, a.question.answers) for a, r in pairs))


def _logistic(positive: Tensor, negative: Tensor) -> AnswerabilityGate:
    x = torch.cat([positive, negative]).double()
    y = torch.cat([torch.ones(len(positive)), torch.zeros(len(negative))]).double()
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    weight = torch.zeros(x.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros((), dtype=torch.double, requires_grad=True)

    def loss() -> Tensor:
        logits = (x - mean) / std @ weight + bias
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        return bce + 1e-4 * weight.square().sum()

    minimise(loss, [weight, bias])
    scaled = (weight / std).detach()
    return AnswerabilityGate(coefficients=tuple(scaled.tolist()), bias=float(bias.detach() - (scaled * mean).sum()))


def minimise(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> None:
    """Minimise a smooth loss of a few parameters in place, by L-BFGS."""
    frozen = [p for p in parameters if not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    optimiser = torch.optim.LBFGS(parameters, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser.step(closure)
    for parameter in frozen:
        parameter.requires_grad_(False)
