"""What a batch's rows are asked of: which document, or which atoms; and another row's in its place.

A batch lists candidate atoms, for that is what a memory needs. Systems that read documents or text take theirs from
the same rows, so that all train on the same questions, near misses and absent documents.
"""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from training.batches import Batch


def asked_passages(batch: Batch, passage_of_atom_N: Tensor) -> Tensor:
    """Return the passage that each language-model row is asked of, `[B]`.

    The row's own passage stands in its first column; where it is left out, the passage of the best candidate by
    BM25 takes its place, for which the batch must hold candidates of other passages.
    """
    rows = slice(0, batch.num_lm)
    best_B = batch.lexical_BC[rows].masked_fill(~batch.valid_BC[rows], -1).argmax(-1)
    column_B = torch.where(batch.valid_BC[rows, 0], 0, best_B)
    return passage_of_atom_N[batch.candidate_BC[rows].gather(1, column_B[:, None]).squeeze(1)]


def best_atoms(batch: Batch, *, top_k: int) -> list[list[int]]:
    """Return the best candidates of each language-model row by BM25, flat atom rows, best first.

    Where they miss every gold atom, the best of those takes the last place, as it does for the memory.
    """
    rows = slice(0, batch.num_lm)
    valid_BC, gold_BC = batch.valid_BC[rows], batch.gold_BC[rows]
    score_BC = batch.lexical_BC[rows].masked_fill(~valid_BC, -1)
    index_BK = score_BC.topk(min(top_k, score_BC.shape[1]), dim=-1).indices
    missed_B = gold_BC.any(-1) & ~gold_BC.gather(1, index_BK).any(-1)
    best_gold_B = score_BC.masked_fill(~gold_BC, -2).argmax(-1)
    index_BK[:, -1] = torch.where(missed_B, best_gold_B, index_BK[:, -1])
    atom_BK, kept_BK = batch.candidate_BC[rows].gather(1, index_BK), valid_BC.gather(1, index_BK)
    return [atoms[kept].tolist() for atoms, kept in zip(atom_BK, kept_BK, strict=True)]


def swapped(batch: Batch, donor_B: Tensor) -> Batch:
    """Return the batch with each language-model row asked of what the row `donor_B[row]` is asked of.

    The memory is the one that the donor's question would be given; question and target stay.
    """
    row_B = torch.arange(len(batch.question_B), device=donor_B.device)
    row_B[: batch.num_lm] = donor_B
    values = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name.endswith("_BC")}
    return replace(batch, **{name: value[row_B] for name, value in values.items() if value is not None})


def strangers(batch: Batch, article_of_atom_N: Tensor) -> Tensor:
    """Return for each language-model row another one that is asked of another article, `[B]`.

    It is the next such row of the batch; a row that has none is its own stranger.
    """
    article_B = asked_passages(batch, article_of_atom_N)
    step_B = torch.arange(len(article_B), device=article_B.device)
    row_BB = (step_B[:, None] + step_B) % len(article_B)
    is_other_BB = article_B[row_BB] != article_B[:, None]
    return row_BB.gather(1, is_other_BB.long().argmax(-1, keepdim=True)).squeeze(1)
