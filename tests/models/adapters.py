"""Random slots and adapters of the tiny bases."""

import torch

from models.base import FrozenBase
from models.injection import ComposedAdapter, LayerPrefix
from tests.models.tiny import tiny_spec

NUM_SLOTS = 3


def random_prefix(*, batch: int = 1, seed: int = 0) -> LayerPrefix:
    """Return slots of one memory layer, of which the last is removed by its bias."""
    generator = torch.Generator().manual_seed(seed)
    key, value = torch.randn(2, batch, 2, NUM_SLOTS, 16, generator=generator)
    bias = torch.tensor([0.0, -1.0, torch.finfo(torch.float32).min]).expand(batch, -1)
    return LayerPrefix(key_BHSF=key, value_BHSF=value, bias_BS=bias)


def random_adapter(base: FrozenBase) -> ComposedAdapter:
    """Return updates of every site and slots of both memory layers, the same for all rows."""
    generator = torch.Generator().manual_seed(0)
    lora = {
        s: (
            torch.randn(1, 4, s.in_features, generator=generator) * 0.2,
            torch.randn(1, s.out_features, 4, generator=generator) * 0.2,
        )
        for s in base.sites(tiny_spec())
    }
    return ComposedAdapter(lora=lora, prefix={4: random_prefix(), 5: random_prefix(seed=1)})
