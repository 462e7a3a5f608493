"""Small seeded documents for the tests of the bank."""

import numpy as np
import torch

from models.atoms import Atom
from models.bank import Bank, BankIdentity
from models.documents import Document, Page

KEY_DIM = 8
IDENTITY = BankIdentity(
    preset="smollm2",
    base_fingerprint="base-1",
    checkpoint_fingerprint="checkpoint-1",
    recipe="d2a",
    store="compact",
    key_dim=KEY_DIM,
    kv_store="states",
)


def make_document(name: str, *, source: str | None = None, num_atoms: int = 3) -> Document:
    """Return a document of two pages whose text is made of its name."""
    text = "".join(f"{name} says {number}. " for number in range(num_atoms))
    half = len(text) // 2
    pages = (
        Page(index=0, label="i", char_start=0, char_end=half),
        Page(index=1, label="ii", char_start=half, char_end=len(text)),
    )
    source = source or f"/papers/{name}.txt"
    return Document(source=source, title=name.title(), media_type="text/plain", text=text, pages=pages)


def make_atoms(document: Document, num_atoms: int = 3) -> list[Atom]:
    """Return atoms that quote the document's sentences."""
    sentences = [s + "." for s in document.text.split(". ")][:num_atoms]
    return [
        Atom(
            atom_id=f"atom_{number}",
            semantic_type="fact_claim",
            content=sentence,
            source_span=sentence,
            retrieval_text=f"anchor {number}",
            char_start=document.text.index(sentence),
            char_end=document.text.index(sentence) + len(sentence),
        )
        for number, sentence in enumerate(sentences)
    ]


def make_tensors(num_atoms: int = 3, *, seed: int = 0, value: float | None = None) -> dict:
    """Return `keys` and `shard` for `Bank.put`; `value` fills the shard so that a mixture would show."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(num_atoms, 5, generator=generator)
    lengths = torch.arange(num_atoms) % 3
    states = torch.randn(int(lengths.sum()), 4, generator=generator).bfloat16()
    if value is not None:
        latents, states = torch.full_like(latents, value), torch.full_like(states, value)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    keys = rng.standard_normal((num_atoms, KEY_DIM)).astype(np.float32)
    return {"keys": keys, "shard": {"z": latents, "states": states, "states.offsets": offsets}}


def put(bank: Bank, name: str, *, num_atoms: int = 3, source: str | None = None, seed: int = 0, **options):
    """Store a sample document, as an ingest would."""
    document = make_document(name, source=source, num_atoms=num_atoms)
    tensors = make_tensors(num_atoms, seed=seed, value=options.pop("value", None))
    bank.begin(document.source, document.content_hash)
    settings = {"atomizer": "rules", "status": "ok"} | options
    return bank.put(document, make_atoms(document, num_atoms), **tensors, **settings)


def num_orphans(bank: Bank) -> int:
    """Count atom rows, shards and temporary files that no document names."""
    snapshot = bank._snapshot()
    rows = bank._tables.scan(bank._tables.atoms, ["generation"])
    shards = {path.name for path in (bank.path / "shards").glob("*")}
    live_shards = {stored.shard_name for stored in snapshot.documents.values()}
    return sum(row["generation"] not in snapshot.by_generation for row in rows) + len(shards - live_shards)
