"""Fitting the answerability gate on held-out training passages, over banks of all sizes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.doubts import names
from models.router import MASKED_SCORE, SIZE, AnswerabilityGate
from training.banks import PASSAGE_K, Bank, banks_of, held_out_asks, near_misses
from training.library import MAX_NEW_TOKENS, Ask, Library, Reply, RoutedAsks
from training.metrics import auroc, token_f1

F1_LOST = 0.01
MISSES = ("off_near", "off_altered")  # questions of their own, by people and by rules
NEAR = ("off_atoms", *MISSES)  # asked of the right passage
MIN_NAMED = 0.25  # of the questions; names are found where a language has capitals
MIN_SIZE_RANGE = 1.0  # between the smallest and the largest kind of bank, to tell what size does


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions asked of one kind of bank: what the gate sees `[B, F]`, and the F1 of the answers if any."""

    features: Tensor
    f1: tuple[float, ...] = ()


def fit_gate(
    library: Library, *, seed: int = 0, max_questions: int = 2048, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Ask held-out questions of banks of all kinds, and fit the gate on what it sees of them.

    Each question is asked of three banks: its passage (K = 3), a tenth of all passages with its own among them, and
    all passages (K = 8); and of four that cannot answer it: a passage of another article, both large banks without
    its article, and its passage without the atoms that hold the answer. Near misses of these passages, by
    people and by rules, are asked of them.

    Returns:
        The gate, and figures for the record.
    """
    rng = random.Random(seed)
    asks = held_out_asks(library, seed=seed, limit=max_questions)
    parts: dict[str, list[Asked]] = defaultdict(list)
    for start in range(0, len(asks), batch_size):
        for name, asked in ask_banks(library, asks[start : start + batch_size], rng).items():
            parts[name].append(asked)
    for name, by_people in zip(MISSES, (True, False), strict=True):
        misses = near_misses(library, by_people=by_people, seed=seed, limit=max_questions)
        for start in range(0, len(misses), batch_size):
            parts[name].append(ask_passages(library, misses[start : start + batch_size]))
    named_Q = torch.tensor([bool(names(ask.question.question)) for ask in asks])
    gate, figures = fit_to(
        {name: torch.cat([a.features for a in part]) for name, part in parts.items()},
        {name: [x for a in part for x in a.f1] for name, part in parts.items()},
        named_Q if named_Q.float().mean() >= MIN_NAMED else None,
    )
    return gate, {"questions": len(asks), "named": int(named_Q.sum()), "atoms": len(library.atoms), **figures}


def fit_to(
    features: Mapping[str, Tensor], f1: Mapping[str, Sequence[float]], named_Q: Tensor | None = None
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit logistic regression, answerable against not, and set its threshold.

    "What did he say?" belongs to any bank: only questions that name something teach the weights what a stranger is. But
    nobody wants the others refused, so the threshold counts them.

    Kinds of bank without the answer count as much as those with it, and half of that is for near misses. The threshold
    is the highest that costs at most one point of F1 in each bank that can answer, after the weight of the bank's size
    was moved so that it costs as much in all of them.

    Args:
        features: By kind of bank, what the gate sees of each question, `[B, F]`.
        f1: By kind that can answer, F1 of each question's answer.
        named_Q: Which questions name something, of those that all kinds of bank but near misses share; None takes all.

    Returns:
        The gate, and figures for the record.
    """
    # A bank that holds nothing is refused anyway, and its score is no score.
    held = {name: x[:, 0] > MASKED_SCORE / 2 for name, x in features.items()}
    shared = {} if named_Q is None else {name: named_Q for name in features if name not in MISSES}
    teaching = {name: x[held[name] & shared.get(name, held[name])] for name, x in features.items()}
    features = {name: x[held[name]] for name, x in features.items() if len(teaching[name])}
    own = [name for name in features if not name.startswith("off_")]
    # Each kind without the answer is held against the one with it that it comes from.
    off = {name: "passage" if name in NEAR else name.removeprefix("off_") for name in features if name not in own}
    near = [name for name in off if name in NEAR]
    groups = [(True, 1.0, own), (False, 0.5, near), (False, 0.5, [name for name in off if name not in near])]
    # What a bank without the answer lacks makes it smaller, and that alone must not give it away.
    size = {name: features[off.get(name, name)][:, SIZE].mean() for name in features}
    if max(size.values()) - min(size.values()) < MIN_SIZE_RANGE:
        size = dict.fromkeys(size, torch.zeros(()))  # nothing to learn from
    gate = _logistic(
        [(teaching[name], size[name], y, share / len(kinds)) for y, share, kinds in groups for name in kinds]
    )
    gate = _evened(gate, [features[name] for name in own], [f1[name] for name in own])
    scores = {name: gate(x).tolist() for name, x in features.items()}
    threshold = min(affordable_threshold(scores[name], f1[name]) for name in own)
    refused = {name: np.array(values) < threshold for name, values in scores.items()}
    figures = {
        "auroc": {name: auroc(scores[known], scores[name]) for name, known in off.items()},
        "refused": {name: float(np.mean(flags)) for name, flags in refused.items()},
        "f1": {name: float(np.mean(f1[name])) for name in own},
        "f1_lost": {name: float(np.mean(refused[name] * np.array(f1[name]))) for name in own},
    }
    return replace(gate, threshold=threshold), figures


def _evened(gate: AnswerabilityGate, features: Sequence[Tensor], f1: Sequence[Sequence[float]]) -> AnswerabilityGate:
    """Move the weight of the bank's size so that one threshold costs as much F1 in banks of every size.

    The threshold that costs one point, as a logit, is close to linear in the logarithm of the size.
    """
    if gate.largest is None:
        return gate
    sizes = np.array([float(x[:, SIZE].mean()) for x in features])
    limits = np.array([affordable_threshold(gate(x).tolist(), values) for x, values in zip(features, f1, strict=True)])
    limits = np.clip(limits, 1e-6, 1 - 1e-6)
    slope = np.polyfit(sizes, np.log(limits / (1 - limits)), 1)[0]
    coefficients = list(gate.coefficients)
    coefficients[SIZE] -= float(slope)
    return replace(gate, coefficients=tuple(coefficients))


def affordable_threshold(scores: Sequence[float], f1: Sequence[float]) -> float:
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


def ask_passages(library: Library, misses: Sequence[Ask]) -> Asked:
    """Ask passages what they do not answer."""
    routed = library.route_passages(library.query_keys(misses), misses, top_k=PASSAGE_K)
    return Asked(features=judged(routed, library.answer(misses, library.adapter(routed), max_new_tokens=0)))


def _read(library: Library, asks: Sequence[Ask], bank: Bank, routed: RoutedAsks) -> Asked:
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=MAX_NEW_TOKENS if bank.knows else 0)
    asked = Asked(features=judged(routed, replies))
    if not bank.knows:
        return asked
    return replace(asked, f1=tuple(token_f1(r.text, a.question.answers) for a, r in zip(asks, replies, strict=True)))


