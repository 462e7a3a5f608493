"""The official release of Doc-to-LoRA: a pickle of its form becomes a baseline, and any other pickle runs nothing."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from models.baselines.checkpoint import load_baseline
from models.baselines.d2l import D2LConfig, HyperLora, internalize
from models.baselines.release import convert_release
from models.baselines.release_pickle import extract, read_pickle
from models.errors import CheckpointError
from tests.models.tiny import NUM_LAYERS, tiny_base

CONFIG = D2LConfig(
    width=16, num_heads=2, num_kv_heads=1, num_encoder_blocks=2, rank=4, max_chunk_tokens=8192, as_released=True
)
TEXT = "The river Brenn feeds lake Tor."
# Ours and theirs, as the released code names them.
BLOCK = {
    "query_norm": "input_latents_layernorm",
    "context_norm": "input_context_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attended_norm": "post_attention_layernorm",
    "mlp_norm": "pre_ff_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "out_norm": "post_ff_layernorm",
}


@pytest.fixture(scope="module")
def base():
    return tiny_base("llama")


def hyper_over(base, seed=5) -> HyperLora:
    """Return a hypernetwork at values that bf16 holds exactly, with head norms that are one for all layers."""
    torch.manual_seed(seed)
    hyper = HyperLora.over(base, CONFIG).requires_grad_(False)
    for parameter in hyper.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter)).copy_(parameter.bfloat16())
    for norm in (hyper.heads.norms_2LD, hyper.heads.shifts_2LD):
        norm.copy_(norm[:, :1].expand_as(norm))
    return hyper


def their_names(hyper: HyperLora) -> dict[str, torch.Tensor]:
    """Return the hypernetwork's tensors as the release has them."""
    ours, root = hyper.state_dict(), "aggregator.perceiver."
    theirs = {f"{root}modality_projection.{n}_proj.weight": ours[f"project.{n}.weight"] for n in ("gate", "up", "down")}
    theirs[f"{root}encoder.latents_q"] = ours["perceiver.latents_QD"]
    theirs[f"{root}decoder.latents_q"] = ours["perceiver.queries_QD"]
    for mine, place in {
        "encoder.0": "encoder.layers.0",
        "encoder.1": "encoder.layers.1",
        "decoder": "decoder.layers.0",
    }.items():
        theirs |= {f"{root}{place}.{t}.weight": ours[f"perceiver.{mine}.{m}.weight"] for m, t in BLOCK.items()}
    for part in ("encoder", "decoder"):
        theirs[f"{root}{part}.layernorm.weight"] = ours[f"perceiver.{part}_norm.weight"]
    for i, place in enumerate("04"):
        theirs[f"layers.0.layers.{place}.weight"] = ours["heads.norms_2LD"][i, 0]
        theirs[f"layers.0.layers.{place}.bias"] = ours["heads.shifts_2LD"][i, 0]
    theirs["layers.0.layers.1.weight"], theirs["layers.0.layers.3.weight"] = (
        ours["heads.up_LDE"],
        ours["heads.down_LED"],
    )
    theirs["layers.0.layers.1.bias"] = ours["heads.up_bias_LE"][None, :, None, None]
    theirs["layers.0.layers.3.bias"] = ours["heads.down_bias_LD"][None, :, None, None]
    theirs["head.weight"] = ours["heads.out_LDF"]
    theirs["bias_A.down_proj"], theirs["bias_B.down_proj"] = ours["bias_a_LRI"], ours["bias_b_LRO"]
    theirs["scaler_A.down_proj"] = ours["scale_a_LR"][None, :, :, None]
    theirs["scaler_B.down_proj"] = ours["scale_b_LR"][None, :, :, None]
    return {name: tensor.clone() for name, tensor in theirs.items()}


def foreign(monkeypatch: pytest.MonkeyPatch, path: str, **attributes: object) -> object:
    """Return an object of a class of the release, which this environment does not have; it pickles by that name."""
    module_name, _, name = path.rpartition(".")
    parts = module_name.split(".")
    for place in (".".join(parts[: n + 1]) for n in range(len(parts))):
        if not hasattr(sys.modules.get(place), "stands_in"):  # the real peft may be there
            monkeypatch.setitem(sys.modules, place, ModuleType(place))
            sys.modules[place].stands_in = True
    module = sys.modules[module_name]
    if not hasattr(module, name):
        setattr(module, name, type(name, (), {"__module__": module_name}))
    made = getattr(module, name)()
    vars(made).update(attributes)
    return made


def member(monkeypatch: pytest.MonkeyPatch, path: str, value: str) -> object:
    """Return what pickles as a member of an enumeration does: by calling its class with the value."""
    made = foreign(monkeypatch, path)
    type(made).__init__ = lambda self, *_: None
    type(made).__reduce__ = lambda self: (type(self), (self.value,))
    made.value = value
    return made


