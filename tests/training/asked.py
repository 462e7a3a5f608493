"""Batches of questions over a few passages, for the tests of what is trained on them."""

import functools

import torch

from tests.training.samples import colours, make_record
from training.batches import Sampler, fixed_plan
from training.config import TrainConfig
from training.episodes import ANSWERABLE, build_episodes
from training.systems.documents import Documents
from training.systems.evidence import asked_passages

CONFIG = TrainConfig(
    global_batch=8, batch_route=6, share_sibling=0.25, share_absent=0.25, distill_top_k=20, distill_temperature=1.0
)
RECORDS = tuple(colours(8))
# One question, four answers: whoever does not read cannot get below the entropy of the answers.
LAKES = tuple(
    make_record(f"Lake {i}", [f"The lake is {colour}."], [("Its colour?", colour, [0])])
    for i, colour in enumerate(("red", "blue", "white", "black"))
)


@functools.cache
def sampler_of(records=RECORDS):
    """Return the sampler of some records."""
    return Sampler(build_episodes(records), CONFIG, "cpu")


def drawn(step=0, *, part=None):
    """Return a batch with near misses and absent documents in it."""
    plan = sampler_of().plan(step)
    return sampler_of().collate(plan.part(*part) if part else plan, None)


def answerable(records=RECORDS):
    """Return every answerable question, asked of its own passage."""
    sampler = sampler_of(records)
    return sampler.collate(fixed_plan(sampler.rows[ANSWERABLE], library=False), None)


def passages(batch, records=RECORDS):
    """Return the passages that a batch's language-model rows are asked of."""
    return asked_passages(batch, torch.tensor(Documents.of(records).passage_of_atom))
