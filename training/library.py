"""A set of annotated passages as memory: routing and answering for evaluation, in batches, without a bank on disk.

It uses the same encoder, router, composer, injection and generation as the product; only the storage differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.atoms import AnnotationRecord, Question
from models.base import FrozenBase
from models.composer import compose
from models.doubts import NUM_DOUBTS, doubts
from models.encoder import TextFeatures, text_features
from models.generation import continue_greedily, prefill
from models.injection import ComposedAdapter, attached
from models.lexical import LexicalIndex, best_rows
from models.microkv import AtomSlots, latent_slots, pad_entry, token_slots
from models.network import MemoryNetwork
from models.prompts import all_prompt_ids, refusal_ids
from models.reading import READ_PAIRS, bare_logprobs, gain, pairs_at_once, refusal_of_each
from models.router import MASKED_SCORE, atom_metadata, gate_features
from models.stored_states import as_stored

MAX_NEW_TOKENS = 32
# Tokens that a GPU encodes at once, padding included.
GPU_ENCODE_TOKENS = 65536
# Tokens of atoms that run through the memory layers at once on a CPU, where padding costs as much as they do.
CPU_SLOT_TOKENS = 2048
COMPILE_ATOMS = 2048  # at once: their states stand in float32 for a moment, and beside those that are kept


class Candidates(NamedTuple):
    """Flat atom rows that stage 1 found for a question, with their BM25 in its bank and that of their stretches.

    `evidence` is how much of the question the best stretch of the bank holds (`LexicalIndex.evidence`).
    """

    rows: np.ndarray
    lexical: np.ndarray
    stretch: np.ndarray | None = None
    evidence: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A question with the passage that it is asked of; `gold` are flat atom rows, none where it cannot be answered."""

    question: Question
    passage: int
    gold: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Candidates of a batch, padded with invalid columns, and their fused scores."""

    row_BC: Tensor
    lexical_BC: Tensor
    valid_BC: Tensor
    score_BC: Tensor


@dataclass(frozen=True, kw_only=True)
class RoutedAsks:
    """Routing of a batch: flat atom rows and log-weights, with what the gate looks at."""

    row_BK: Tensor
    log_weight_BK: Tensor
    best_score_B: Tensor
    top_lexical_B: Tensor
    num_atoms_B: Tensor
    doubts_BD: Tensor

    def gate_features(self, refusal_logprob_B: Tensor, gain_B: Tensor) -> Tensor:
        """Return what the gate looks at, given what the composed memory makes of refusal and question, nats."""
        routed = (self.best_score_B, self.top_lexical_B, refusal_logprob_B, self.num_atoms_B, self.doubts_BD)
        return gate_features(*routed, gain_B)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the model said.

    Args:
        refusal_logprob: Log-probability that its answer begins with the refusal, nats.
        gain: What the memory adds to the log-probabilities of the question's tokens, nats; 0 without one.
        overruled: It would have refused, and was kept from it.
    """

    text: str
    refusal_logprob: float
    gain: float = 0.0
    overruled: bool = False


