"""The upper layers as graphs: the same answers and gradients as without, and none where one would be wrong."""

import logging
from dataclasses import replace

import pytest
import torch

from models.base import FrozenBase
from models.static_lora import StaticLora
from tests.models.tiny import tiny_model, tiny_network, tiny_spec, tiny_tokenizer
from tests.training.samples import river_and_town
from tests.training.worlds import CONFIG, SPECS, base_of, step_of, world
from training.step import TrainStep
from training.upper import SEEN_BEFORE, UpperLayers, cuda_graphs, rounded_up, taken_apart

RECORDS = river_and_town()
NUM_STEPS = SEEN_BEFORE + 3


class Replays:
    """A stand-in for CUDA graphs: fixed shapes, memory of their own, which the next replay overwrites."""

    def __init__(self):
        self.made, self.replayed = 0, 0

    def __call__(self, function, own):
        self.made += 1
        gradients = [torch.zeros_like(x) for x in own]

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *args):
                self.replayed += 1
                for mine, given in zip(own, args, strict=True):
                    assert mine.shape == given.shape
                    mine.data.copy_(given)
                with torch.enable_grad():
                    Replay.out = function(*own)
                return Replay.out.detach()

            @staticmethod
            def backward(ctx, gradient):
                trained = [i for i, x in enumerate(own) if x.requires_grad]
                found = torch.autograd.grad(Replay.out, [own[i] for i in trained], gradient, allow_unused=True)
                out = [None] * len(own)
                for i, value in zip(trained, found, strict=True):
                    gradients[i].copy_(0 * own[i] if value is None else value)
                    out[i] = gradients[i].detach()
                return tuple(out)

        return Replay.apply


def gradients_of(step, batches, config, names, *, steps_between_zeros=1):
    """Return losses and gradients, one after the other, of steps that add up their gradients in between."""
    found = []
    for number, batch in enumerate(batches):
        if number % steps_between_zeros == 0:
            step.network.zero_grad()
        sums = step(batch, replace(config.phase_at(0, 0.0), weights=dict.fromkeys(names, 1.0)))
        sum(sums[name][0] / sums[name][1].clamp(min=1) for name in names).backward()
        found.append([sums[name][0].item() for name in names])
        found.append([p.grad.clone() for p in step.network.parameters() if p.grad is not None])
    return found


@pytest.mark.parametrize("names", [("lm",), ("lm", "composition")])
@pytest.mark.parametrize("recipe", SPECS)
def test_a_step_with_graphs_has_the_losses_and_gradients_of_one_without(recipe, names):
    replays = Replays()
    plain, sampler = world("llama", recipe, RECORDS)
    graphed = TrainStep(plain.base, plain.network, plain.features, plain.metadata_NM, plain.config, capture=replays)
    batches = [sampler.collate(sampler.plan(0), plain.nearest)] * NUM_STEPS
    wanted = gradients_of(plain, batches, plain.config, names, steps_between_zeros=2)
    found = gradients_of(graphed, batches, plain.config, names, steps_between_zeros=2)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert replays.made == 1
    # The second pass of a step comes before the first one's backward pass: it runs without.
    assert replays.replayed == NUM_STEPS - SEEN_BEFORE // len(names)


def test_gradients_of_a_lora_add_up_although_graphs_overwrite_them():
    base, spec = base_of("qwen3"), tiny_spec("d2a")
    lora, replays = StaticLora(spec, base), Replays()
    torch.nn.init.normal_(lora.b_1OR[0])
    state = torch.randn(NUM_STEPS, 3, 5, base.hidden_size)
    mask = torch.ones(3, 5, dtype=torch.bool)

    def gradients(capture):
        upper = UpperLayers(base, lora.first_layer, capture=capture)
        lora.zero_grad()
        for x in state:
            upper.states(lora.adapter(), x, mask).square().mean().backward()
        return [p.grad.clone() for p in lora.parameters()]

    torch.testing.assert_close(gradients(replays), gradients(None), atol=1e-5, rtol=1e-4)
    assert replays.replayed == NUM_STEPS - SEEN_BEFORE


def test_passes_without_a_gradient_run_without_a_graph():
    base = base_of("llama")
    lora, replays = StaticLora(tiny_spec("d2a"), base), Replays()
    upper = UpperLayers(base, lora.first_layer, capture=replays)
    x, mask = torch.randn(2, 4, base.hidden_size), torch.ones(2, 4, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            upper.states(lora.adapter(), x, mask)
    assert replays.made == 0


def test_where_no_graph_can_be_made_the_run_goes_on_and_says_so_once(caplog):
    def fails(function, own):
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    base = base_of("llama")
    lora = StaticLora(tiny_spec("d2a"), base)
    upper = UpperLayers(base, lora.first_layer, capture=fails)
    x, mask = torch.randn(2, 4, base.hidden_size), torch.ones(2, 4, dtype=torch.bool)
    with caplog.at_level(logging.WARNING):
        for _ in range(NUM_STEPS + 2):
            out = upper.states(lora.adapter(), x, mask)
    torch.testing.assert_close(out, UpperLayers(base, lora.first_layer).states(lora.adapter(), x, mask))
    assert [r.message for r in caplog.records] == ["no CUDA graphs: operation not permitted when stream is capturing"]


def test_an_adapter_is_taken_apart_into_distinct_tensors_and_put_together_again():
    step, sampler = world("gemma2", "d2a", RECORDS)
    batch = sampler.collate(sampler.plan(0), step.nearest)
    routed = step.route(batch, top_k=2)
    rows = slice(0, batch.num_lm)
    adapter = step.adapter(routed, routed.routing.index_BK[rows], routed.routing.log_weight_BK[rows])
    tensors, joined = taken_apart(adapter)
    # Two factors a site, keys and values a layer, and one bias for all layers.
    assert len(tensors) == 2 * len(adapter.lora) + 2 * len(adapter.prefix) + 1
    again = joined(tensors)
    assert again.lora.keys() == adapter.lora.keys()
    assert all(again.prefix[layer] == prefix for layer, prefix in adapter.prefix.items())


def test_lengths_are_rounded_up_with_zeros():
    assert rounded_up(torch.ones(2, 3, 1), 1, 4)[..., 0].tolist() == [[1, 1, 1, 0]] * 2
    assert rounded_up(torch.ones(2, 4, dtype=torch.bool), 1, 4).tolist() == [[True] * 4] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("recipe", SPECS)
def test_cuda_graphs_give_the_losses_and_gradients_of_a_step_without(family, recipe):
    base = FrozenBase(
        tiny_model(family).to("cuda"), tiny_tokenizer(), attention="eager" if family == "gemma2" else "sdpa"
    )
    network = tiny_network(base, SPECS[recipe]).to("cuda").train()
    plain, sampler = step_of(base, network, RECORDS)
    plain.metadata_NM = plain.metadata_NM.to("cuda")
    graphed = TrainStep(base, network, plain.features, plain.metadata_NM, CONFIG, capture=cuda_graphs())
    batches = [sampler.collate(sampler.plan(0), plain.nearest)] * NUM_STEPS
    wanted = gradients_of(plain, batches, CONFIG, ("lm",), steps_between_zeros=2)
    found = gradients_of(graphed, batches, CONFIG, ("lm",), steps_between_zeros=2)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    assert graphed.upper.capture is not None and len(graphed.upper._graphs) == 1
