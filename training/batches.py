"""Batches: which question is asked of which candidates, as tensors on the training device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.config import TrainConfig
from training.episodes import ANSWERABLE, OFF_TOPIC, SIBLING, UNANSWERABLE, Episodes

MAX_PASSAGE_ATOMS = 64


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Questions with their candidates; the first `num_lm` rows also run the language model.

    Args:
        candidate_BC: Flat atom rows; padding repeats row 0.
        lexical_BC: Normalised BM25 under the bank that the row stands for.
        refuse_B: True where the target is the refusal.
        off_topic_B: True where nothing the bank holds has to do with the question.
    """

    question_B: Tensor
    candidate_BC: Tensor
    valid_BC: Tensor
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

    def draw(self, config: TrainConfig, generator: torch.Generator) -> Batch:
        """Draw one training batch."""
        num_miss = round(config.batch_lm * config.share_sibling) if len(self.near_miss) else 0
        lm = [
            self._pick(self.rows[ANSWERABLE], config.batch_lm - num_miss, generator),
            self._pick(self.near_miss, num_miss, generator),
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
        absent_B[begin : begin + third] = True
        return self.collate(episode_B, library_B | absent_B, absent_B, num_lm=config.batch_lm)

    def collate(self, episode_B: Tensor, library_B: Tensor, absent_B: Tensor, *, num_lm: int) -> Batch:
        """Build a batch from chosen episodes.

        Args:
            library_B: Candidates are the passage's atoms and the best 32 of the whole library, not the passage alone.
            absent_B: Leave the passage's own atoms out, so that nothing is gold.
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
        far_BC, far_lexical = e["library_rows"][question_B], e["library_lexical"][question_B]
        home_B = e["passage_of_question"][question_B]
        at_home = (far_BC >= e["atom_start"][home_B][:, None]) & (far_BC < e["atom_start"][home_B + 1][:, None])
        far_valid = library_B[:, None] & (far_BC >= 0) & ~at_home
        candidate = torch.cat([own_BC, far_BC], dim=1)
        valid = torch.cat([own_valid, far_valid], dim=1)
        lexical = torch.cat([own_lexical, far_lexical], dim=1) * valid
        gold = (candidate[:, :, None] == e["gold"][question_B][:, None, :]).any(-1) & valid
        hardest = lexical.masked_fill(gold | ~valid, -1).argmax(-1, keepdim=True)
        return Batch(
            question_B=question_B,
            candidate_BC=candidate.masked_fill(~valid, 0),
            valid_BC=valid,
            lexical_BC=lexical,
            gold_BC=gold,
            distractor_BC=torch.zeros_like(gold).scatter_(1, hardest, True) & valid & ~gold,
            refuse_B=(kind_B == SIBLING) | (kind_B == UNANSWERABLE),
            off_topic_B=(kind_B == OFF_TOPIC) | absent_B,
            num_lm=num_lm,
        )

    def _pick(self, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if count == 0 or len(rows) == 0:
            return rows[:0]
        return rows[torch.randint(len(rows), (count,), generator=generator, device=self.device)]


def _take(flat: Tensor, start_B: Tensor, steps: Tensor) -> Tensor:
    return flat[(start_B[:, None] + steps).clamp(max=len(flat) - 1)]
