"""Base, trained memory and gate as one loaded thing: compiling atoms, routing questions, answering.

Holds everything that needs tensors at use time. It knows no files and no bank: it takes and gives keys, shard
tensors and text. `models.memory` puts it together with a bank.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.atoms import Atom
from models.base import FrozenBase, Site, load_base
from models.checkpoint import CheckpointMeta, load_network
from models.compiler import LoraFactors
from models.composer import compose
from models.config import MemoryConfig
from models.doubts import NUM_DOUBTS
from models.encoder import text_features
from models.generation import Prefill, continue_greedily, prefill
from models.injection import ComposedAdapter, attached
from models.microkv import AtomSlots, latent_slots, pad_entry, token_slots
from models.presets import Preset
from models.prompts import prompt_ids, refusal_ids
from models.reading import bare_logprobs, gain, refusal_of_each
from models.reranker import CrossEncoder, find_reranker
from models.router import AnswerabilityGate, atom_metadata, gate_features
from models.shards import ragged
from models.stacked import BySite
from models.stored_states import load_states, store_states

COMPILE_CHUNK = 64
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What stage 1 found for a question, one row a candidate.

    Args:
        stretch: Words of the stretches that hold the candidates; None counts as 0.
    """

    cosine: np.ndarray
    lexical: np.ndarray
    rerank: np.ndarray | None
    stretch: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class RoutedRows:
    """Scores of all candidates, and the rows that were selected with their weights, best first.

    Args:
        refusal: Log P that the model refuses under a candidate alone, nats, by row, for those that it has read.
        slots: Micro-KV of the candidates that it has read; `slot_rows` says which of them was selected, in order.
        doubts: Mean of `refusal`, 0 without any, and what `models.doubts` finds in the atoms read, else selected;
            and `LexicalIndex.evidence`.
    """

    score: list[float]
    rows: list[int]
    weight: list[float]
    log_weight: list[float]
    top_lexical: float
    refusal: dict[int, float] = field(default_factory=dict)
    slots: AtomSlots | None = None
    slot_rows: list[int] | None = None
    doubts: tuple[float, ...] = (0.0,) * (2 + NUM_DOUBTS)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A question's prompt that was read under its memory."""

    question: str
    start: Prefill
    adapter: ComposedAdapter | None
    refusal_logprob: float


