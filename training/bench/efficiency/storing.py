"""Part 5: bytes an atom in the compact and the full store, by arithmetic and in a shard that is really written.

The key and the atom's own text stand in the bank's tables, not in its shards; `product` measures those.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import torch

from models.base import FrozenBase
from models.presets import MemorySpec
from models.shards import write_shard
from models.stored_states import BITS, BLOCK
from training.bench.efficiency.meters import Meter
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.subjects import Subject
from training.bench.efficiency.texts import as_atoms, invented

FLOAT32, FLOAT16, BFLOAT16, INT64 = 4, 2, 2, 8
WRITTEN_ATOMS = 4
STORES = ("compact", "full")


def shard_bytes(base: FrozenBase, spec: MemorySpec, *, num_tokens: int, store: str) -> int:
    """Return the bytes of an atom's parameters by arithmetic.

    Compact: the latent in float32, and the token states that enter the first memory layer with an offset; as
    whole numbers with a scale a block of channels, and an offset for those too.
    Full: factors of all sites, `rank (I + O)` each, and the mask's logits in float32 as well.

    Args:
        num_tokens: Of the atom, behind its limit.
    """
    count = FLOAT32 * spec.latent_size
    if spec.kv.source == "tokens":
        count += num_tokens * _token_bytes(base.hidden_size, spec.kv.store) + INT64 * _num_ragged(spec)
    if store == "full" and spec.lora == "atom":
        sites = base.sites(spec)
        count += FLOAT32 * (sum(spec.rank * (s.in_features + s.out_features) for s in sites) + len(sites))
    return count


def store_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Write a small shard a store, and compare its size with the arithmetic."""
    base, spec = subject.base, subject.spec
    tokens = min(spec.max_atom_tokens, 32)
    passage = invented(base.tokenizer, num_atoms=WRITTEN_ATOMS, num_tokens=WRITTEN_ATOMS * tokens, seed=request.seed)
    lengths = [len(base.tokenizer(a, add_special_tokens=False)["input_ids"]) for a in passage.atoms]
    found: dict[str, Any] = {"tokens_an_atom": sum(lengths) / len(lengths), "key_bytes": FLOAT32 * spec.d_key}
    for store in STORES:
        expected = sum(shard_bytes(base, spec, num_tokens=n, store=store) for n in lengths)
        with torch.no_grad():
            _, shard = subject.engine.compile(as_atoms(passage.atoms), store=store)
        with tempfile.TemporaryDirectory(prefix="d2a-efficiency-") as folder:
            path = Path(folder) / "shard.safetensors"
            write_shard(path, shard)
            written, header = path.stat().st_size, _header_bytes(path)
        extra = INT64 * _num_ragged(spec)  # N atoms have N + 1 offsets
        found[store] = {
            "bytes_an_atom": round(expected / len(lengths), 1),
            "bytes_an_atom_in_file": round(written / len(lengths), 1),
            "file_bytes": written,
            "header_bytes": header,
            "arithmetic_is_exact": written - header == expected + extra,
            "bytes_an_atom_at_limit": shard_bytes(base, spec, num_tokens=spec.max_atom_tokens, store=store),
        }
    return found


def _token_bytes(width: int, store: str) -> int:
    if store == "bfloat16":
        return BFLOAT16 * width
    return BITS[store] * width // 8 + FLOAT16 * math.ceil(width / BLOCK)


def _num_ragged(spec: MemorySpec) -> int:
    if spec.kv.source != "tokens":
        return 0
    return 1 if spec.kv.store == "bfloat16" else 2


def _header_bytes(path: Path) -> int:
    """Return the size of a safetensors header with the eight bytes that tell it."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
