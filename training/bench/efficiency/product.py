"""Part 3 again, by the product's own way: a bank on disk, LanceDB's exact search, and its word index.

It needs lancedb, and says so where it is missing. The atoms are invented, with keys of unit length and one token's
state each, so that the bank fits; routing reads keys, words and atoms, never those states.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from models.documents import Document, Page
from models.lexical import best_rows
from models.shards import ragged
from models.stored_states import store_states
from training.bench.efficiency.meters import Meter, summary
from training.bench.efficiency.questions import ATOM_WORDS, DOCUMENT_ATOMS, NUM_QUESTIONS, QUESTION_WORDS, SEED
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.subjects import Subject
from training.bench.efficiency.texts import as_atoms, words

if TYPE_CHECKING:
    from models.bank import Bank
    from models.engine import Engine

LEAST_ROUTED = 5
MEASURED_S = 6.0  # routing at one size, whole and step by step


def product_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Fill one bank step by step and route over it at every size that the time allows."""
    if importlib.util.find_spec("lancedb") is None:
        return {"left_out": "lancedb is not installed here"}
    rng = random.Random(request.seed)
    asked = [words(QUESTION_WORDS, rng) for _ in range(NUM_QUESTIONS)]
    end = time.perf_counter() + request.share_s("product")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="d2a-efficiency-", ignore_cleanup_errors=True) as folder:
        bank, stored = _new_bank(Path(folder) / "bank", subject), 0
        for num_atoms in request.bank_sizes:
            atom_s = sum(r["store_s"] + r["index_build_s"] for r in rows) / max(1, stored)
            if rows and time.perf_counter() + atom_s * num_atoms + MEASURED_S > end:
                return {"banks": rows, "left_out": f"{num_atoms:,} atoms and more: filling the bank takes too long"}
            rows.append({"num_atoms": num_atoms, **_measured(bank, subject, stored, num_atoms, asked, meter)})
            stored = num_atoms
    return {"banks": rows}


def _measured(
    bank: Bank, subject: Subject, stored: int, num_atoms: int, asked: list[str], meter: Meter
) -> Mapping[str, Any]:
    from models.routing import route_question

    begin = time.perf_counter()
    for first in range(stored, num_atoms, DOCUMENT_ATOMS):
        _put(bank, subject, first, min(DOCUMENT_ATOMS, num_atoms - first))
    stored_s = time.perf_counter()
    bank.lexical()
    filled = {"store_s": round(stored_s - begin, 2), "index_build_s": round(time.perf_counter() - stored_s, 2)}
    whole = [partial(route_question, bank, subject.engine, q, top_k=None) for q in asked]
    steps = [partial(_steps, bank, subject.engine, q, meter) for q in asked]
    return {
        **filled,
        "bytes_an_atom_beside_states": round(bank.bank_bytes / num_atoms, 1),
        "routing": summary(meter.repeat(whole, budget_s=MEASURED_S / 2, least=LEAST_ROUTED)),
        "of which": summary(meter.repeat(steps, budget_s=MEASURED_S / 2, least=LEAST_ROUTED))["parts"],
    }


def _steps(bank: Bank, engine: Engine, question: str, meter: Meter) -> None:
    """Do what `models.routing` reads from a bank, step by step."""
    limit = engine.spec.router.num_candidates
    key_E = engine.query_key(question)
    with meter.part("nearest keys"):
        uids = [uid for uid, _ in bank.search(key_E, limit=limit)]
    with meter.part("words"):
        index = bank.lexical()
        lexical = index.all_scores(question)
    with meter.part("words around"):
        stretch = index.stretch_scores(question, own=lexical)
    with meter.part("best by words"):
        rows = best_rows(lexical + stretch, limit)
    uids = list(dict.fromkeys([*uids, *(index.uids[row] for row in rows)]))
    with meter.part("atoms of candidates"):
        bank.atoms_by_uid(uids)
    with meter.part("keys of candidates"):
        bank.keys_by_uid(uids)
    with meter.part("words of candidates"):
        rows = index.rows_of(uids)
        _ = lexical[rows], stretch[rows]
    with meter.part("documents"):
        bank.documents()


def _new_bank(path: Path, subject: Subject) -> Bank:
    from models.bank import Bank, BankIdentity

    spec = subject.spec
    identity = BankIdentity(
        preset=subject.engine.meta.preset,
        base_fingerprint="invented",
        checkpoint_fingerprint="invented",
        recipe=spec.recipe,
        store="compact",
        key_dim=spec.d_key,
        kv_store=spec.kv.kept_as,
    )
    return Bank.open(path, identity, create=True)


def _put(bank: Bank, subject: Subject, first: int, count: int) -> None:
    """Store a document of invented atoms."""
    rng, spec = random.Random(SEED + first), subject.spec
    texts = [words(ATOM_WORDS, rng) for _ in range(count)]
    keys = np.random.default_rng(SEED + first).standard_normal((count, spec.d_key), dtype=np.float32)
    shard = {"latent": torch.zeros(count, spec.latent_size)}
    if spec.kv.source == "tokens":
        shard |= ragged(store_states(torch.zeros(count, subject.base.hidden_size), spec.kv.store), [1] * count)
    text = "\n".join(texts)
    document = Document(
        source=f"invented-{first}",
        title=f"Invented {first}",
        media_type="text/plain",
        text=text,
        pages=(Page(index=0, label="1", char_start=0, char_end=len(text)),),
    )
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    bank.put(document, as_atoms(texts), keys=keys, shard=shard, atomizer="invented", status="ok")
