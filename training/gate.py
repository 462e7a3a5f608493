"""Fitting the answerability gate on held-out training passages, over banks of all sizes.

    python -m training.gate --data build/data --checkpoint DIR --questions 256

fits it anew for a finished checkpoint, on the passages that its run held out, and writes it there.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.router import AnswerabilityGate, gate_features
from training.library import MAX_NEW_TOKENS, Ask, Library, RoutedAsks
from training.metrics import auroc, token_f1

F1_LOST = 0.01
SHELF_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Bank:
    """Questions routed in one kind of bank: what the gate sees `[B, 4]`, and the F1 of the answers if any."""

    features: Tensor
    f1: tuple[float, ...] = ()


def fit_gate(
    library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit logistic regression on the gate's four features, answerable against off-topic.

    Each question is asked of three banks: its passage (K = 3), a tenth of all passages with its own among them, and
    all passages (K = 8); and of three that know nothing of it: a passage of another article, and both large banks
    without its article. The threshold is the highest that costs at most one point of F1 in each bank.

    Returns:
        The gate, and figures for the record.
    """
    rng = random.Random(seed)
    asks = [a for p in range(len(library.records)) for a in library.asks(p) if a.gold]
    rng.shuffle(asks)
    asks = asks[:max_questions]
    parts: dict[str, list[Bank]] = defaultdict(list)
    for start in range(0, len(asks), batch_size):
        for name, bank in ask_banks(library, asks[start : start + batch_size], rng).items():
            parts[name].append(bank)
    features = {name: torch.cat([b.features for b in banks]) for name, banks in parts.items()}
    f1 = {name: [x for b in banks for x in b.f1] for name, banks in parts.items()}
    own = [name for name in features if not name.startswith("off_")]
    gate = _logistic(torch.cat([features[name] for name in own]), torch.cat([features[f"off_{name}"] for name in own]))
    scores = {name: gate(x).tolist() for name, x in features.items()}
    threshold = min(_threshold(scores[name], f1[name]) for name in own)
    refused = {name: np.array(values) < threshold for name, values in scores.items()}
    figures = {
        "questions": len(asks),
        "atoms": len(library.atoms),
        "auroc": {name: auroc(scores[name], scores[f"off_{name}"]) for name in own},
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


def ask_banks(library: Library, asks: Sequence[Ask], rng: random.Random) -> dict[str, Bank]:
    """Ask the questions of every kind of bank; answers are generated where the bank knows them."""
    key_BE = library.query_keys(asks)
    strangers = [replace(a, passage=other_article(library, a.passage, rng), gold=()) for a in asks]
    chosen = rng.sample(range(len(library.records)), max(1, round(SHELF_SHARE * len(library.records))))
    on_shelf = np.isin(library.passage_of, chosen)
    banks = {
        "passage": _read(library, asks, library.route_passages(key_BE, asks, top_k=3)),
        "off_passage": _read(library, asks, library.route_passages(key_BE, strangers, top_k=3), reply=False),
    }
    for name, kept in (("shelf", on_shelf), ("library", np.ones_like(on_shelf))):
        sees = [(kept | (library.passage_of == a.passage), kept & ~same_article(library, a)) for a in asks]
        for prefix, masks in zip(("", "off_"), zip(*sees, strict=True), strict=True):
            found = library.library_candidates(asks, key_BE, visible=masks)
            sizes = [int(m.sum()) for m in masks]
            routed = library.route(key_BE, found, top_k=8, num_atoms=sizes)
            banks[prefix + name] = _read(library, asks, routed, reply=not prefix)
    return banks


def _read(library: Library, asks: Sequence[Ask], routed: RoutedAsks, *, reply: bool = True) -> Bank:
    tokens = MAX_NEW_TOKENS if reply else 0
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=tokens)
    refusal = torch.tensor([r.refusal_logprob for r in replies])
    features = gate_features(routed.best_score_B, routed.top_lexical_B, refusal, routed.num_atoms_B)
    pairs = zip(asks, replies, strict=True) if reply else ()
    return Bank(features=features, f1=tuple(token_f1(r.text, a.question.answers) for a, r in pairs))


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
    weight = torch.zeros(x.shape[1], dtype=torch.double, requires_grad=True)
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


def refit(data: Path, folder: Path, *, max_questions: int, batch_size: int) -> dict[str, Any]:
    """Fit the gate of a finished checkpoint anew and write it into the checkpoint; return the figures."""
    from models.base import load_base
    from models.checkpoint import load_network, read_meta, save_network
    from models.presets import load_preset
    from training.config import load_config
    from training.sources import load_data, split_records

    meta = read_meta(folder)
    # What decides the split; the rest of the configuration may have had other fields when this was trained.
    kept = {name: meta.training["config"][name] for name in ("records", "seed", "holdout_passages")}
    config = load_config(meta.preset).with_overrides(kept)
    base = load_base(load_preset(meta.preset))
    network, _ = load_network(folder, base)
    held_out, _ = split_records(load_data(data, config, lambda _: None)[0], config)
    library = Library(base, network, held_out)
    library.compile()
    gate, figures = fit_gate(library, seed=config.seed, max_questions=max_questions, batch_size=batch_size)
    save_network(folder, network, replace(meta, gate=vars(gate), training={**meta.training, "gate": figures}))
    return {**vars(gate), **figures}


def main() -> None:
    """Parse the command line, fit, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    print(json.dumps(refit(args.data, args.checkpoint, max_questions=args.questions, batch_size=args.batch)))


if __name__ == "__main__":
    main()
