"""Batches: which question is asked of which candidates, as tensors on the training device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC, SIBLING, UNANSWERABLE, Episodes

MAX_PASSAGE_ATOMS = 64

# The atoms of the whole library whose keys are nearest to some questions: rows [B] to flat atom rows [B, M].
Nearest = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Questions with their candidates; the first `num_lm` rows also run the language model.

    Args:
        candidate_BC: Flat atom rows; padding repeats row 0.
        valid_BC: Candidates of the bank that the row stands for.
        contrast_BC: Those and, whatever the bank, the best of the library: what the cosine alone is trained against.
        lexical_BC: Normalised BM25 under the bank that the row stands for.
        refuse_B: True where the target is the refusal.
        off_topic_B: True where nothing the bank holds has to do with the question, and no target is generated.
    """

    question_B: Tensor
    candidate_BC: Tensor
    valid_BC: Tensor
    contrast_BC: Tensor
    lexical_BC: Tensor
    gold_BC: Tensor
    distractor_BC: Tensor
    refuse_B: Tensor
    off_topic_B: Tensor
    num_lm: int


class Sampler:
    """Draws batches from episodes; all of its arrays live on `device`."""

    def __init__(self, episodes: Episodes, device: torch.device) -> None:
        self.device = device
        self.e = {k: torch.as_tensor(v, device=device) for k, v in vars(episodes).items()}
        kind = episodes.kind
        self.rows = {k: torch.as_tensor(np.flatnonzero(kind == k), device=device) for k in range(4)}
        self.near_miss = torch.cat([self.rows[SIBLING], self.rows[UNANSWERABLE]])

    def draw(self, config: TrainConfig, generator: torch.Generator, nearest: Nearest) -> Batch:
        """Draw one training batch."""
        num_miss = round(config.batch_lm * config.share_sibling) if len(self.near_miss) else 0
        num_absent = round(config.batch_lm * config.share_absent)
        lm = [
            self._pick(self.rows[ANSWERABLE], num_absent, generator),
            self._pick(self.near_miss, num_miss, generator),
            self._pick(self.rows[ANSWERABLE], config.batch_lm - num_miss - num_absent, generator),
        ]
        third = config.batch_route // 3
        route = [
            self._pick(self.rows[ANSWERABLE], config.batch_route - 2 * third, generator),
            self._pick(self.rows[ANSWERABLE], third, generator),
            self._pick(self.rows[OFF_TOPIC], third, generator),
        ]
        episode_B = torch.cat([*lm, *route])
        coin_B = torch.rand(len(episode_B), generator=generator, device=self.device)
        answerable_B = self.e["kind"][episode_B] == ANSWERABLE
        library_B = answerable_B & (coin_B < config.share_library)
        # Some answerable questions are asked of a library without their passage: a miss that looks like a hit.
        absent_B = torch.zeros_like(library_B)
        begin = config.batch_lm + config.batch_route - 2 * third
        absent_B[:num_absent] = True
        absent_B[begin : begin + third] = True
        return self.collate(episode_B, library_B | absent_B, absent_B, nearest, num_lm=config.batch_lm)

    def collate(
        self, episode_B: Tensor, library_B: Tensor, absent_B: Tensor, nearest: Nearest, *, num_lm: int
    ) -> Batch:
        """Build a batch from chosen episodes.

        Args:
            library_B: Candidates are the passage's atoms and the best 32 of the whole library by BM25 and by cosine,
                not the passage alone.
            absent_B: Leave the passage's own atoms out, so that nothing is gold.
            nearest: Finds the best by cosine.
        """
        e = self.e
        question_B, passage_B, kind_B = e["question"][episode_B], e["passage"][episode_B], e["kind"][episode_B]
        start_B, stop_B = e["atom_start"][passage_B], e["atom_start"][passage_B + 1]
        width = min(MAX_PASSAGE_ATOMS, int((stop_B - start_B).max()))
        steps = torch.arange(width, device=self.device)
        own_BC = start_B[:, None] + steps
        own_valid = (own_BC < stop_B[:, None]) & ~absent_B[:, None]
        local = _take(e["local_lexical"], e["local_start"][episode_B], steps)
        shared = _take(e["own_library_lexical"], e["own_library_start"][question_B], steps)
        own_lexical = torch.where(library_B[:, None], shared, local)
        words_BC, near_BM = e["library_rows"][question_B], nearest(question_B)
        known = (near_BM[:, :, None] == words_BC[:, None, :]).any(-1)
        far_BC = torch.cat([words_BC, near_BM.masked_fill(known, -1)], dim=1)
        far_lexical = torch.cat([e["library_lexical"][question_B], self.lexical(question_B, near_BM)], dim=1)
        home_B = e["passage_of_question"][question_B]
        at_home = (far_BC >= e["atom_start"][home_B][:, None]) & (far_BC < e["atom_start"][home_B + 1][:, None])
        far_valid = (far_BC >= 0) & ~at_home
        candidate = torch.cat([own_BC, far_BC], dim=1)
        contrast = torch.cat([own_valid, far_valid], dim=1)
        valid = torch.cat([own_valid, far_valid & library_B[:, None]], dim=1)
        lexical = torch.cat([own_lexical, far_lexical], dim=1) * valid
        gold = (candidate[:, :, None] == e["gold"][question_B][:, None, :]).any(-1) & valid
        hardest = lexical.masked_fill(gold | ~valid, -1).argmax(-1, keepdim=True)
        in_lm_B = torch.arange(len(episode_B), device=self.device) < num_lm
        return Batch(
            question_B=question_B,
            candidate_BC=candidate.masked_fill(~contrast, 0),
            valid_BC=valid,
            contrast_BC=contrast,
            lexical_BC=lexical,
            gold_BC=gold,
            distractor_BC=torch.zeros_like(gold).scatter_(1, hardest, True) & valid & ~gold,
            refuse_B=(kind_B == SIBLING) | (kind_B == UNANSWERABLE) | (absent_B & in_lm_B),
            off_topic_B=(kind_B == OFF_TOPIC) | (absent_B & ~in_lm_B),
            num_lm=num_lm,
        )

    def lexical(self, question_B: Tensor, atom_BM: Tensor) -> Tensor:
        """Return the normalised BM25 score, among the whole library, of any questions with any atoms."""
        e = self.e
        start, stop = e["term_start"][atom_BM], e["term_start"][atom_BM + 1]
        steps = torch.arange(int((stop - start).max()), device=self.device)
        place_BMT = start[..., None] + steps
        valid_BMT = place_BMT < stop[..., None]
        term_BMT = _take(e["term"], start, steps)
        hit_BMT = (term_BMT[..., None] == e["query_term"][question_B][:, None, None, :]).any(-1) & valid_BMT
        total_BM = (_take(e["term_weight"], start, steps) * hit_BMT).sum(-1)
        return (total_BM / e["query_bound"][question_B][:, None].to(total_BM.dtype)).clamp(0, 1)

    def _pick(self, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if count == 0 or len(rows) == 0:
            return rows[:0]
        return rows[torch.randint(len(rows), (count,), generator=generator, device=self.device)]


def _take(flat: Tensor, start: Tensor, steps: Tensor) -> Tensor:
    return flat[(start[..., None] + steps).clamp(max=len(flat) - 1)]