def judged(routed: RoutedAsks, replies: Sequence[Reply]) -> Tensor:
    """Return what the gate looks at, `[B, F]`, of replies under a composed memory."""
    refusal_B, gain_B = (torch.tensor(x) for x in ([r.refusal_logprob for r in replies], [r.gain for r in replies]))
    return routed.gate_features(refusal_B, gain_B)


def _logistic(kinds: Sequence[tuple[Tensor, Tensor, bool, float]]) -> AnswerabilityGate:
    """Fit on kinds of question: features `[B, F]`, log size of the bank, whether it can answer, and what they count."""
    x = torch.cat([_with_size(features, size) for features, size, _, _ in kinds]).double()
    y = torch.cat([torch.full((len(features),), float(knows)) for features, _, knows, _ in kinds]).double()
    share = torch.cat([torch.full((len(features),), share / len(features)) for features, _, _, share in kinds]).double()
    mean, std = x.mean(0), x.std(0).clamp(min=1e-6)
    weight = torch.zeros(x.shape[1], dtype=torch.double, requires_grad=True)
    bias = torch.zeros((), dtype=torch.double, requires_grad=True)

    def loss() -> Tensor:
        logits = (x - mean) / std @ weight + bias
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, y, weight=share, reduction="sum")
        return bce / share.sum() + 1e-4 * weight.square().sum()

    minimise(loss, [weight, bias])
    scaled = (weight / std).detach()
    coefficients, slopes = scaled.view(2, -1).tolist()
    return AnswerabilityGate(
        coefficients=tuple(coefficients),
        slopes=tuple(slopes),
        largest=max(float(size) for _, size, _, _ in kinds) or None,
        bias=float(bias.detach() - (scaled * mean).sum()),
    )


def _with_size(features_BF: Tensor, size: Tensor) -> Tensor:
    """Return the features in a bank of log size `size`, and behind them their products with it, `[B, 2 F]`."""
    sized = features_BF.clone()
    sized[:, SIZE] = size
    products = sized * size
    products[:, SIZE] = 0.0  # the size alone counts once
    return torch.cat([sized, products], dim=1)


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
