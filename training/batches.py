"""Batches: which question is asked of which candidates, as tensors on the training device.

What a step asks is a plan, drawn on the CPU from the seed and the step alone. Every process draws the plan of the
whole global batch and takes its part, so neither the number of processes nor a resumed run changes the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC, SIBLING, UNANSWERABLE, Episodes

MAX_PASSAGE_ATOMS = 64
MAX_IRRELEVANT = 32  # of a global batch; a sample is enough for the mean of a norm
NUM_RANDOM = 2048  # atoms of the whole library that every key of a global batch is held against

# The atoms of the whole library whose keys are nearest to some questions: rows [B] to flat atom rows [B, M].
Nearest = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The questions of a step, as arrays over rows; the first `num_lm` also run the language model.

    Args:
        library_B: Candidates are the passage's atoms and the best 32 of the whole library by BM25 and by cosine, not
            the passage alone.
        absent_B: Leave the passage's own atoms out, so that nothing is gold.
        withheld_B: Leave the gold and supporting atoms out: the right passage, without the answer.
        suppress_B: The adapter composed for this question should vanish.
        coin_B: A uniform number a question, for what the step decides at random.
        random_R: Flat rows of atoms drawn from all, the same for every part.
    """

    episode_B: np.ndarray
    library_B: np.ndarray
    absent_B: np.ndarray
    withheld_B: np.ndarray
    suppress_B: np.ndarray
    coin_B: np.ndarray
    random_R: np.ndarray
    num_lm: int

    def part(self, index: int, num_parts: int) -> Plan:
        """Return every `num_parts`-th row of both kinds, from row `index` on."""
        lm = np.arange(index, self.num_lm, num_parts)
        rows = np.concatenate([lm, np.arange(self.num_lm + index, len(self.episode_B), num_parts)])
        return replace(self, **{k: v[rows] for k, v in vars(self).items() if k.endswith("_B")}, num_lm=len(lm))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Questions with their candidates; the first `num_lm` rows also run the language model.

    Args:
        candidate_BC: Flat atom rows; padding repeats row 0.
        valid_BC: Candidates of the bank that the row stands for.
        contrast_BC: Those and, whatever the bank, the best of the library: what the cosine alone is trained against.
        random_R: Atoms drawn from all, against which it is trained too.
        random_BR: Those of them that are not from the question's own passage, whose atoms are candidates already.
        lexical_BC: Normalised BM25 under the bank that the row stands for.
        distractor_BC: The annotated ones; the lexically nearest other candidate where none are annotated.
        group_BC: Conflict group, -1 for none.
        refuse_B: True where the target is the refusal.
        coin_B: A uniform number a question.
        suppress: Rows whose adapter should vanish.
        rerank_BC: The cross-encoder's scores, where there is one; 0 outside of the asked passage.
    """

    question_B: Tensor
    candidate_BC: Tensor
    valid_BC: Tensor
    contrast_BC: Tensor
    random_R: Tensor
    random_BR: Tensor
    lexical_BC: Tensor
    gold_BC: Tensor
    supporting_BC: Tensor
    distractor_BC: Tensor
    group_BC: Tensor
    refuse_B: Tensor
    coin_B: Tensor
    suppress: Tensor
    num_lm: int
    rerank_BC: Tensor | None = None


class Sampler:
    """Plans steps over episodes and collates them; the arrays that batches need live on `device`.

    A sample is a document with at most `questions_per_document` of its questions; a document with more gives several.
    An epoch visits every sample once, in an order of its own. `answered` are the episodes that the language model can
    be trained on: answerable, with a reference answer. Answerable ones without train the router alone.

    Args:
        rerank: The cross-encoder's scores, in the places of `local_lexical`; None where there is none.
    """

    def __init__(
        self,
        episodes: Episodes,
        config: TrainConfig,
        device: torch.device | str,
        *,
        rerank: np.ndarray | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.host = episodes
        self.e = {k: torch.as_tensor(v, device=device) for k, v in vars(episodes).items()}
        self.text_N = torch.repeat_interleave(self.e["text"], self.e["atom_start"].diff())
        self.rerank = None if rerank is None else torch.as_tensor(rerank, device=device)
        self.rows = {kind: np.flatnonzero(episodes.kind == kind) for kind in range(4)}
        self.answered = self.rows[ANSWERABLE][episodes.has_answer[episodes.question[self.rows[ANSWERABLE]]]]
        self.near_misses = [self.rows[kind] for kind in (SIBLING, UNANSWERABLE) if len(self.rows[kind])]
        self.samples_SQ = _samples(episodes, config)
        self._num_terms = int(np.diff(episodes.term_start).max(initial=1))
        self._order = lru_cache(2)(self._order)

    @property
    def num_miss(self) -> int:
        """Near misses a step among the language model's questions."""
        return round(self.config.global_batch * self.config.share_sibling) if self.near_misses else 0

    @property
    def samples_per_step(self) -> int:
        """Samples that a step takes from the epoch's order."""
        return self.config.global_batch - self.num_miss

    def epochs(self, step: int) -> float:
        """Return how often the samples have been visited after `step` steps."""
        return step * self.samples_per_step / len(self.samples_SQ)

    def plan(self, step: int) -> Plan:
        """Return the global batch of optimiser step `step`, from 0."""
        config, kind = self.config, self.host.kind
        rng = np.random.default_rng((config.seed, step))
        own = self._samples(step).ravel()
        own = own[own >= 0]
        third = config.batch_route // 3
        is_answerable = kind[own] == ANSWERABLE
        has_target = np.where(is_answerable, np.isin(own, self.answered), config.refuse_near_miss)
        # As many of each kind: a sibling's question is often far off, an unanswerable one of its own passage is not.
        kinds = len(self.near_misses)
        misses = [_pick(rng, rows, (self.num_miss + i) // kinds) for i, rows in enumerate(self.near_misses)]
        lm = np.concatenate([own[has_target], *misses])
        route = [
            own[~has_target & ~is_answerable],
            _pick(rng, self.rows[OFF_TOPIC], third),
            _pick(rng, self.rows[ANSWERABLE], third),
            _pick(rng, self.rows[ANSWERABLE], config.batch_route - 2 * third),
            own[~has_target & is_answerable],
        ]
        episode = np.concatenate([lm, *route])
        absent = np.zeros(len(episode), dtype=bool)
        # Some answerable questions are asked of a library without their passage: a miss that looks like a hit.
        absent[: round(config.global_batch * config.share_absent)] = True
        withheld = np.zeros(len(episode), dtype=bool)
        first = round(config.global_batch * config.share_absent)
        withheld[first : first + round(config.global_batch * config.share_withheld)] = True
        begin = len(lm) + len(route[0]) + len(route[1])
        absent[begin : begin + len(route[2])] = True
        in_library = (kind[episode] == ANSWERABLE) & (rng.random(len(episode)) < config.share_library)
        vanishing = np.arange(len(lm), begin + len(route[2]))
        suppress = np.zeros(len(episode), dtype=bool)
        # Evenly, so that every kind of off-topic row takes part.
        suppress[vanishing[:: max(1, -(-len(vanishing) // MAX_IRRELEVANT))]] = True
        num_atoms = int(self.host.atom_start[-1])
        return Plan(
            episode_B=episode,
            library_B=in_library | absent,
            absent_B=absent,
            withheld_B=withheld,
            suppress_B=suppress,
            coin_B=rng.random(len(episode), dtype=np.float32),
            random_R=rng.choice(num_atoms, min(NUM_RANDOM, num_atoms), replace=False),
            num_lm=len(lm),
        )

    def collate(self, plan: Plan, nearest: Nearest | None) -> Batch:
        """Build the batch of a plan, without waiting for the device.

        Args:
            nearest: Finds the library's best atoms by cosine; None leaves them to BM25, and where no row asks the
                library, every other passage's atoms out.
        """
        e = self.e
        in_lm = np.arange(len(plan.episode_B)) < plan.num_lm
        flags = self._send(np.stack([plan.library_B, plan.absent_B, plan.withheld_B, in_lm]))
        episode_B, (library_B, absent_B, withheld_B, in_lm_B) = self._send(plan.episode_B), flags
        question_B, passage_B, kind_B = e["question"][episode_B], e["passage"][episode_B], e["kind"][episode_B]
        passages = self.host.passage[plan.episode_B]
        width = int((self.host.atom_start[passages + 1] - self.host.atom_start[passages]).max(initial=1))
        steps = torch.arange(min(MAX_PASSAGE_ATOMS, width), device=self.device)
        candidate = e["atom_start"][passage_B][:, None] + steps
        valid = (candidate < e["atom_start"][passage_B + 1][:, None]) & ~absent_B[:, None]
        contrast = valid
        local = _take(e["local_lexical"], e["local_start"][episode_B], steps)
        shared = _take(e["own_library_lexical"], e["own_library_start"][question_B], steps)
        lexical = torch.where(library_B[:, None], shared, local)
        if nearest is not None or plan.library_B.any():
            far, far_valid, far_lexical = self._far(question_B, nearest)
            candidate = torch.cat([candidate, far], dim=1)
            contrast = torch.cat([valid, far_valid], dim=1)
            valid = torch.cat([valid, far_valid & library_B[:, None]], dim=1)
            lexical = torch.cat([lexical, far_lexical], dim=1)
        gold, supporting = (_among(candidate, e[role][question_B]) for role in ("gold", "supporting"))
        valid = valid & ~((gold | supporting) & withheld_B[:, None])
        lexical = lexical * valid
        gold = gold & valid
        random_R = self._send(plan.random_R)
        refuse_B = (kind_B == SIBLING) | (kind_B == UNANSWERABLE) | ((absent_B | withheld_B) & in_lm_B)
        return Batch(
            question_B=question_B,
            candidate_BC=candidate.masked_fill(~contrast, 0),
            valid_BC=valid,
            contrast_BC=contrast,
            random_R=random_R,
            random_BR=~self._at_home(question_B, random_R[None]),
            lexical_BC=lexical,
            gold_BC=gold,
            supporting_BC=supporting & valid,
            distractor_BC=self._distractors(question_B, candidate, valid, gold, lexical),
            group_BC=e["group"][candidate.masked_fill(~valid, 0)].masked_fill(~valid, -1),
            refuse_B=refuse_B,
            coin_B=self._send(plan.coin_B),
            suppress=self._send(np.flatnonzero(plan.suppress_B)),
            num_lm=plan.num_lm,
            rerank_BC=self._reranked(episode_B, steps, valid),
        )

    def lexical(self, question_B: Tensor, atom_BM: Tensor) -> Tensor:
        """Return the normalised BM25 score, among the whole library, of any questions with any atoms."""
        e = self.e
        start, stop = e["term_start"][atom_BM], e["term_start"][atom_BM + 1]
        steps = torch.arange(self._num_terms, device=self.device)
        valid_BMT = start[..., None] + steps < stop[..., None]
        term_BMT = _take(e["term"], start, steps)
        hit_BMT = (term_BMT[..., None] == e["query_term"][question_B][:, None, None, :]).any(-1) & valid_BMT
        total_BM = (_take(e["term_weight"], start, steps) * hit_BMT).sum(-1)
        return (total_BM / e["query_bound"][question_B][:, None].to(total_BM.dtype)).clamp(0, 1)

    def _far(self, question_B: Tensor, nearest: Nearest | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the library's best atoms by BM25 and by cosine, without the question's own passage's."""
        e = self.e
        far, lexical = e["library_rows"][question_B], e["library_lexical"][question_B]
        if nearest is not None:
            near_BM = nearest(question_B)
            known = (near_BM[:, :, None] == far[:, None, :]).any(-1)
            far = torch.cat([far, near_BM.masked_fill(known, -1)], dim=1)
            lexical = torch.cat([lexical, self.lexical(question_B, near_BM)], dim=1)
        return far, (far >= 0) & ~self._at_home(question_B, far.clamp(min=0)), lexical

    def _at_home(self, question_B: Tensor, atom: Tensor) -> Tensor:
        """Return which atoms `[B, M]`, or `[1, M]` for all rows, are from the question's passage or a copy of it."""
        home_B = self.e["text"][self.e["passage_of_question"][question_B]]
        return self.text_N[atom] == home_B[:, None]

    def _distractors(
        self, question_B: Tensor, candidate: Tensor, valid: Tensor, gold: Tensor, lexical: Tensor
    ) -> Tensor:
        annotated = _among(candidate, self.e["distractor"][question_B]) & valid
        hardest = lexical.masked_fill(gold | ~valid, -1).argmax(-1, keepdim=True)
        nearest = torch.zeros_like(gold).scatter_(1, hardest, True)
        return torch.where(annotated.any(-1, keepdim=True), annotated, nearest) & valid & ~gold

    def _reranked(self, episode_B: Tensor, steps: Tensor, valid: Tensor) -> Tensor | None:
        if self.rerank is None:
            return None
        own = _take(self.rerank, self.e["local_start"][episode_B], steps)
        return torch.nn.functional.pad(own, (0, valid.shape[1] - own.shape[1])) * valid

    def _samples(self, step: int) -> np.ndarray:
        """Return the samples of a step, `[samples_per_step, Q]` episodes padded with -1."""
        number = np.arange(step * self.samples_per_step, (step + 1) * self.samples_per_step)
        epochs, places = np.divmod(number, len(self.samples_SQ))
        return self.samples_SQ[[self._order(int(e))[p] for e, p in zip(epochs, places, strict=True)]]

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.config.seed, epoch, 1)).permutation(len(self.samples_SQ))

    def _send(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array).to(self.device, non_blocking=True)


def fixed_plan(episode_B: np.ndarray, *, library: bool) -> Plan:
    """Return a plan that asks all of some episodes, with nothing left to chance."""
    no = np.zeros(len(episode_B), dtype=bool)
    return Plan(
        episode_B=episode_B,
        library_B=no | library,
        absent_B=no,
        withheld_B=no,
        suppress_B=no,
        coin_B=np.ones(len(episode_B), dtype=np.float32),
        random_R=np.empty(0, dtype=np.int64),
        num_lm=len(episode_B),
    )


def _samples(episodes: Episodes, config: TrainConfig) -> np.ndarray:
    """Group the questions that are asked of their own passage, `[S, Q]` episodes padded with -1."""
    kinds = (ANSWERABLE,) if config.refuse_near_miss else (ANSWERABLE, UNANSWERABLE)
    rows = np.flatnonzero(np.isin(episodes.kind, kinds))
    passage = episodes.passage[rows]
    rows = rows[np.argsort(passage, kind="stable")]
    groups = np.split(rows, np.flatnonzero(np.diff(np.sort(passage))) + 1)
    size = config.questions_per_document
    parts = [group[i : i + size] for group in groups for i in range(0, len(group), size)]
    return np.stack([np.pad(p, (0, size - len(p)), constant_values=-1) for p in parts])


def _pick(rng: np.random.Generator, rows: np.ndarray, count: int) -> np.ndarray:
    return rng.choice(rows, count) if count and len(rows) else rows[:0]


def _among(candidate_BC: Tensor, rows_BG: Tensor) -> Tensor:
    return (candidate_BC[:, :, None] == rows_BG[:, None, :]).any(-1)


def _take(flat: Tensor, start: Tensor, steps: Tensor) -> Tensor:
    return flat[(start[..., None] + steps).clamp(max=len(flat) - 1)]
