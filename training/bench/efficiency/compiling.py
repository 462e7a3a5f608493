"""Part 1 and 2: compiling a document into memory, and the same document through Doc-to-LoRA.

A document is compiled as `models.engine` does it, with the keys and states of its atoms on the CPU at the end. What the
bank does with them on disk, and the decomposition into atoms, are left out. Routing one question over the document's
own atoms belongs to it, as in the paper: a memory that cannot be found is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from models.baselines.d2l import HyperLora, document_chunks, internalize
from models.encoder import text_features
from models.engine import COMPILE_CHUNK, Candidates, Engine, RoutedRows
from models.lexical import LexicalIndex
from models.stored_states import store_states
from training.bench.efficiency.meters import MIB, Meter, summary, times
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.subjects import Subject, free_bytes
from training.bench.efficiency.texts import Passage, as_atoms, invented

CUDA_TOKENS, CPU_TOKENS = 8192, 1024
# What Doc-to-LoRA holds at once of an MLP's inner states: gate, product and the sum that follows.
INNER_COPIES = 3


def passages(request: EfficiencyRequest, subject: Subject) -> dict[str, list[Passage]]:
    """Return what is compiled: the benchmark's documents, where there are any, and the invented one."""
    found = {"benchmark": [Passage.of(atoms) for atoms in request.documents]} if request.documents else {}
    found["invented"] = [
        invented(
            subject.base.tokenizer,
            num_atoms=request.num_atoms,
            num_tokens=request.num_tokens or (CUDA_TOKENS if subject.base.device.type == "cuda" else CPU_TOKENS),
            seed=request.seed,
        )
    ]
    return found


@torch.no_grad()
def compile_passage(engine: Engine, passage: Passage, meter: Meter) -> RoutedRows:
    """Compile a document and route one question over it, part by part."""
    atoms, spec = as_atoms(passage.atoms), engine.spec
    keys, latents, states = [], [], []
    for begin in range(0, len(atoms), COMPILE_CHUNK):
        texts = passage.atoms[begin : begin + COMPILE_CHUNK]
        with meter.part("encoder"):
            features = text_features(engine.base, spec, texts, with_entry=spec.kv.source == "tokens")
            if features.entry:
                kept = store_states(torch.cat(features.entry), spec.kv.store)
                states += [tensor.cpu() for tensor in kept.values()]
        with meter.part("compiler"):
            key_NE, latent_NZ = engine.network.compile_atoms(features.pooled_ND)
            latents.append(latent_NZ.cpu())
        with meter.part("key write"):
            keys.append(key_NE.cpu())
    with meter.part("key write"):
        keys_NE = torch.cat(keys).numpy()
    with meter.part("word index"):
        index = LexicalIndex.build(passage.atoms, documents=[0] * len(atoms)) if spec.router.lexical else None
    with meter.part("route"):
        key_E = engine.query_key(passage.question)
        cosine = keys_NE @ key_E
        lexical = 0 * cosine if index is None else index.all_scores(passage.question)
        stretch = None if index is None else index.stretch_scores(passage.question, own=lexical)
        found = Candidates(cosine=cosine, lexical=lexical, stretch=stretch, rerank=None)
        return engine.route(found, atoms, top_k=spec.router.top_k)


def compile_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Measure compiling: encoder, compiler, router, and the whole, compact and with materialised factors."""
    found: dict[str, Any] = {}
    groups = passages(request, subject)
    for name, group in groups.items():
        budget_s = request.share_s("compile") / (2 * len(groups))
        calls = [partial(compile_passage, subject.engine, p, meter) for p in group]
        measured = _measured(meter, calls, budget_s=budget_s, most=max(30, len(group)))
        found[name] = {**_described(subject, group), **measured}
        router_ms = [found[name]["parts"][part]["mean_ms"] for part in ("key write", "word index", "route")]
        found[name]["router_mean_ms"] = round(sum(router_ms), 4)
        full = [partial(_full, subject.engine, p) for p in group]
        found[name]["full_store"] = _measured(meter, full, budget_s=budget_s, most=10)
    return found


def d2l_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Measure Doc-to-LoRA, untrained, over the same documents: all layers at once, and layer by layer."""
    base = subject.base
    with torch.device(base.device):  # where a few hundred million random numbers take no time
        hyper = HyperLora.over(base).requires_grad_(False).eval()
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in hyper.parameters())}
    groups = passages(request, subject)
    for name, group in groups.items():
        found[name] = {"mean_chunks": round(sum(_num_chunks(subject, hyper, p) for p in group) / len(group), 2)}
        for mode, layers_at_once in (("layer by layer", 1), ("batched", None)):
            needed = max(batched_bytes(subject, hyper, p, layers_at_once=layers_at_once) for p in group)
            limit = free_bytes(base.device) if request.memory_gib is None else request.memory_gib * 2**30
            if needed > 0.9 * limit:
                why = f"would need about {needed / MIB:,.0f} MiB, {limit / MIB:,.0f} MiB are free"
                found[name][mode] = {"left_out": why}
                continue
            calls = [partial(_internalized, subject, hyper, p, layers_at_once) for p in group]
            budget_s = request.share_s("d2l") / (2 * len(groups))
            found[name][mode] = _measured(meter, calls, budget_s=budget_s, least=2, most=max(20, len(group)))
    return found


def batched_bytes(subject: Subject, hyper: HyperLora, passage: Passage, *, layers_at_once: int | None) -> int:
    """Return about what Doc-to-LoRA needs: the inner states of the projection over all tokens, layers at once."""
    chunks = document_chunks(subject.base.tokenizer, passage.text, max_chunk_tokens=hyper.config.max_chunk_tokens)
    tokens = len(chunks) * max(map(len, chunks))
    inner = hyper.config.expansion * subject.base.hidden_size
    itemsize = subject.base.dtype.itemsize
    return (layers_at_once or subject.base.num_layers) * tokens * inner * INNER_COPIES * itemsize


def _measured(meter: Meter, calls: Sequence[Callable[[], object]], **limits: float) -> dict[str, Any]:
    """Return the figures of documents that were compiled before, and under `first` those of the first time.

    A document of another shape makes a GPU's libraries plan anew, which takes longer than the work.
    """
    first, readings = meter.repeat_each(calls, **limits)
    return {**summary(readings), "first": times([reading.seconds for reading in first])}


def _internalized(subject: Subject, hyper: HyperLora, passage: Passage, layers_at_once: int | None) -> object:
    return internalize(subject.base, hyper, [passage.text], layers_at_once=layers_at_once)


@torch.no_grad()
def _full(engine: Engine, passage: Passage) -> object:
    return engine.compile(as_atoms(passage.atoms), store="full")


def _num_chunks(subject: Subject, hyper: HyperLora, passage: Passage) -> int:
    return len(document_chunks(subject.base.tokenizer, passage.text, max_chunk_tokens=hyper.config.max_chunk_tokens))


def _described(subject: Subject, group: Sequence[Passage]) -> dict[str, Any]:
    """Return how many documents there are, and their mean length as each system reads it."""
    tokenizer, limit = subject.base.tokenizer, subject.spec.max_atom_tokens

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    atoms = [[count(atom) for atom in p.atoms] for p in group]
    return {
        "documents": len(group),
        "mean_atoms": round(sum(map(len, atoms)) / len(group), 2),
        "mean_tokens": round(sum(count(p.text) for p in group) / len(group), 1),
        "mean_atom_tokens_read": round(sum(min(n, limit) for row in atoms for n in row) / len(group), 1),
    }
