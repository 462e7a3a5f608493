"""Micro-KV: with the layer's own projections, an atom's slots are that atom read as context."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from models.base import FrozenBase
from models.composer import compose, compose_prefix
from models.encoder import text_features
from models.injection import ComposedAdapter, attached
from models.microkv import latent_slots, pad_entry, token_slots
from models.network import MemoryNetwork
from tests.models.tiny import (
    FAMILIES,
    NUM_LAYERS,
    WINDOW,
    left_padded,
    random_ids,
    tiny_base,
    tiny_network,
    tiny_spec,
    whole_logits,
)

FIRST = NUM_LAYERS - 2  # the first memory layer


def _entry(base: FrozenBase, ids_BL: Tensor) -> Tensor:
    """States entering the first memory layer, of a text read on its own."""
    return base.run_layers(base.embed(ids_BL), start=0, stop=FIRST)


def _without_shared_prefix(base: FrozenBase) -> FrozenBase:
    base.prefix_ids = []
    base.prefix_states[FIRST] = torch.empty(1, 0, base.hidden_size)
    return base


def _answer(
    base: FrozenBase, network: MemoryNetwork, atoms: list[Tensor], weights: list[float], ids_BL: Tensor
) -> Tensor:
    """Logits of a question under the atoms' slots alone."""
    slots = token_slots(base, network.compiler, *pad_entry(base, atoms))
    log_weight_BK = torch.tensor([weights]).log()
    rows_BK = torch.arange(len(atoms))[None]
    prefix = compose_prefix(slots, rows_BK, log_weight_BK, scale=network.spec.kv.scale)
    with attached(base, ComposedAdapter(prefix=prefix)):
        return whole_logits(base, ids_BL)


def _run_upper(base: FrozenBase, x_LD: Tensor, positions_L: Tensor, full_LL: Tensor, sliding_LL: Tensor) -> Tensor:
    """Run the memory layers under written-out additive masks, and return the logits."""
    x_BLD, positions_BL = x_LD[None], positions_L[None]
    rotary = base.decoder.rotary_emb(x_BLD, positions_BL)
    for layer in range(FIRST, NUM_LAYERS):
        kinds = getattr(base.model.config, "layer_types", None) or ["full_attention"] * NUM_LAYERS
        mask_LL = sliding_LL if kinds[layer] == "sliding_attention" else full_LL
        x_BLD = base.layers[layer](
            x_BLD, attention_mask=mask_LL[None, None], position_embeddings=rotary, position_ids=positions_BL
        )
    return base.logits(x_BLD)[0]


