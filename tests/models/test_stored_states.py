"""Token states as a bank keeps them: both formats by hand, the error bound, and channels far larger than the rest."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from models.errors import ConfigError
from models.network import MemoryNetwork
from models.stored_states import as_stored, dequantise, load_states, pack, quantise, store_states, unpack
from tests.models.tiny import tiny_base, tiny_spec


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_codes_and_scales_by_hand():
    x_TD = torch.zeros(2, 66)
    x_TD[0, :4] = torch.tensor([127.0, -63.6, 0.5, 1.5])  # largest 127: a step of 1; ties go to the even number
    x_TD[0, 64:] = torch.tensor([-2.54, 0.013])  # a short second block: a step of 0.02
    x_TD[1, 65] = 254.0  # a step of 2; the token's first block is empty
    code_TD, scale_TB = quantise(x_TD)
    assert (code_TD.dtype, scale_TB.dtype) == (torch.int8, torch.float16)
    assert code_TD[0, :5].tolist() == [127, -64, 0, 2, 0]
    assert code_TD[0, 64:].tolist() == [-127, 1]
    assert code_TD[1].tolist() == [0] * 65 + [127]
    assert_close(scale_TB, torch.tensor([[1.0, 0.02], [0.0, 2.0]], dtype=torch.float16))
    x_TD[0, :4] = torch.tensor([127.0, -64.0, 0.0, 2.0])
    x_TD[0, 64:] = torch.tensor([-2.54, 0.02])
    # 0.02 is 0.0200043 in float16.
    assert_close(dequantise(code_TD, scale_TB), x_TD, atol=127 * 5e-6, rtol=0)


def test_codes_of_six_bits_by_hand():
    code_TD, scale_TB = quantise(torch.tensor([[62.0, -30.0, 3.2, 0.0]]), bits=6)  # largest 62: a step of 2
    assert (code_TD.tolist(), scale_TB.tolist()) == ([[31, -15, 2, 0]], [[2.0]])
    # From 32 on, the first lowest: 63 + (17 << 6) + (34 << 12) + (32 << 18) = 0x82247F.
    assert pack(code_TD).tolist() == [[0x7F, 0x24, 0x82]]
    every = torch.arange(-32, 32, dtype=torch.int8).view(4, 16)
    assert pack(every).shape == (4, 12) and torch.equal(unpack(pack(every)), every)


@pytest.mark.parametrize("bits", [8, 6])
@pytest.mark.parametrize("width", [1, 48, 64, 100, 576, 2304])
@pytest.mark.parametrize("size", [1e-4, 1.0, 3e4])
def test_no_value_is_off_by_more_than_half_a_step(bits, width, size):
    x_TD = size * noise(50, width)
    code_TD, scale_TB = quantise(x_TD, bits)
    assert scale_TB.shape == (50, -(-width // 64))
    step_TD = scale_TB.float().repeat_interleave(64, dim=1)[:, :width]
    error_TD = (dequantise(code_TD, scale_TB) - x_TD).abs()
    assert (error_TD <= 0.5001 * step_TD + (4e-6 if size < 1e-3 else 0)).all()
    assert (error_TD > 0.4 * step_TD).any() or width == 1
    assert code_TD.abs().max() == 2 ** (bits - 1) - 1 or size < 1e-3


def test_a_huge_channel_disturbs_its_own_block_alone():
    x_TD = noise(20, 576)
    huge_TD = x_TD.clone()
    huge_TD[:, 70] = 5000.0
    plain, disturbed = (dequantise(*quantise(x)) for x in (x_TD, huge_TD))
    others = [d for d in range(576) if not 64 <= d < 128]
    assert torch.equal(plain[:, others], disturbed[:, others])
    # A step of 5000 / 127 = 39 leaves the block's other channels, all within 4 or so, nothing.
    assert (disturbed[:, 64:70] == 0).all()
    assert_close(disturbed[:, 70], huge_TD[:, 70], rtol=1e-3, atol=0)
    # One scale a token would have left nothing in the whole token.
    assert ((plain - x_TD)[:, others].norm() / x_TD[:, others].norm()) < 0.01


@pytest.mark.parametrize(
    ("store", "dtype", "width", "step"), [("int8", torch.int8, 48, 1 / 127), ("int6", torch.uint8, 36, 1 / 31)]
)
def test_what_is_stored_comes_back_atom_by_atom(store, dtype, width, step):
    states = [noise(n, 48, seed=n) for n in (3, 1, 5)]
    kept = store_states(torch.cat(states), store)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in kept.items()} == {
        "entry": (dtype, (9, width)),
        "entry.scale": (torch.float16, (9, 1)),
    }
    rows = {name: [tensor[4:], tensor[:3]] for name, tensor in kept.items()} | {"latent": [noise(2)] * 2}
    found = load_states(rows)
    assert [len(x) for x in found] == [5, 3]
    assert_close(found[0], states[2], atol=0.501 * step * float(states[2].abs().max()), rtol=0)
    assert torch.equal(found[1], as_stored(states, store)[0])


def test_bfloat16_is_kept_as_it_is():
    states = [noise(3, 48), noise(2, 48, seed=1)]
    kept = store_states(torch.cat(states), "bfloat16")
    assert kept.keys() == {"entry"} and torch.equal(kept["entry"], torch.cat(states).bfloat16())
    assert all(torch.equal(a, s.bfloat16().float()) for a, s in zip(as_stored(states, "bfloat16"), states, strict=True))


def test_states_keep_their_own_dtype_and_nothing_becomes_nothing():
    narrow = noise(3, 48).bfloat16()
    [once] = as_stored([narrow], "int8")
    assert once.dtype == torch.bfloat16 and not torch.equal(once, narrow)
    assert as_stored([], "int8") == []


def test_a_base_that_six_bits_do_not_fit_is_refused_before_anything_is_trained_or_stored() -> None:
    base = tiny_base("llama")
    spec = tiny_spec("d2a", kv={"source": "tokens", "store": "int6"})
    MemoryNetwork(spec, base)
    odd = SimpleNamespace(hidden_size=base.hidden_size + 2)
    with pytest.raises(ConfigError, match=r"int6 needs a base whose width is a multiple of 4, got \d+"):
        MemoryNetwork(spec, odd)
