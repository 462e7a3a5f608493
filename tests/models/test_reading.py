"""Reading: each candidate's refusal is that of a memory of it alone; what a memory adds to a question."""

import pytest
import torch
from torch.testing import assert_close

from models.composer import compose
from models.encoder import text_features
from models.generation import prefill
from models.injection import attached
from models.microkv import latent_slots, pad_entry, token_slots
from models.prompts import prompt_ids, refusal_ids
from models.reading import bare_logprobs, gain, refusal_of_each
from tests.models.tiny import FAMILIES, tiny_base, tiny_network, tiny_spec

ATOMS = ["Otters live in lake Tor.", "Mayor Ilse Kant rules Marn.", "Hens sleep."]
PAIRS = [("Who rules Marn?", 1), ("Who rules Marn?", 0), ("What do hens do at night in lake Tor?", 2)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("source", ["tokens", "latent", "none"])
def test_pairs_read_together_refuse_as_each_alone(family: str, source: str) -> None:
    base = tiny_base(family)
    spec = tiny_spec("d2a", kv={"source": source, "num_slots": 24 if source == "tokens" else 3})
    network = tiny_network(base, spec).requires_grad_(False)
    features = text_features(base, spec, ATOMS, with_entry=source == "tokens")
    latent_UZ = network.compile_atoms(features.pooled_ND)[1]
    prompts = [prompt_ids(base.tokenizer, question) for question, _ in PAIRS]
    rows_P = torch.tensor([atom for _, atom in PAIRS])

    def slots_of(rows: list[int]):
        if source == "tokens":
            return token_slots(base, network.compiler, *pad_entry(base, [features.entry[r] for r in rows]))
        return latent_slots(base, network.compiler, latent_UZ[rows]) if source == "latent" else None

    together = refusal_of_each(
        base,
        network.compiler,
        prompts,
        latent_PZ=latent_UZ[rows_P],
        slots=slots_of([0, 1, 2]),
        slot_rows_P=rows_P,
    )
    factors = network.compiler.factors(latent_UZ[rows_P])
    stored = refusal_of_each(
        base, network.compiler, prompts, factors=factors, slots=slots_of([0, 1, 2]), slot_rows_P=rows_P
    )
    alone = []
    for prompt, (_, atom) in zip(prompts, PAIRS, strict=True):
        adapter = compose(
            network.compiler,
            torch.ones(1, 1),
            torch.zeros(1, 1),
            latent_BKZ=latent_UZ[[atom]][None],
            slots=slots_of([atom]),
            slot_rows_BK=torch.zeros(1, 1, dtype=torch.long),
        )
        with attached(base, adapter):
            alone.append(prefill(base, [prompt], refusal_ids(base.tokenizer)).refusal_logprob_B[0])
    assert_close(together, torch.stack(alone), atol=1e-4, rtol=0)
    assert_close(stored, together, atol=1e-4, rtol=0)
    assert abs(together[0] - together[1]) > 1e-3  # the same question under another atom


def test_a_refusal_of_one_token_is_read_too(monkeypatch) -> None:
    base = tiny_base("llama")
    network = tiny_network(base, tiny_spec("d2a", kv={"source": "none"})).requires_grad_(False)
    latent_UZ = network.compile_atoms(text_features(base, network.spec, ATOMS, with_entry=False).pooled_ND)[1]
    monkeypatch.setattr("models.reading.refusal_ids", lambda _: [9])
    prompts = [prompt_ids(base.tokenizer, question) for question, _ in PAIRS]
    together = refusal_of_each(base, network.compiler, prompts, latent_PZ=latent_UZ)
    for row, prompt in enumerate(prompts):
        one_11 = torch.ones(1, 1)
        with attached(base, compose(network.compiler, one_11, one_11.log(), latent_BKZ=latent_UZ[None, [row]])):
            assert_close(together[row], prefill(base, [prompt], [9]).refusal_logprob_B[0], atol=1e-4, rtol=0)


def test_a_gain_is_that_of_the_likelier_tokens_whatever_the_width_of_the_batches() -> None:
    under_BQ = torch.tensor([[-1.0, -2.0, -4.0], [0.0, -3.0, -0.5]])
    bare = [torch.tensor([0.0, -3.0, -1.5, -4.5]), torch.tensor([-1.0, -1.0])]
    # -1 + 3 = 2, -2 + 1.5 = -0.5, -4 + 4.5 = 0.5; and a question of two tokens: -3 + 1 = -2, -0.5 + 1 = 0.5
    assert gain(under_BQ, bare).tolist() == [2.5, 0.5]
    assert gain(under_BQ, list(under_BQ)).tolist() == [0.0, 0.0]


def test_the_bare_base_scores_questions_together_as_each_alone() -> None:
    base, questions = tiny_base(FAMILIES[0]), [question for question, _ in PAIRS[1:]]
    together = bare_logprobs(base, questions)
    alone = [bare_logprobs(base, [question])[0] for question in questions]
    for row, expected in zip(together, alone, strict=True):
        assert_close(row[len(row) - len(expected) :], expected, atol=1e-4, rtol=0)
    assert together.shape == (2, len(alone[1])) and len(alone[0]) < len(alone[1])
