"""What is fitted after training, on held-out passages and banks of all sizes: the fused score, then the gate.

    python -m training.calibration --data build/data --checkpoint DIR --questions 512

fits both anew for a finished checkpoint, on the passages that its run held out, and writes them there.

Scale of the cosine, weights of the words, bias and metadata are eight numbers of very different size. At a learning
rate that suits the network they hardly move in a run, and the cosine of trained passages looks better than it is; on
held-out passages they are fitted exactly.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.router import AnswerabilityGate
from training.banks import Bank, banks_of, held_out_asks
from training.gate import fit_gate, minimise
from training.library import Ask, Library, Scored
from training.losses import listwise_loss

NUM_BANKS = 7  # kinds of bank that a question is asked of


def calibrate(
    library: Library, *, seed: int = 0, max_questions: int = 2048, batch_size: int = 128
) -> tuple[AnswerabilityGate, dict[str, Any]]:
    """Fit the score in place and the gate behind it.

    Args:
        max_questions: For the gate, whose signals are many; what reading adds is a single weight and gets half of them.

    Returns:
        The gate, and figures for the record.
    """
    scores = fit_scores(library, seed=seed)
    if library.network.router.spec.num_read:
        scores["reading"] = fit_reading(library, seed=seed, max_questions=max_questions // 2, batch_size=batch_size)
    gate, figures = fit_gate(library, seed=seed, max_questions=max_questions, batch_size=batch_size)
    return gate, {**figures, "scores": scores}


def fit_scores(library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128) -> dict[str, Any]:
    """Fit the router's weights in place, by the listwise loss over all kinds of bank alike.

    The loss counts twice: against the null slot over the seven kinds, and without one over the three that know the
    answer. The first alone settles whether a bank knows at the price of which atom it is.

    Returns:
        The loss before and after, and the weights.
    """
    router = library.network.router
    router.reading.data.zero_()
    batches = list(_batches(library, seed=seed, max_questions=max_questions, batch_size=batch_size))
    named = {"log_scale": router.log_scale, "bias": router.bias, "metadata": router.metadata}
    if router.spec.lexical:
        named |= {"lexical": router.lexical, "stretch": router.stretch}

    def loss() -> Tensor:
        scored = [(some, bank, library.scored(key_BE, bank.candidates)) for some, key_BE, bank in batches]
        return _listwise([(bank.knows, s.score_BC, _gold(some, s), s.valid_BC) for some, bank, s in scored])

    before = float(loss().detach())
    minimise(loss, list(named.values()))
    for value in named.values():
        _round(value)
    weights = {name: value.tolist() for name, value in named.items()}
    questions = sum(len(some) for some, _, _ in batches) // NUM_BANKS
    return {"questions": questions, "loss_before": before, "loss_after": float(loss().detach()), **weights}


def fit_reading(library: Library, *, seed: int = 0, max_questions: int = 1024, batch_size: int = 128) -> dict[str, Any]:
    """Fit in place what the model's own reading of the best candidates adds to their scores, by the same loss.

    The scores that chose them are only scaled and shifted as a whole, so that they would choose the same ones.

    Returns:
        The loss before and after, and the fitted numbers.
    """
    router = library.network.router
    read = []
    for some, key_BE, bank in _batches(library, seed=seed, max_questions=max_questions, batch_size=batch_size):
        found = library.scored(key_BE, bank.candidates)
        best, refusal_BM = library.read(some, found, num_read=router.spec.num_read)
        read.append((bank.knows, best.score_BC.detach(), refusal_BM, _gold(some, best), best.valid_BC))
    scale, shift, reading = (torch.tensor(x, device=library.base.device) for x in (1.0, 0.0, 0.0))

    def loss() -> Tensor:
        return _listwise([(knows, scale * s + shift - reading * r, gold, valid) for knows, s, r, gold, valid in read])

    before = float(loss().detach())
    minimise(loss, [scale, shift, reading])
    router.log_scale.data += scale.log()
    for weight in (router.lexical, router.stretch, router.rerank, router.metadata, router.bias):
        weight.data *= scale
    router.bias.data += shift
    router.reading.data.copy_(reading)
    for value in (router.log_scale, router.lexical, router.stretch, router.metadata, router.bias, router.reading):
        _round(value)
    fitted = {"scale": float(scale), "shift": float(shift), "reading": float(reading)}
    return {"loss_before": before, "loss_after": float(loss().detach()), **fitted}


def _batches(
    library: Library, *, seed: int, max_questions: int, batch_size: int
) -> Iterator[tuple[Sequence[Ask], Tensor, Bank]]:
    """Yield held-out questions with their keys, once for each kind of bank."""
    rng = random.Random(seed)
    asks = held_out_asks(library, seed=seed, limit=max_questions)
    for start in range(0, len(asks), batch_size):
        some = asks[start : start + batch_size]
        key_BE = library.query_keys(some)
        yield from ((some, key_BE, bank) for bank in banks_of(library, some, key_BE, rng).values())


def _listwise(parts: Sequence[tuple[bool, Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the mean loss over banks against the null slot, and that without one over those that know the answer.

    Args:
        parts: Whether a bank knows the answers, and scores, gold and valid candidates `[B, C]`.
    """
    sums, counts = {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for knows, score_BC, gold_BC, valid_BC in parts:
        for null_slot in (True, False) if knows else (True,):
            sums[null_slot] += listwise_loss(score_BC, gold_BC, valid_BC, null_slot=null_slot)[0]
            counts[null_slot] += len(score_BC)
    return sum(sums[kind] / counts[kind] for kind in sums)


def _round(value: Tensor) -> None:
    """Keep a fitted weight as a checkpoint does, so that what is fitted next sees the same."""
    value.data = value.detach().bfloat16().float()


def _gold(asks: Sequence[Ask], scored: Scored) -> Tensor:
    width = max(1, *(len(a.gold) for a in asks))
    gold_BG = torch.tensor([[*a.gold, *[-1] * (width - len(a.gold))] for a in asks], device=scored.row_BC.device)
    return (scored.row_BC[:, :, None] == gold_BG[:, None, :]).any(-1) & scored.valid_BC


def refit(
    data: Path,
    folder: Path,
    *,
    max_questions: int,
    batch_size: int,
    temperature: float | None = None,
    gate_alone: bool = False,
    base_path: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Calibrate a finished checkpoint anew and write it back; return the figures.

    Args:
        temperature: Another one for the softmax of the routing weights: fitted scores are sharper than those that
            the language model was trained with.
        gate_alone: Leave the scores as they are and fit the gate alone.
    """
    from models.base import load_base
    from models.checkpoint import load_network, read_meta, save_network
    from models.presets import load_preset
    from training.config import load_config
    from training.records import DataError
    from training.sources import data_facts, load_data, split_records

    meta = read_meta(folder)
    # What decides the split; the rest of the configuration may have had other fields when this was trained.
    decides = ("records", "seed", "holdout_passages", "mixture", "foreign_probes")
    kept = {name: meta.training["config"][name] for name in decides if name in meta.training["config"]}
    config = load_config(meta.preset).with_overrides(kept)
    base = load_base(load_preset(meta.preset), base_path=base_path, device=device)
    network, _ = load_network(folder, base)
    if temperature is not None:
        spec = replace(meta.spec, router=replace(meta.spec.router, temperature=temperature))
        meta, network.spec, network.router.spec = replace(meta, spec=spec), spec, spec.router
    held_out, trained = split_records(load_data(data, config, lambda _: None)[0], config)
    facts, before = data_facts([], config, trained), meta.training["data"]
    if any(facts[name] != before[name] for name in facts):
        raise DataError(
            f"{data}: gives other training passages than the checkpoint had: {facts}",
            hint="Name the records that it was trained on; what is held out must not be among them",
        )
    library = Library(base, network, held_out)
    library.compile()
    fit = fit_gate if gate_alone else calibrate
    gate, figures = fit(library, seed=config.seed, max_questions=max_questions, batch_size=batch_size)
    figures = {**meta.training.get("gate", {}), **figures}
    save_network(folder, network, replace(meta, gate=vars(gate), training={**meta.training, "gate": figures}))
    return {**vars(gate), **figures}


def main() -> None:
    """Parse the command line, fit, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=2048, help="that the gate is fitted on, at most")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--gate-alone", action="store_true", help="leave the router's scores as they are")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    figures = refit(
        args.data,
        args.checkpoint,
        max_questions=args.questions,
        batch_size=args.batch,
        temperature=args.temperature,
        gate_alone=args.gate_alone,
        base_path=args.base,
        device=args.device,
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
