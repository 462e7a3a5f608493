"""The text encoder: what it pools are the base's own states behind the shared prefix, whatever the batch."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from models.encoder import ProjectionHead, pad, text_features
from tests.models.tiny import FAMILIES, tiny_base, tiny_spec

TEXTS = ["The mill stands in Orla.", "Rye", "A bell of bronze"]


@pytest.mark.parametrize("num_encoder_layers", [3, 4, 5], ids=["below", "at", "above"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_the_bases_states_without_the_prefix(family: str, num_encoder_layers: int) -> None:
    base = tiny_base(family)
    spec = tiny_spec(num_encoder_layers=num_encoder_layers)  # memory layers 4 and 5
    features = text_features(base, spec, TEXTS, with_entry=True)
    for row, text in enumerate(TEXTS):
        ids = base.prefix_ids + base.tokenizer(text)["input_ids"]
        with torch.no_grad():
            out = base.model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        states = [x_BLD[0, len(base.prefix_ids) :] for x_BLD in out.hidden_states]
        assert_close(features.pooled_ND[row], states[num_encoder_layers].mean(0), atol=1e-5, rtol=0)
        assert_close(features.entry[row], states[4], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_features_do_not_depend_on_batch_or_order(family: str) -> None:
    base, spec = tiny_base(family), tiny_spec()
    together = text_features(base, spec, TEXTS, with_entry=True)
    alone = text_features(base, spec, TEXTS[::-1], with_entry=True, batch_tokens=1)
    assert_close(together.pooled_ND, alone.pooled_ND.flip(0), atol=1e-5, rtol=0)
    for one, other in zip(together.entry, alone.entry[::-1], strict=True):
        assert_close(one, other, atol=1e-5, rtol=0)


def test_texts_are_cut_at_the_atom_limit() -> None:
    base, spec = tiny_base("llama"), tiny_spec(max_atom_tokens=6)
    features = text_features(base, spec, ["abcdefghij", "abcdef"], with_entry=True)
    assert [len(e) for e in features.entry] == [6, 6]
    assert_close(features.pooled_ND[0], features.pooled_ND[1], atol=1e-6, rtol=0)


def test_an_empty_text_has_finite_features() -> None:
    base = tiny_base("llama")
    features = text_features(base, tiny_spec(), ["", "abc"], with_entry=True)
    assert features.pooled_ND.isfinite().all()
    assert len(features.entry[0]) == 1


def test_entry_states_are_left_out_where_nobody_asked() -> None:
    base, spec = tiny_base("llama"), tiny_spec()
    features = text_features(base, spec, TEXTS, with_entry=False)
    assert features.entry == []
    assert_close(features.pooled_ND, text_features(base, spec, TEXTS, with_entry=True).pooled_ND)


def test_no_texts_have_no_features() -> None:
    features = text_features(tiny_base("llama"), tiny_spec(), [], with_entry=True)
    assert features.pooled_ND.shape == (0, 48)
    assert features.entry == []


def test_the_projection_head_is_norm_linear_gelu_linear() -> None:
    head = ProjectionHead(2, 2)
    with torch.no_grad():
        for linear in (head[1], head[3]):
            nn.init.eye_(linear.weight)
            linear.bias.zero_()
        head[3].bias.fill_(0.5)
    # (3, 1) has mean 2 and deviation 1, so it is normed to (1, -1);
    # gelu(1) = 0.8413 and gelu(-1) = -0.1587, plus the last bias 0.5.
    assert_close(head(torch.tensor([3.0, 1.0])), torch.tensor([1.3413, 0.3413]), atol=1e-4, rtol=0)


def test_padding_stands_on_the_right() -> None:
    ids_BL, mask_BL = pad([[7, 8, 9], [5]], "cpu")
    assert ids_BL.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert mask_BL.int().tolist() == [[1, 1, 1], [1, 0, 0]]