class Engine:
    """A loaded base with a trained memory."""

    def __init__(
        self, base: FrozenBase, network: torch.nn.Module, meta: CheckpointMeta, *, composition: str | None = None
    ) -> None:
        self.base, self.network, self.meta = base, network, meta
        self.spec = meta.spec
        self.gate = AnswerabilityGate.of(meta.gate)
        self.composition = composition
        self.reranker: CrossEncoder | None = None

    @classmethod
    def load(cls, config: MemoryConfig, preset: Preset, checkpoint: Path) -> Engine:
        """Load base and checkpoint as the configuration asks.

        Raises:
            BaseModelError, CheckpointError: One of them is missing, broken, or does not fit the other.
        """
        base = load_base(preset, base_path=config.base_path, device=config.device, attention=config.attention)
        network, meta = load_network(checkpoint, base)
        engine = cls(base, network, meta, composition=config.composition)
        if float(network.router.rerank) != 0.0:
            engine.reranker = find_reranker(config.reranker or meta.spec.router.reranker, base.device)
        return engine

    def compile(
        self, atoms: Sequence[Atom], *, store: str, on_progress: Callable[[int], None] = lambda _: None
    ) -> tuple[np.ndarray, dict[str, Tensor]]:
        """Compile atoms to keys and shard tensors.

        Args:
            store: `compact` keeps latents, `full` keeps micro-LoRA factors and mask logits as well, where atoms have
                their own.
            on_progress: Called with the number of atoms done.

        Returns:
            Keys, float32 `[N, E]`, and the shard: `latent` `[N, Z]`; where micro-KV reads tokens, their states as
            `models.stored_states` keeps them, ragged; and for `full` one `a.<layer>.<module>`, `b.<layer>.<module>` a
            site and `mask`.
        """
        keys, latents, lengths = [], [], []
        states: dict[str, list[Tensor]] = defaultdict(list)
        for begin in range(0, len(atoms), COMPILE_CHUNK):
            texts = [a.content for a in atoms[begin : begin + COMPILE_CHUNK]]
            features = text_features(self.base, self.spec, texts, with_entry=self.spec.kv.source == "tokens")
            key_NE, latent_NZ = self.network.compile_atoms(features.pooled_ND)
            keys.append(key_NE.cpu())
            latents.append(latent_NZ.cpu())
            if features.entry:
                lengths += map(len, features.entry)
                for name, tensor in store_states(torch.cat(features.entry), self.spec.kv.store).items():
                    states[name].append(tensor.cpu())
            on_progress(min(len(atoms), begin + COMPILE_CHUNK))
        shard = {"latent": torch.cat(latents)}
        shard |= ragged({name: torch.cat(parts) for name, parts in states.items()}, lengths)
        if store == "full" and self.network.compiler.shared is None:
            shard |= self._materialised(shard["latent"])
        return torch.cat(keys).numpy(), shard

    def query_key(self, question: str) -> np.ndarray:
        """Return a question's key, float32 `[E]`."""
        features = text_features(self.base, self.spec, [question], with_entry=False)
        return self.network.query_keys(features.pooled_ND)[0].cpu().numpy()

    def rerank(self, question: str, texts: Sequence[str]) -> np.ndarray | None:
        """Return the cross-encoder's scores of the texts, None where none is loaded."""
        return (
            None if self.reranker is None else self.reranker.scores(question, texts, self.spec.router.max_rerank_tokens)
        )

    def route(self, found: Candidates, atoms: Sequence[Atom], *, top_k: int) -> RoutedRows:
        """Score candidates and select the `top_k` best."""
        router, device = self.network.router, self.base.device
        rerank, stretch = (
            None if x is None else torch.as_tensor(x, device=device)[None] for x in (found.rerank, found.stretch)
        )
        cosine, lexical = (torch.as_tensor(x, device=device)[None] for x in (found.cosine, found.lexical))
        score_BC = router.score(cosine, lexical, atom_metadata(atoms).to(device)[None], rerank, stretch_BC=stretch)
        routing = router.select(score_BC, torch.ones_like(score_BC, dtype=torch.bool), top_k=top_k)
        return RoutedRows(
            score=score_BC[0].tolist(),
            rows=routing.index_BK[0].tolist(),
            weight=routing.weight_BK[0].tolist(),
            log_weight=routing.log_weight_BK[0].tolist(),
            top_lexical=float(found.lexical.max(initial=0.0)),
        )

    @torch.no_grad()
    def read(
        self, question: str, routed: RoutedRows, tensors: Mapping[str, Sequence[Tensor]], *, top_k: int
    ) -> RoutedRows:
        """Let the model read each selected candidate alone, and select the `top_k` best of them anew.

        Args:
            tensors: The selected candidates' shard tensors, in their order.
        """
        router, device, rows = self.network.router, self.base.device, routed.rows
        full = "mask" in tensors
        slots = self._slots(tensors)
        refusal_M = refusal_of_each(
            self.base,
            self.network.compiler,
            [prompt_ids(self.base.tokenizer, question)] * len(rows),
            latent_PZ=None if full else torch.stack(list(tensors["latent"])).to(device),
            factors=self._stored_factors(tensors) if full else None,
            slots=slots,
            slot_rows_P=torch.arange(len(rows), device=device),
        )
        before_M = torch.tensor([routed.score[row] for row in rows], device=device)
        score_1M = router.after_reading(before_M, refusal_M)[None]
        routing = router.select(score_1M, torch.ones_like(score_1M, dtype=torch.bool), top_k=top_k)
        score = list(routed.score)
        for row, value in zip(rows, score_1M[0].tolist(), strict=True):
            score[row] = value
        chosen = routing.index_BK[0].tolist()
        return replace(
            routed,
            score=score,
            rows=[rows[i] for i in chosen],
            weight=routing.weight_BK[0].tolist(),
            log_weight=routing.log_weight_BK[0].tolist(),
            refusal=dict(zip(rows, refusal_M.tolist(), strict=True)),
            slots=slots,
            slot_rows=chosen,
        )

    @torch.no_grad()
    def compose(
        self,
        routed: RoutedRows,
        tensors: Mapping[str, Sequence[Tensor]],
        *,
        with_kv: bool = True,
        dtype: torch.dtype | None = None,
    ) -> ComposedAdapter:
        """Compose the selected atoms, whose shard tensors are given in their order.

        Args:
            dtype: Of the update's factors; None takes the base's.
        """
        log_weight_BK = torch.tensor([routed.log_weight], device=self.base.device)
        latent_BKZ = torch.stack(list(tensors["latent"])).to(self.base.device)[None]
        full = "mask" in tensors
        # What was read has its slots already: building them runs the memory layers over the atoms.
        slots, slot_rows = routed.slots, routed.slot_rows
        if slot_rows is None:
            slots, slot_rows = self._slots(tensors) if with_kv else None, list(range(len(routed.rows)))
        return compose(
            self.network.compiler,
            log_weight_BK.exp(),
            log_weight_BK,
            latent_BKZ=None if full else latent_BKZ,
            factors=self._stored_factors(tensors, leading=(1,)) if full else None,
            slots=slots if with_kv else None,
            slot_rows_BK=torch.tensor([slot_rows], device=self.base.device),
            mode=self.composition,
            dtype=dtype or self.base.dtype,
        )

    def start(self, question: str, adapter: ComposedAdapter | None, *, context: str | None = None) -> Started:
        """Read the prompt under an adapter, and score a refusal as its answer, and the question for the gate."""
        prompt, refusal = prompt_ids(self.base.tokenizer, question, context), refusal_ids(self.base.tokenizer)
        with attached(self.base, adapter):
            asked = [question] if adapter is not None and self.gate.sees_gain else None
            state = prefill(self.base, [prompt], refusal, questions=asked)
        return Started(
            question=question, start=state, adapter=adapter, refusal_logprob=float(state.refusal_logprob_B[0])
        )

    def answerability(self, routed: RoutedRows, started: Started, *, num_atoms: int) -> float:
        """Return how sure the gate is, in [0, 1], that a bank of `num_atoms` atoms can answer.

        A gate that looks at what the memory adds to the question has the base read it once more without a memory.
        """
        added = 0.0
        if self.gate.sees_gain:
            bare = bare_logprobs(self.base, [started.question])
            added = float(gain(started.start.question_logprob_BQ, bare)[0])
        # The best of those that were read, where any were: the others' scores are of before.
        best = max(routed.score[row] for row in routed.refusal or range(len(routed.score)))
        looks_at = (best, routed.top_lexical, started.refusal_logprob, num_atoms, routed.doubts, added)
        return float(self.gate(gate_features(*(torch.tensor(x) for x in looks_at))))

    def finish(
        self, started: Started, *, max_new_tokens: int, on_token: Callable[[str], None] | None = None
    ) -> tuple[str, int, float]:
        """Generate the answer; never the refusal under a memory whose gate decides alone.

        Args:
            on_token: Called with each new piece of text, whole characters only.

        Returns:
            The text, the number of tokens, and the seconds to the first of them.
        """
        begin = time.perf_counter()
        first: list[float] = []
        printed = ""

        def stream(ids: list[int]) -> None:
            nonlocal printed
            first or first.append(time.perf_counter() - begin)
            text = self.base.tokenizer.decode(ids, skip_special_tokens=True).lstrip()
            if on_token and not text.endswith(REPLACEMENT) and len(text) > len(printed):
                on_token(text[len(printed) :])
                printed = text

        start = started.start
        if started.adapter is not None and self.spec.router.gate_alone:
            start = start.answering(self.base.tokenizer)
        with attached(self.base, started.adapter):
            [ids] = continue_greedily(self.base, start, max_new_tokens=max_new_tokens, on_token=stream)
        return self.base.tokenizer.decode(ids, skip_special_tokens=True).strip(), len(ids), first[0] if first else 0.0

    def _slots(self, tensors: Mapping[str, Sequence[Tensor]]) -> AtomSlots | None:
        if self.spec.kv.source == "tokens":
            return token_slots(self.base, self.network.compiler, *pad_entry(self.base, load_states(tensors)))
        if self.spec.kv.source == "latent":
            latent_UZ = torch.stack(list(tensors["latent"])).to(self.base.device)
            return latent_slots(self.base, self.network.compiler, latent_UZ)
        return None

    def _materialised(self, latent_NZ: Tensor) -> dict[str, Tensor]:
        factors = self.network.compiler.factors(latent_NZ.to(self.base.device))
        named = {f"a.{_name(s)}": a for s, a in factors.a.items()} | {f"b.{_name(s)}": b for s, b in factors.b.items()}
        return {name: t.cpu().contiguous() for name, t in {**named, "mask": factors.mask_logits}.items()}

    def _stored_factors(self, tensors: Mapping[str, Sequence[Tensor]], *, leading: tuple[int, ...] = ()) -> LoraFactors:
        """Return the stored factors of some atoms, one after the other behind `leading` dimensions of 1."""

        def read(name: str) -> Tensor:
            stacked = torch.stack(list(tensors[name])).to(self.base.device)
            return stacked.view(*leading, *stacked.shape)

        sites = self.network.compiler.sites
        return LoraFactors(
            a=BySite.of({s: read(f"a.{_name(s)}") for s in sites}),
            b=BySite.of({s: read(f"b.{_name(s)}") for s in sites}),
            mask_logits=read("mask"),
        )


def _name(site: Site) -> str:
    return f"{site.layer}.{site.module}"
