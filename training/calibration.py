"""What is fitted after training, on held-out passages and banks of all sizes: the fused score, then the gate.

    python -m training.calibration --data build/data --checkpoint DIR --questions 256

fits both anew for a finished checkpoint, on the passages that its run held out, and writes them there.

Scale of the cosine, weights of the words, bias and metadata are eight numbers of very different size. At a learning
rate that suits the network they hardly move in a run, and the cosine of trained passages looks better than it is; on
held-out passages they are fitted exactly.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.router import AnswerabilityGate
from training.banks import banks_of, held_out_asks
from training.gate import fit_gate, minimise
from training.library import Ask, Library, Scored
from training.losses import listwise_loss


def calibrate(
    library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit the score in place and the gate behind it, whose answers are dear: `max_questions` is for the gate alone.

    Returns:
        The gate, and figures for the record.
    """
    scores = fit_scores(library, seed=seed)
    gate, figures = fit_gate(library, seed=seed, max_questions=max_questions, batch_size=batch_size)
    return gate, {**figures, "scores": scores}


def fit_scores(library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128) -> dict[str, Any]:
    """Fit the router's weights in place, by the listwise loss over all kinds of bank alike.

    The loss counts twice: against the null slot over the six kinds, and without one over the three that know the
    answer. The first alone settles whether a bank knows at the price of which atom it is.

    Returns:
        The loss before and after, and the weights.
    """
    router = library.network.router
    rng = random.Random(seed)
    asks = held_out_asks(library, seed=seed, limit=max_questions)
    batches = []
    for start in range(0, len(asks), batch_size):
        some = asks[start : start + batch_size]
        key_BE = library.query_keys(some)
        batches += [(some, key_BE, bank) for bank in banks_of(library, some, key_BE, rng).values()]
    named = {"log_scale": router.log_scale, "bias": router.bias, "metadata": router.metadata}
    if router.spec.lexical:
        named |= {"lexical": router.lexical, "stretch": router.stretch}

    def loss() -> Tensor:
        sums = {True: 0.0, False: 0.0}
        for some, key_BE, bank in batches:
            scored = library.scored(key_BE, bank.candidates)
            for null_slot in (True, False) if bank.knows else (True,):
                part = listwise_loss(scored.score_BC, _gold(some, scored), scored.valid_BC, null_slot=null_slot)
                sums[null_slot] += part[0]
        return sums[True] / (len(asks) * 6) + sums[False] / (len(asks) * 3)

    before = float(loss().detach())
    minimise(loss, list(named.values()))
    for value in named.values():
        value.data = value.detach().bfloat16().float()  # as a checkpoint keeps it, so that the gate sees the same
    weights = {name: value.tolist() for name, value in named.items()}
    return {"questions": len(asks), "loss_before": before, "loss_after": float(loss().detach()), **weights}


def _gold(asks: Sequence[Ask], scored: Scored) -> Tensor:
    width = max(1, *(len(a.gold) for a in asks))
    gold_BG = torch.tensor([[*a.gold, *[-1] * (width - len(a.gold))] for a in asks], device=scored.row_BC.device)
    return (scored.row_BC[:, :, None] == gold_BG[:, None, :]).any(-1) & scored.valid_BC


def refit(
    data: Path, folder: Path, *, max_questions: int, batch_size: int, temperature: float | None = None
) -> dict[str, Any]:
    """Calibrate a finished checkpoint anew and write it back; return the figures.

    Args:
        temperature: Another one for the softmax of the routing weights: fitted scores are sharper than those that
            the language model was trained with.
    """
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
    if temperature is not None:
        spec = replace(meta.spec, router=replace(meta.spec.router, temperature=temperature))
        meta, network.spec, network.router.spec = replace(meta, spec=spec), spec, spec.router
    held_out, _ = split_records(load_data(data, config, lambda _: None)[0], config)
    library = Library(base, network, held_out)
    library.compile()
    gate, figures = calibrate(library, seed=config.seed, max_questions=max_questions, batch_size=batch_size)
    save_network(folder, network, replace(meta, gate=vars(gate), training={**meta.training, "gate": figures}))
    return {**vars(gate), **figures}


def main() -> None:
    """Parse the command line, fit, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--temperature", type=float)
    args = parser.parse_args()
    figures = refit(
        args.data, args.checkpoint, max_questions=args.questions, batch_size=args.batch, temperature=args.temperature
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