def _blocked(allowed_LL: Tensor) -> Tensor:
    return torch.zeros(allowed_LL.shape).masked_fill(~allowed_LL, torch.finfo(torch.float32).min)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_of_the_layers_own_projections_are_the_atom_as_context(family: str) -> None:
    base = _without_shared_prefix(tiny_base(family))
    network = tiny_network(base)
    num_atom, num_question = (4, 4) if family == "gemma2" else (7, 9)  # within Gemma 2's window of 8
    atom_BL, ids_BL = random_ids(1, num_atom, seed=1), random_ids(1, num_question, seed=2)
    memory, question = _entry(base, atom_BL), _entry(base, ids_BL)

    ours = _answer(base, network, [memory[0]], [1.0], ids_BL)

    both = torch.cat([memory, question], dim=1)
    context = base.logits(base.run_layers(both, start=FIRST, stop=NUM_LAYERS))[:, num_atom:]
    assert_close(ours, context, atol=1e-5, rtol=0)
    assert (ours - whole_logits(base, ids_BL)).abs().max() > 0.05


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shared_prefix_is_seen_by_the_atom_and_not_by_the_question(family: str) -> None:
    """Longer than Gemma 2's window: tokens slide out of it, slots do not."""
    base = tiny_base(family)
    network = tiny_network(base)
    text, ids_BL = "The mill of Orla", random_ids(1, 13, seed=2)
    features = text_features(base, network.spec, [text], with_entry=True)
    ours = _answer(base, network, features.entry, [1.0], ids_BL)

    lead = _entry(base, torch.tensor([base.prefix_ids]))[0]
    states = [lead, features.entry[0], _entry(base, ids_BL)[0]]
    owner = torch.cat([torch.full((len(x),), number) for number, x in enumerate(states)])
    order = torch.arange(len(owner))
    distance = order[:, None] - order[None, :]
    causal = (distance >= 0) & ~((owner[:, None] == 2) & (owner[None, :] == 0))
    slot = (owner[:, None] == 2) & (owner[None, :] == 1)
    sliding = causal & ((distance < WINDOW) | slot)
    expected = _run_upper(base, torch.cat(states), order, _blocked(causal), _blocked(sliding))
    assert_close(ours[0], expected[-13:], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_two_atoms_are_two_contexts_weighed_by_their_log_weights(family: str) -> None:
    base = _without_shared_prefix(tiny_base(family))
    network = tiny_network(base)
    atoms = [_entry(base, random_ids(1, n, seed=n))[0] for n in (3, 6)]
    ids_BL, weights = random_ids(1, 7, seed=2), [0.7, 0.2]
    ours = _answer(base, network, atoms, weights, ids_BL)

    states = [*atoms, _entry(base, ids_BL)[0]]
    owner = torch.cat([torch.full((len(x),), number) for number, x in enumerate(states)])
    # Either atom ends where the question begins, at position 0.
    positions = torch.cat([torch.arange(-3, 0), torch.arange(-6, 0), torch.arange(7)])
    causal = torch.arange(16)[:, None] >= torch.arange(16)[None, :]
    mask = _blocked(causal & ((owner[:, None] == owner[None, :]) | (owner[:, None] == 2)))
    for number, weight in enumerate(weights):
        mask[(owner[:, None] == 2) & (owner[None, :] == number)] = torch.tensor(weight).log()
    expected = _run_upper(base, torch.cat(states), positions, mask, mask)
    assert_close(ours[0], expected[-7:], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("depth", ["layer", "entry"])
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_do_not_depend_on_the_atoms_beside_them(family: str, depth: str) -> None:
    base = tiny_base(family)
    compiler = tiny_network(base, tiny_spec(kv={"depth": depth})).compiler
    atoms = [_entry(base, random_ids(1, n, seed=n))[0] for n in (2, 11, 5)]
    # With 12 tokens at once the longest runs alone, behind the two others.
    for batch_tokens in (None, 12):
        together = token_slots(base, compiler, *pad_entry(base, atoms), batch_tokens=batch_tokens)
        assert together.mask_US.sum(-1).tolist() == [2, 11, 5]
        for row, atom in enumerate(atoms):
            alone = token_slots(base, compiler, *pad_entry(base, [atom]))
            for kind in ("key_UMHSF", "value_UMHSF"):
                ours = getattr(together, kind)[row, :, :, : len(atom)]
                assert_close(ours, getattr(alone, kind)[0], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_entry_depth_reads_the_first_memory_layers_states_for_all_layers(family: str) -> None:
    base = tiny_base(family)
    x_USD, lengths_U = pad_entry(base, [_entry(base, random_ids(1, 5))[0]])
    entry, layer = (
        token_slots(base, tiny_network(base, tiny_spec(kv={"depth": depth})).compiler, x_USD, lengths_U).value_UMHSF
        for depth in ("entry", "layer")
    )
    assert_close(entry[:, 0], layer[:, 0], atol=1e-5, rtol=0)
    last = NUM_LAYERS - 1
    value = base.attention_module(last).v_proj(base.layers[last].input_layernorm(x_USD))
    assert_close(entry[:, -1], value.unflatten(-1, (2, 16)).transpose(1, 2), atol=1e-5, rtol=0)
    assert not torch.allclose(entry[:, -1], layer[:, -1])


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_slots_of_weight_zero_are_gone_and_the_base_is_untouched(family: str) -> None:
    base = tiny_base(family)
    network = tiny_network(base)
    atoms = [_entry(base, random_ids(1, n, seed=n))[0] for n in (3, 6)]
    ids_BL = random_ids(1, 11, seed=2)
    assert_close(_answer(base, network, atoms, [0.0, 0.0], ids_BL), whole_logits(base, ids_BL), atol=5e-6, rtol=0)
    one = _answer(base, network, atoms[:1], [0.4], ids_BL)
    assert_close(_answer(base, network, atoms, [0.4, 0.0], ids_BL), one, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_published_scaling_lets_slots_of_weight_zero_take_attention_mass(family: str) -> None:
    base, ids_BL = tiny_base(family), random_ids(1, 11, seed=2)
    network = tiny_network(base, tiny_spec(kv={"scale": "values"}))
    atom = _entry(base, random_ids(1, 6, seed=6))[0]
    untouched = whole_logits(base, ids_BL)
    assert (_answer(base, network, [atom], [0.0], ids_BL) - untouched).abs().max() > 0.01


@torch.no_grad()
def test_left_padded_questions_see_the_same_slots() -> None:
    base = tiny_base("llama")
    network = tiny_network(base)
    atom = _entry(base, random_ids(1, 6, seed=6))[0]
    prompts = [random_ids(n, seed=n).tolist() for n in (4, 9)]
    ids_BL, mask_BL = left_padded(prompts)
    slots = token_slots(base, network.compiler, *pad_entry(base, [atom]))
    prefix = compose_prefix(slots, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1), scale="logits")
    with attached(base, ComposedAdapter(prefix=prefix)):
        together = whole_logits(base, ids_BL, mask_BL)
    for row, prompt in enumerate(prompts):
        alone = _answer(base, network, [atom], [1.0], torch.tensor([prompt]))[0]
        assert_close(together[row, -len(prompt) :], alone, atol=1e-5, rtol=0)


def test_gradients_reach_the_token_heads_and_not_the_base() -> None:
    base = tiny_base("qwen3")
    network = tiny_network(base)
    atom, ids_BL = _entry(base, random_ids(1, 6, seed=6))[0].detach(), random_ids(1, 5)
    slots = token_slots(base, network.compiler, *pad_entry(base, [atom]))
    prefix = compose_prefix(slots, torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1), scale="logits")
    with attached(base, ComposedAdapter(prefix=prefix)):
        base.model(ids_BL, use_cache=False).logits.square().mean().backward()
    for head in (network.compiler.kv_heads.key, network.compiler.kv_heads.value):
        assert (head.weight.grad.abs().amax((1, 2)) > 0).all()  # of every layer
    assert all(p.grad is None for p in base.model.parameters())


def test_latent_slots_are_rows_of_the_heads_output() -> None:
    base = tiny_base("llama")
    compiler = tiny_network(base, tiny_spec("paper", kv={"source": "latent"})).compiler
    with torch.no_grad():
        compiler.kv_heads.key.bias[0].copy_(torch.arange(3.0 * 2 * 16))  # 3 slots of 2 heads of 16
    slots = latent_slots(base, compiler, torch.zeros(2, 24))
    assert slots.mask_US.tolist() == [[True] * 3] * 2
    # slot 2, head 1, feature 5
    assert slots.key_UMHSF[1, 0, 1, 2, 5] == 2 * 32 + 16 + 5


@pytest.mark.parametrize("family", FAMILIES)
def test_latent_micro_kv_writes_into_the_base_and_trains_the_latent(family: str) -> None:
    base, ids_BL = tiny_base(family), random_ids(1, 11, seed=2)
    network = tiny_network(base, tiny_spec("paper", kv={"source": "latent"}))
    latent_BKZ = torch.randn(1, 2, 24, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight_BK = torch.tensor([[0.75, 0.25]])
    slots = latent_slots(base, network.compiler, latent_BKZ[0])
    adapter = compose(
        network.compiler,
        weight_BK,
        weight_BK.log(),
        latent_BKZ=latent_BKZ,
        slots=slots,
        slot_rows_BK=torch.tensor([[0, 1]]),
    )
    # paper: values are scaled by the weight, logits are not
    assert (adapter.prefix[FIRST].bias_BS == 0).all()
    assert_close(adapter.prefix[FIRST].value_BHSF[0, :, :3], 0.75 * slots.value_UMHSF[0, 0])
    with attached(base, ComposedAdapter(prefix=adapter.prefix)):
        logits = base.model(ids_BL, use_cache=False).logits
    assert (logits - whole_logits(base, ids_BL)).abs().max() > 0.01
    [gradient] = torch.autograd.grad(logits.square().mean(), latent_BKZ)
    assert (gradient.abs().sum(-1) > 0).all()
