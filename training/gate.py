"""Fitting the answerability gate on held-out training passages, over small and large banks.

    python -m training.gate --data build/data --checkpoint DIR --questions 256

fits it anew for a finished checkpoint, on the passages that its run held out, and writes it there.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.router import AnswerabilityGate, gate_features
from training.library import Ask, Library, RoutedAsks
from training.metrics import auroc

ANSWERABLE_REFUSED = 0.03


def fit_gate(
    library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit logistic regression on the gate's four features, answerable against off-topic.

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
        for name, values in bank_features(library, asks[start : start + batch_size], rng).items():
            features[name].append(values)
    rows = {name: torch.cat(values) for name, values in features.items()}
    positive = torch.cat([rows["passage"], rows["library"]])
    negative = torch.cat([rows["off_passage"], rows["off_library"]])
    gate = _logistic(positive, negative)
    scores = {name: gate(x).tolist() for name, x in rows.items()}
    threshold = float(np.quantile(scores["passage"] + scores["library"], ANSWERABLE_REFUSED, method="lower"))
    gate = AnswerabilityGate(coefficients=gate.coefficients, bias=gate.bias, threshold=threshold)
    figures = {
        "questions": len(asks),
        "auroc_passage": auroc(scores["passage"], scores["off_passage"]),
        "auroc_library": auroc(scores["library"], scores["off_library"]),
        "refused": {name: float(np.mean(np.array(s) < threshold)) for name, s in scores.items()},
    }
    return gate, figures


def bank_features(library: Library, asks: Sequence[Ask], rng: random.Random) -> dict[str, Tensor]:
    """Return `[B, 4]` features of the questions under each kind of bank."""
    key_BE = library.query_keys(asks)
    strangers = [Ask(question=a.question, passage=other_article(library, a.passage, rng), gold=()) for a in asks]
    own, far = (
        library.library_candidates(asks, key_BE),
        library.library_candidates(asks, key_BE, without=lambda a: same_article(library, a)),
    )
    routed = {
        "passage": library.route_passages(key_BE, asks, top_k=3),
        "library": library.route(key_BE, own, top_k=8),
        "off_passage": library.route_passages(key_BE, strangers, top_k=3),
        "off_library": library.route(key_BE, far, top_k=8),
    }
    return {name: _features(library, asks, r) for name, r in routed.items()}


def _features(library: Library, asks: Sequence[Ask], routed: RoutedAsks) -> Tensor:
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=0)
    refusal = torch.tensor([r.refusal_logprob for r in replies])
    return gate_features(routed.best_score_B, routed.top_lexical_B, refusal, routed.num_atoms_B)


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
    from training.data import read_records
    from training.run import split_records

    meta = read_meta(folder)
    config = load_config(meta.preset).with_overrides(meta.training["config"])
    base = load_base(load_preset(meta.preset))
    network, _ = load_network(folder, base)
    held_out, _ = split_records(read_records(data / config.records), config)
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
