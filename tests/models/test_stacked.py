"""Stacks: one product for many maps gives what each map gives alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from models.base import Site
from models.stacked import BySite, StackedLinear


def _site(layer: int, out_features: int = 2) -> Site:
    return Site(layer=layer, module="v_proj", in_features=3, out_features=out_features)


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_gives_what_each_map_gives_alone(bias: bool) -> None:
    layer = StackedLinear(3, 5, 4, bias=bias)
    x_NI, x_GNI = torch.randn(2, 5), torch.randn(3, 2, 5)
    for x, each in ((x_NI, [x_NI] * 3), (x_GNI, x_GNI.unbind(0))):
        alone = [F.linear(e, layer.weight[g], layer.bias[g] if bias else None) for g, e in enumerate(each)]
        assert_close(layer(x), torch.stack(alone))


def test_the_bias_counts_as_often_as_the_weights_behind_a_row() -> None:
    layer = StackedLinear(2, 1, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[2.0]], [[3.0]]]))
        layer.bias.copy_(torch.tensor([[10.0], [100.0]]))
    out = layer(torch.tensor([[1.0], [1.0]]), torch.tensor([0.5, 0.0]))
    # 2 * 1 + 0.5 * 10 and 2 * 1 + 0; 3 * 1 + 0.5 * 100 and 3 * 1 + 0
    assert out.squeeze(-1).tolist() == [[7.0, 2.0], [53.0, 3.0]]


def test_maps_compute_in_the_type_that_they_are_given_and_train_in_their_own() -> None:
    layer = StackedLinear(2, 3, 4)
    out = layer(torch.ones(1, 3, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32 and (layer.weight.grad == 1).all()


def test_sites_of_equal_shape_share_a_stack_and_each_finds_its_own() -> None:
    sites = [_site(0), _site(1, out_features=4), _site(2)]
    tensors = {site: torch.full((site.out_features, 3), float(site.layer)) for site in sites}
    stacked = BySite.of(tensors)
    assert [tuple(s.layer for s in group) for group in stacked.stacks] == [(0, 2), (1,)]
    assert len(stacked) == 3 and set(stacked) == set(sites)
    for site in sites:
        assert torch.equal(stacked[site], tensors[site])


def test_a_map_sees_every_stack_with_its_sites() -> None:
    sites = [_site(0), _site(1, out_features=4), _site(2)]
    stacked = BySite.of({site: torch.ones(site.out_features, 3) for site in sites})

    def times_layer(group: tuple[Site, ...], stack: torch.Tensor) -> torch.Tensor:
        return stack * torch.tensor([float(s.layer) for s in group])[:, None, None]

    assert [float(stacked.map(times_layer)[site].mean()) for site in sites] == [0.0, 1.0, 2.0]