def released(monkeypatch: pytest.MonkeyPatch, tensors: dict, **changes: object) -> dict:
    """Return a release's content: tensors, and configuration objects of its own code and of peft."""
    lora = foreign(
        monkeypatch,
        "peft.tuners.lora.config.LoraConfig",
        r=4,
        lora_alpha=2 * 4**1.5,
        target_modules={"down_proj"},
        peft_type=member(monkeypatch, "peft.utils.peft_types.PeftType", "LORA"),
    )
    aggregator = foreign(
        monkeypatch,
        "ctx_to_lora.modeling.aggregator.AggregatorConfig",
        aggregator_type=member(monkeypatch, "ctx_to_lora.modeling.aggregator.AGGREGATOR_TYPE", "perceiver"),
        **{"num_blocks": 2, "num_self_attn_per_block": 0, "shared_weights": False},
    )
    configs = {"lora_config": lora, "aggregator_config": aggregator, "layer_indices": range(NUM_LAYERS)}
    shape = {"num_pre_head_layers": 1, "per_layer_processing": True, "per_rank_gen": True, "use_bias": True}
    kind = member(monkeypatch, "ctx_to_lora.modeling.ctx_encoder.CTX_ENCODER_TYPE", "per_layer_activations")
    hypernet = foreign(
        monkeypatch,
        "ctx_to_lora.modeling.hypernet.HypernetConfig",
        **{**shape, **configs, **changes},
    )
    encoder = foreign(monkeypatch, "ctx_to_lora.configs.CtxEncoderArguments", ctx_encoder_type=kind)
    plain = {"base_model_name_or_path": "made/up", "hypernet_config": hypernet, "ctx_encoder_args": encoder}
    return {**tensors, **plain}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the other process, which takes seconds to start, where it is not what is tested."""
    monkeypatch.setattr("models.baselines.release._extract_elsewhere", extract)


def write(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_a_release_becomes_a_baseline_that_gives_the_same_adapter(
    base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyper = hyper_over(base)
    path = write(tmp_path / "pytorch_model.bin", released(monkeypatch, their_names(hyper)))
    convert_release(path, tmp_path / "out", base, preset="tiny")
    loaded, meta = load_baseline(tmp_path / "out", base)
    ours, theirs = (internalize(base, network, [TEXT]).lora for network in (loaded, hyper))
    for site, (a, b) in theirs.items():
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(ours[site], (a, b))
    assert (meta.system, meta.reads, meta.shape["max_chunk_tokens"]) == ("d2l", "raw", 8192)
    assert meta.training["release"]["hypernet_config"]["layer_indices"] == list(range(NUM_LAYERS))
    assert [s["name"] for s in meta.training["data"]["manifest"]["sources"]] == ["squad", "ropes", "drop"]


def test_biases_and_the_last_norm_of_a_release_have_a_part_in_its_adapter(base) -> None:
    hyper = hyper_over(base)
    before = next(iter(internalize(base, hyper, [TEXT]).lora.values()))[1]
    for parameter in (hyper.heads.up_bias_LE, hyper.heads.down_bias_LD, hyper.perceiver.decoder_norm.weight):
        kept = parameter.clone()
        # Not by one number: the norm that follows would take it out again.
        parameter.add_(torch.linspace(0, 1, parameter.shape[-1]))
        after = next(iter(internalize(base, hyper, [TEXT]).lora.values()))[1]
        assert (after - before).abs().max() > 1e-4
        parameter.copy_(kept)


def test_a_compiled_models_prefix_is_taken_off(
    in_this_process, base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in their_names(hyper_over(base)).items()}
    path = write(tmp_path / "model.bin", released(monkeypatch, tensors))
    convert_release(path, tmp_path / "out", base, preset="tiny")
    assert json.loads((tmp_path / "out" / "baseline.json").read_text())["shape"]["as_released"] is True


class Malicious:
    """Creates a file when it is unpickled without restriction."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


def test_a_pickle_that_wants_to_run_code_is_refused_and_runs_nothing(base, tmp_path: Path) -> None:
    target = tmp_path / "owned"
    path = write(tmp_path / "model.bin", {"head.weight": torch.zeros(1), "hypernet_config": Malicious(target)})
    with pytest.raises(CheckpointError, match=r"wants to run (posix|nt)\.mkdir, which is no part of the release"):
        convert_release(path, tmp_path / "out", base, preset="tiny")
    assert not target.exists() and not (tmp_path / "out").exists()
    torch.load(path, weights_only=False)
    assert target.exists()  # it would have run


def test_a_bare_pickle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    path, target = tmp_path / "model.bin", tmp_path / "owned"
    path.write_bytes(pickle.dumps(Malicious(target)))
    with pytest.raises(CheckpointError, match="cannot be read as a checkpoint of torch"):
        read_pickle(path)
    assert not target.exists()


def test_a_class_that_the_release_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "model.bin", {"x": foreign(monkeypatch, "somewhere.Else")})
    with pytest.raises(CheckpointError, match=r"wants to run somewhere\.Else"):
        read_pickle(path)


def test_classes_of_the_release_are_read_as_plain_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "model.bin", released(monkeypatch, {"head.weight": torch.ones(2)}))
    extract(path, tmp_path)
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["hypernet_config"]["lora_config"]["target_modules"] == ["down_proj"]
    assert facts["ctx_encoder_args"] == {"ctx_encoder_type": "per_layer_activations"}
    assert (tmp_path / "tensors.safetensors").is_file() and "head.weight" not in facts


def test_a_missing_release_is_refused_with_what_to_do(base, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.bin does not exist\. Download the release yourself"):
        convert_release(tmp_path / "none.bin", tmp_path / "out", base, preset="tiny")


def test_another_checkpoint_is_no_release(in_this_process, base, tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", {"weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="is no release of Doc-to-LoRA"):
        convert_release(path, tmp_path / "out", base, preset="tiny")


def test_a_release_of_another_shape_is_refused(
    in_this_process, base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = released(monkeypatch, their_names(hyper_over(base)), num_pre_head_layers=4, use_bias=False)
    path = write(tmp_path / "model.bin", content)
    with pytest.raises(CheckpointError, match="it lacks one block before the head, use_bias"):
        convert_release(path, tmp_path / "out", base, preset="tiny")


def test_a_tensor_without_a_place_is_refused(
    in_this_process, base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path / "model.bin", released(monkeypatch, {**their_names(hyper_over(base)), "more": torch.ones(1)})
    )
    with pytest.raises(CheckpointError, match=r"tensors without a place here: more.*made for made/up"):
        convert_release(path, tmp_path / "out", base, preset="tiny")