class Library:
    """All atoms of some records, with what is compiled of each."""

    def __init__(self, base: FrozenBase, network: MemoryNetwork, records: Sequence[AnnotationRecord]) -> None:
        self.base, self.network, self.records = base, network, records
        self.atoms = [a for r in records for a in r.atoms]
        self.texts = [a.content for a in self.atoms]
        self.start = np.cumsum([0, *(len(r.atoms) for r in records)])
        self.passage_of = np.repeat(np.arange(len(records)), np.diff(self.start))
        self.metadata_NM = atom_metadata(self.atoms).to(base.device)
        self._lexical: dict[int | None, LexicalIndex] = {}
        self._entry: list[Tensor] = []
        self._prompt: dict[str, list[int]] = {}
        self._bare: dict[str, Tensor] = {}
        self._read_pairs = pairs_at_once(base, network)
        self.key_NE = torch.empty(0)
        self.latent_NZ = torch.empty(0)

    @torch.no_grad()
    def compile(self) -> None:
        """Compile every atom: its key, its latent, and the token states that its micro-KV is made of."""
        kv = self.network.spec.kv
        pooled, self._entry = [], []
        for begin in range(0, max(1, len(self.texts)), COMPILE_ATOMS):
            some = self._features(self.texts[begin : begin + COMPILE_ATOMS], with_entry=kv.source == "tokens")
            pooled.append(some.pooled_ND)
            self._entry += as_stored(some.entry, kv.store)
        self.key_NE, self.latent_NZ = self.network.compile_atoms(torch.cat(pooled))

    def asks(self, passage: int) -> list[Ask]:
        """Return a passage's own questions."""
        record, start = self.records[passage], int(self.start[passage])
        rows = {a.atom_id: start + i for i, a in enumerate(record.atoms)}
        return [Ask(question=q, passage=passage, gold=tuple(rows[i] for i in q.gold_atom_ids)) for q in record.qa_pairs]

    def lexical(self, passage: int | None = None) -> LexicalIndex:
        """Return the BM25 index of one passage, or of all."""
        if passage not in self._lexical:
            rows = slice(None) if passage is None else slice(self.start[passage], self.start[passage + 1])
            self._lexical[passage] = LexicalIndex.build(self.texts[rows], documents=self.passage_of[rows].tolist())
        return self._lexical[passage]

    def passage_candidates(self, ask: Ask) -> Candidates:
        """Return all atoms of the asked passage, and their BM25 in a bank of that passage alone."""
        rows = np.arange(self.start[ask.passage], self.start[ask.passage + 1])
        index, question = self.lexical(ask.passage), ask.question.question
        lexical = index.all_scores(question)
        return Candidates(rows, lexical, index.stretch_scores(question, lexical), index.evidence(question))

    @torch.no_grad()
    def query_keys(self, asks: Sequence[Ask]) -> Tensor:
        """Return query keys `[B, E]`."""
        return self.network.query_keys(self._features([a.question.question for a in asks]).pooled_ND)

    def library_candidates(
        self, asks: Sequence[Ask], key_BE: Tensor, *, visible: Sequence[np.ndarray] | None = None
    ) -> list[Candidates]:
        """Return stage 1 over all passages: cosine's and BM25's best, united, with their BM25.

        Args:
            visible: For each question a flat boolean mask of the atoms in its bank; None for all.
        """
        count = self.network.spec.router.num_candidates
        index, found = self.lexical(), []
        cosine_BN = key_BE @ self.key_NE.T
        if visible is not None:
            cosine_BN = cosine_BN.masked_fill(~torch.as_tensor(np.stack(visible), device=cosine_BN.device), -2.0)
        near_BC = cosine_BN.topk(min(count, len(self.atoms)), dim=-1).indices.cpu().numpy()
        for ask, rows, mask in zip(asks, near_BC, visible or [None] * len(asks), strict=True):
            lexical = index.all_scores(ask.question.question)
            stretch = index.stretch_scores(ask.question.question, lexical)
            if mask is not None:
                rows = rows[mask[rows]]
            if self.network.spec.router.lexical:
                words = lexical + stretch
                rows = np.union1d(rows, best_rows(words if mask is None else np.where(mask, words, 0.0), count))
            rows = np.sort(rows)
            evidence = index.evidence(ask.question.question, mask)
            found.append(Candidates(rows, lexical[rows], stretch[rows], evidence))
        return found

    def scored(self, key_BE: Tensor, candidates: Sequence[Candidates], *, width: int = 1) -> Scored:
        """Score candidates as stage 2 of the product does.

        Args:
            width: Columns at least, padding among them.
        """
        found = [Candidates(*c) for c in candidates]
        width = max(width, *(len(c.rows) for c in found))
        row_BC = np.zeros((len(found), width), dtype=np.int64)
        lexical_BC, stretch_BC = np.zeros((2, len(found), width), dtype=np.float32)
        valid_BC = np.zeros((len(found), width), dtype=bool)
        for i, (rows, lexical, stretch, _) in enumerate(found):
            row_BC[i, : len(rows)], lexical_BC[i, : len(rows)], valid_BC[i, : len(rows)] = rows, lexical, True
            if stretch is not None:
                stretch_BC[i, : len(rows)] = stretch
        row, lexical, stretch, valid = (
            torch.as_tensor(x, device=self.base.device) for x in (row_BC, lexical_BC, stretch_BC, valid_BC)
        )
        cosine_BC = (self.key_NE[row] * key_BE[:, None]).sum(-1)
        score_BC = self.network.router.score(cosine_BC, lexical, self.metadata_NM[row], stretch_BC=stretch)
        return Scored(row_BC=row, lexical_BC=lexical, valid_BC=valid, score_BC=score_BC)

    @torch.no_grad()
    def route(
        self,
        key_BE: Tensor,
        candidates: Sequence[Candidates],
        *,
        top_k: int,
        num_atoms: Sequence[int] | None = None,
        asks: Sequence[Ask] | None = None,
    ) -> RoutedAsks:
        """Score candidates and select `top_k`.

        Args:
            num_atoms: Size of each question's bank; None for all atoms.
            asks: The questions, where the model is to read the best candidates first, as far as the router weighs
                that; None chooses by the scores alone.
        """
        found = self.scored(key_BE, candidates, width=top_k)
        top_lexical_B = found.lexical_BC.max(1).values
        evidence_B = torch.tensor([Candidates(*c).evidence for c in candidates])
        router = self.network.router
        mean_refusal_B = torch.zeros(len(candidates))
        reads = asks is not None and router.num_read > 0
        if reads:
            found, refusal_BM = self.read(asks, found, num_read=max(top_k, router.num_read))
            found = replace(found, score_BC=router.after_reading(found.score_BC, refusal_BM))
            mean_refusal_B = (refusal_BM.sum(1) / found.valid_BC.sum(1).clamp(min=1)).cpu()
        routing = router.select(found.score_BC, found.valid_BC, top_k=top_k)
        row_BK = found.row_BC.gather(1, routing.index_BK)
        weighed_BK = routing.log_weight_BK > -torch.inf
        judged = (found.row_BC, found.valid_BC) if reads else (row_BK, weighed_BK)
        return RoutedAsks(
            row_BK=row_BK,
            log_weight_BK=routing.log_weight_BK,
            best_score_B=routing.score_BC.max(1).values,
            top_lexical_B=top_lexical_B,
            num_atoms_B=torch.tensor(num_atoms or [len(self.atoms)] * len(candidates)),
            doubts_BD=torch.cat([mean_refusal_B[:, None], self._doubts(asks, *judged), evidence_B[:, None]], dim=1),
        )

    def _doubts(self, asks: Sequence[Ask] | None, row_BM: Tensor, valid_BM: Tensor) -> Tensor:
        """Return what words say against an answer by some atoms, `[B, NUM_DOUBTS]`; 0 for unknown questions."""
        if asks is None:
            return torch.zeros(len(row_BM), NUM_DOUBTS)
        pairs = zip(asks, row_BM.tolist(), valid_BM.tolist(), strict=True)
        return torch.tensor(
            [
                doubts(ask.question.question, [self.texts[r] for r, v in zip(rows, valid, strict=True) if v])
                for ask, rows, valid in pairs
            ]
        )

    @torch.no_grad()
    def read(self, asks: Sequence[Ask], found: Scored, *, num_read: int) -> tuple[Scored, Tensor]:
        """Let the model read each of the best candidates alone.

        Returns:
            The `num_read` best candidates, best first, and log P of a refusal under each, nats `[B, M]`, 0 at padding.
        """
        num_read = min(num_read, found.score_BC.shape[1])
        score_BC = found.score_BC.masked_fill(~found.valid_BC, MASKED_SCORE)
        best_BM = score_BC.topk(num_read, dim=-1).indices
        best = Scored(**{name: tensor.gather(1, best_BM) for name, tensor in vars(found).items()})
        prompts = self._prompts(asks)
        pair_B, pair_M = best.valid_BC.nonzero(as_tuple=True)
        row_P = best.row_BC[pair_B, pair_M]
        refusal_P = [
            self._refusal_of_each([prompts[i] for i in pair_B[part].tolist()], row_P[part])
            for part in torch.arange(len(row_P), device=row_P.device).split(self._read_pairs)
            if len(part)  # banks of one article hold nothing without it
        ]
        refusal_BM = torch.zeros(best.score_BC.shape, device=row_P.device)
        if refusal_P:
            refusal_BM[pair_B, pair_M] = torch.cat(refusal_P)
        return best, refusal_BM

    def _refusal_of_each(self, prompts: Sequence[Sequence[int]], row_P: Tensor) -> Tensor:
        distinct_U, slot_rows_P = row_P.unique(return_inverse=True)
        return refusal_of_each(
            self.base,
            self.network.compiler,
            prompts,
            latent_PZ=self.latent_NZ[row_P],
            slots=self._slots(distinct_U),
            slot_rows_P=slot_rows_P,
        )

    def gold_route(self, asks: Sequence[Ask]) -> RoutedAsks:
        """Give every question its gold atoms in equal parts."""
        width = max(1, *(len(a.gold) for a in asks))
        row_BK = torch.zeros(len(asks), width, dtype=torch.long)
        weight_BK = torch.zeros(len(asks), width)
        for i, ask in enumerate(asks):
            row_BK[i, : len(ask.gold)] = torch.tensor(ask.gold)
            weight_BK[i, : len(ask.gold)] = 1 / max(1, len(ask.gold))
        row_BK, weight_BK = row_BK.to(self.base.device), weight_BK.to(self.base.device)
        ones = weight_BK.sum(1)
        return RoutedAsks(
            row_BK=row_BK,
            log_weight_BK=weight_BK.log(),
            best_score_B=ones,
            top_lexical_B=ones,
            num_atoms_B=ones,
            doubts_BD=torch.zeros(len(asks), 2 + NUM_DOUBTS),
        )

    @torch.no_grad()
    def adapter(self, routed: RoutedAsks) -> ComposedAdapter:
        """Compose the routed atoms."""
        rows = routed.row_BK
        distinct_U, slot_rows = rows.unique(return_inverse=True)
        return compose(
            self.network.compiler,
            routed.log_weight_BK.exp(),
            routed.log_weight_BK,
            latent_BKZ=self.latent_NZ[rows],
            slots=self._slots(distinct_U),
            slot_rows_BK=slot_rows,
            dtype=self.base.dtype,
        )

    def _slots(self, distinct_U: Tensor) -> AtomSlots | None:
        compiler, source = self.network.compiler, self.network.spec.kv.source
        if source == "tokens":
            tokens = None if self.base.device.type == "cuda" else CPU_SLOT_TOKENS
            entry = pad_entry(self.base, [self._entry[row] for row in distinct_U.tolist()])
            return token_slots(self.base, compiler, *entry, batch_tokens=tokens)
        if source == "latent":
            return latent_slots(self.base, compiler, self.latent_NZ[distinct_U])
        return None

    def _features(self, texts: Sequence[str], *, with_entry: bool = False) -> TextFeatures:
        tokens = GPU_ENCODE_TOKENS if self.base.device.type == "cuda" else None
        return text_features(self.base, self.network.spec, texts, with_entry=with_entry, batch_tokens=tokens)

    def _prompts(self, asks: Sequence[Ask], contexts: Sequence[str | None] | None = None) -> list[list[int]]:
        """Return the prompts' token ids; those without a context are kept, for a question is asked of many banks."""
        tokenizer = self.base.tokenizer
        questions = [ask.question.question for ask in asks]
        if contexts is not None:
            return all_prompt_ids(tokenizer, questions, contexts)
        new = [text for text in dict.fromkeys(questions) if text not in self._prompt]
        self._prompt.update(zip(new, all_prompt_ids(tokenizer, new), strict=True))
        return [self._prompt[text] for text in questions]

    def route_passages(self, key_BE: Tensor, asks: Sequence[Ask], *, top_k: int) -> RoutedAsks:
        """Route every question in a bank of its asked passage alone."""
        found = [self.passage_candidates(a) for a in asks]
        return self.route(key_BE, found, top_k=top_k, num_atoms=[len(c.rows) for c in found], asks=asks)

    def answer(
        self,
        asks: Sequence[Ask],
        adapter: ComposedAdapter | None,
        *,
        contexts: Sequence[str | None] | None = None,
        max_new_tokens: int = MAX_NEW_TOKENS,
        may_refuse: bool | None = None,
    ) -> list[Reply]:
        """Answer greedily under an adapter composed for exactly these questions.

        Args:
            may_refuse: False keeps every answer from beginning with the refusal; None as the memory is used: a gate
                that decides alone has the last word under an adapter.
        """
        tokenizer = self.base.tokenizer
        if may_refuse is None:
            may_refuse = adapter is None or not self.network.spec.router.gate_alone
        prompts = self._prompts(asks, contexts)
        questions = None if adapter is None else [ask.question.question for ask in asks]
        with attached(self.base, adapter):
            start = prefill(self.base, prompts, refusal_ids(tokenizer), questions=questions)
            begun = start if may_refuse else start.answering(tokenizer)
            ids = (
                continue_greedily(self.base, begun, max_new_tokens=max_new_tokens)
                if max_new_tokens
                else [[] for _ in asks]
            )
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        logprobs, refuses = start.refusal_logprob_B.tolist(), start.refuses_B.tolist()
        gains = self.gains(questions, start.question_logprob_BQ).tolist() if questions else [0.0] * len(asks)
        return [
            Reply(text=text.strip(), refusal_logprob=logprob, gain=added, overruled=refused and not may_refuse)
            for text, logprob, added, refused in zip(texts, logprobs, gains, refuses, strict=True)
        ]

    def gains(self, questions: Sequence[str], logprob_BQ: Tensor) -> Tensor:
        """Return what a memory adds to log P of the questions' tokens, nats `[B]`; the base is asked once."""
        new = [text for text in dict.fromkeys(questions) if text not in self._bare]
        for begin in range(0, len(new), READ_PAIRS):
            some = new[begin : begin + READ_PAIRS]
            self._bare.update(zip(some, bare_logprobs(self.base, some), strict=True))
        return gain(logprob_BQ, [self._bare[text] for text in questions])
