"""Part 3: what a question costs as the bank grows, with invented keys of unit length.

Keys live in blocks on the base's device, in bfloat16 on a GPU, and are searched exactly. The product's own bank keeps
them in LanceDB on the disk: `product` measures that path. Of the atoms that are selected, parameters come from a small
document compiled before: what they cost does not depend on where in the bank they stand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models import generation
from models.atoms import Atom
from models.engine import Candidates, Engine, RoutedRows
from models.injection import ComposedAdapter
from models.lexical import LexicalIndex, best_rows
from training.bench.efficiency.meters import MIB, Meter, summary
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.subjects import Subject
from training.bench.efficiency.texts import as_atoms, invented, words

BLOCK_ROWS = 2**17
DOCUMENT_ATOMS = 10_000  # words are searched by stretches of neighbours too, which end with a document
ATOM_WORDS, QUESTION_WORDS = 18, 8
NUM_QUESTIONS = 16
CUDA_NEW_TOKENS, CPU_NEW_TOKENS = 32, 16
SEED = 0
KEYS_ARE = "in blocks on the base's device, not in a bank on the disk, which the part `product` measures"


class KeyBlocks:
    """Unit keys of a bank in blocks, searched exactly; what a search needs on top does not grow with the bank."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.blocks = list(blocks)

    @classmethod
    def invented(cls, num_rows: int, width: int, device: torch.device) -> KeyBlocks:
        """Return random keys, made on their device."""
        generator = torch.Generator(device).manual_seed(SEED)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        sizes = [min(BLOCK_ROWS, num_rows - begin) for begin in range(0, num_rows, BLOCK_ROWS)]
        draw = partial(torch.randn, generator=generator, device=device)
        return cls([F.normalize(draw(size, width), dim=-1).to(dtype) for size in sizes])

    @property
    def num_bytes(self) -> int:
        """Size of the keys, in bytes."""
        return sum(block.nbytes for block in self.blocks)

    def top(self, key_E: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows nearest to a key (int64), best first, and their cosines (float32)."""
        key = torch.as_tensor(key_E, device=self.blocks[0].device).to(self.blocks[0].dtype)
        cosines, rows, begin = [], [], 0
        for block_NE in self.blocks:
            best, where = (block_NE @ key).topk(min(limit, len(block_NE)))
            cosines.append(best)
            rows.append(where + begin)
            begin += len(block_NE)
        best, where = torch.cat(cosines).topk(min(limit, begin))
        return torch.cat(rows)[where].cpu().numpy(), best.float().cpu().numpy()

    def cosines(self, key_E: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the cosines of some rows, float32."""
        keys = [self.blocks[row // BLOCK_ROWS][row % BLOCK_ROWS] for row in rows.tolist()]
        key = torch.as_tensor(key_E, device=self.blocks[0].device)
        return (torch.stack(keys).float() @ key).cpu().numpy() if keys else np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class WordIndex:
    """A word index over invented atoms, and the seconds that it took to build."""

    index: LexicalIndex
    build_s: float


@cache
def word_index(num_rows: int) -> WordIndex:
    """Return the index of so many atoms; it depends on no base, so that runs of one process share it."""
    rng = random.Random(SEED)
    texts = [words(ATOM_WORDS, rng) for _ in range(num_rows)]
    documents = [row // DOCUMENT_ATOMS for row in range(num_rows)]
    begin = time.perf_counter()
    index = LexicalIndex.build(texts, documents=documents)
    return WordIndex(index=index, build_s=time.perf_counter() - begin)


@dataclass(kw_only=True)
class WordIndices:
    """Word indices of growing size, as long as the next should not take longer to build than is allowed."""

    limit_s: float
    are_used: bool
    row_s: float = 0.0

    def of(self, num_rows: int) -> tuple[LexicalIndex | None, dict[str, Any]]:
        """Return the index of so many atoms, where there is one, and what to tell of it."""
        if not self.are_used:
            return None, {"words": "not used"}
        expected_s = self.row_s * num_rows
        if expected_s > self.limit_s:
            return None, {"words": f"left out: building the index would take about {expected_s:.0f} s"}
        made = word_index(num_rows)
        self.row_s = made.build_s / num_rows
        return made.index, {"words": "used", "index_build_s": round(made.build_s, 2)}


@dataclass(frozen=True, kw_only=True)
class AskedBank:
    """A bank of invented keys, with the parameters of a few atoms that stand for all."""

    engine: Engine
    keys: KeyBlocks
    index: LexicalIndex | None
    atoms: Sequence[Atom]
    shard: Mapping[str, Tensor]

    def route(self, question: str, meter: Meter) -> RoutedRows:
        """Find candidates and select among them; the rows are those of the few atoms."""
        spec = self.engine.spec.router
        with meter.part("encode"):
            key_E = self.engine.query_key(question)
        with meter.part("stage 1, keys"):
            rows, cosine = self.keys.top(key_E, spec.num_candidates)
        lexical = stretch = np.zeros(len(rows), dtype=np.float32)
        if self.index is not None:
            with meter.part("stage 1, words"):
                lexical = self.index.all_scores(question)
                stretch = self.index.stretch_scores(question, own=lexical)
                more = np.setdiff1d(best_rows(lexical + stretch, spec.num_candidates), rows)
                cosine = np.concatenate([cosine, self.keys.cosines(key_E, more)])
                rows = np.concatenate([rows, more])
                lexical, stretch = lexical[rows], stretch[rows]
        with meter.part("stage 2"):
            found = Candidates(cosine=cosine, lexical=lexical, stretch=stretch, rerank=None)
            atoms = [self.atoms[row % len(self.atoms)] for row in rows.tolist()]
            num_read = self.engine.network.router.num_read
            routed = self.engine.route(found, atoms, top_k=max(spec.top_k, num_read))
        if num_read:
            with meter.part("reading"):
                routed = self.engine.read(question, routed, self._tensors(routed), top_k=spec.top_k)
        return routed

    def compose(self, routed: RoutedRows) -> ComposedAdapter:
        """Compose the selected atoms."""
        return self.engine.compose(routed, self._tensors(routed))

    def ask(self, question: str, meter: Meter, *, new_tokens: int) -> None:
        """Answer a question: route, compose, read the prompt, judge, and generate exactly `new_tokens` tokens."""
        routed = self.route(question, meter)
        with meter.part("compose"):
            adapter = self.compose(routed)
        with meter.part("first token"):
            started = self.engine.start(question, adapter)
        with meter.part("gate"):
            self.engine.answerability(routed, started, num_atoms=len(self.atoms))
        with meter.part("other tokens"), never_ending():
            self.engine.finish(started, max_new_tokens=new_tokens)

    def _tensors(self, routed: RoutedRows) -> dict[str, list[Tensor]]:
        return rows_of(self.shard, [row % len(self.atoms) for row in routed.rows])


@contextmanager
def never_ending() -> Iterator[None]:
    """Let no token end an answer, so that all answers are equally long; speed is measured, not sense."""
    kept = generation.end_ids
    generation.end_ids = lambda *_: set()
    try:
        yield
    finally:
        generation.end_ids = kept


def rows_of(shard: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, list[Tensor]]:
    """Return some atoms' tensors of a shard in memory, as `models.shards.read_rows` does from a file."""
    found = {}
    for name, tensor in shard.items():
        offsets = shard.get(f"{name}.offsets")
        if name.endswith(".offsets"):
            continue
        found[name] = [tensor[r] if offsets is None else tensor[offsets[r] : offsets[r + 1]] for r in rows]
    return found


def new_tokens_of(request: EfficiencyRequest, subject: Subject) -> int:
    """Return the length of a generated answer."""
    return request.new_tokens or (CUDA_NEW_TOKENS if subject.base.device.type == "cuda" else CPU_NEW_TOKENS)


def few_atoms(request: EfficiencyRequest, subject: Subject) -> tuple[list[Atom], dict[str, Tensor]]:
    """Return compiled atoms of usual length."""
    passage = invented(subject.base.tokenizer, num_atoms=32, num_tokens=32 * 24, seed=request.seed)
    atoms = as_atoms(passage.atoms)
    with torch.no_grad():
        _, shard = subject.engine.compile(atoms, store="compact")
    return atoms, shard


def questions_part(subject: Subject, request: EfficiencyRequest, meter: Meter) -> dict[str, Any]:
    """Measure routing, and whole questions, over banks of growing size."""
    rng = random.Random(request.seed)
    asked = [words(QUESTION_WORDS, rng) for _ in range(NUM_QUESTIONS)]
    atoms, shard = few_atoms(request, subject)
    budget_s = request.share_s("questions") / max(1, len(request.bank_sizes))
    new_tokens, rows = new_tokens_of(request, subject), []
    indices = WordIndices(limit_s=request.index_budget_s, are_used=subject.spec.router.lexical)
    for num_atoms in request.bank_sizes:
        index, told = indices.of(num_atoms)
        keys = KeyBlocks.invented(num_atoms, subject.spec.d_key, subject.base.device)
        bank = AskedBank(engine=subject.engine, keys=keys, index=index, atoms=atoms, shard=shard)
        routing = [partial(bank.route, q, meter) for q in asked]
        answers = [partial(bank.ask, q, meter, new_tokens=new_tokens) for q in asked]
        routed = meter.repeat(routing, budget_s=0.3 * budget_s, least=10, most=100)
        most, warm_up = NUM_QUESTIONS, 0 if rows else 1
        answered = meter.repeat(answers, budget_s=0.7 * budget_s, least=2, most=most, warm_up=warm_up)
        facts = {"num_atoms": num_atoms, "keys_mib": round(keys.num_bytes / MIB, 2), **told}
        rows.append({**facts, "routing": summary(routed), "question": summary(answered)})
        del bank, keys, routing, answers  # before the next keys are made
    return {"new_tokens": new_tokens, "keys": KEYS_ARE, "banks": rows}
