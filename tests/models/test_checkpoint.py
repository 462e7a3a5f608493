"""Checkpoints: what was saved comes back, identity covers all that matters, and damage is refused in one line."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from models.base import FrozenBase
from models.checkpoint import (
    MAX_PIECE_BYTES,
    CheckpointMeta,
    find_checkpoint,
    load_network,
    read_meta,
    register_checkpoint,
    save_network,
)
from models.errors import CheckpointError, ConfigError
from models.presets import load_preset
from tests.models.tiny import RECIPES, tiny_base, tiny_network, tiny_spec

GATE = {"coefficients": [1.0, 2.0, 3.0, 4.0], "bias": -1.0, "threshold": 0.4}


@pytest.fixture(scope="module")
def base() -> FrozenBase:
    return tiny_base("llama")


@pytest.fixture
def folder(base: FrozenBase, tmp_path: Path) -> Path:
    return _save(tmp_path / "memory", base)


def _save(folder: Path, base: FrozenBase, *, seed: int = 1, recipe: str = "d2a", **changes: object) -> Path:
    network = tiny_network(base, tiny_spec(recipe), seed=seed)
    meta = CheckpointMeta(preset="tiny", spec=network.spec, base_fingerprint=base.fingerprint(), gate=GATE)
    save_network(folder, network, replace(meta, **changes))
    return folder


def _edit(folder: Path, **changes: object) -> None:
    path = folder / "memory.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_saved_memory_comes_back_in_bfloat16_precision(recipe: str, base: FrozenBase, tmp_path: Path) -> None:
    saved = tiny_network(base, tiny_spec(recipe))
    folder = _save(tmp_path / "memory", base, recipe=recipe, training={"steps": 7})
    loaded, meta = load_network(folder, base)
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float()), name
    assert meta.spec == saved.spec
    assert (meta.preset, meta.gate, meta.training) == ("tiny", GATE, {"steps": 7})
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())


def test_a_loaded_memory_compiles_the_same_atoms(folder: Path, base: FrozenBase) -> None:
    loaded, _ = load_network(folder, base)
    saved = tiny_network(base).bfloat16().float()
    pooled_ND = torch.randn(3, 48)
    for one, other in zip(loaded.compile_atoms(pooled_ND), saved.compile_atoms(pooled_ND), strict=True):
        assert_close(one, other)


def test_the_fingerprint_covers_weights_shape_gate_and_base(folder: Path, base: FrozenBase, tmp_path: Path) -> None:
    spec = tiny_spec(router={"top_k": 3})
    others = {
        "weights": _save(tmp_path / "1", base, seed=2),
        "shape": _save(tmp_path / "2", base, spec=spec),
        "gate": _save(tmp_path / "3", base, gate=GATE | {"threshold": 0.5}),
        "base": _save(tmp_path / "4", base, base_fingerprint="0" * 16),
    }
    prints = {name: read_meta(path).fingerprint for name, path in others.items()}
    assert len({*prints.values(), read_meta(folder).fingerprint}) == 5


def test_the_fingerprint_does_not_depend_on_folder_or_notes(folder: Path, base: FrozenBase, tmp_path: Path) -> None:
    again = _save(tmp_path / "elsewhere", base, training={"note": "the same weights"})
    assert read_meta(again).fingerprint == read_meta(folder).fingerprint


def test_a_description_from_before_there_was_a_choice_of_store_stays_the_same_memory(folder: Path) -> None:
    spec = json.loads((folder / "memory.json").read_text())["spec"]
    del spec["kv"]["store"]
    _edit(folder, spec=spec)
    meta = read_meta(folder)
    assert meta.spec == tiny_spec() and meta.spec.kv.store == "bfloat16"
    # Banks know a memory by this: over the description as it stands in the file, without the new default.
    identity = {"preset": "tiny", "spec": spec, "base_fingerprint": meta.base_fingerprint, "gate": GATE}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(hashlib.sha256((folder / "memory-00001-of-00001.safetensors").read_bytes()).digest())
    assert meta.fingerprint == digest.hexdigest()[:16]


def test_another_base_is_refused_with_both_names(folder: Path, base: FrozenBase) -> None:
    other = tiny_base("llama", seed=1)
    with pytest.raises(CheckpointError, match=f"trained on base {base.fingerprint()}, this base is") as caught:
        load_network(folder, other)
    assert other.fingerprint() in str(caught.value)


def test_truncated_weights_are_refused(folder: Path, base: FrozenBase) -> None:
    [piece] = folder.glob("memory-*.safetensors")
    piece.write_bytes(piece.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"broken weights.*again"):
        load_network(folder, base)


@pytest.mark.parametrize("damage", ["missing tensor", "unknown tensor", "another shape", "no pieces"])
def test_weights_that_do_not_fit_are_refused(damage: str, folder: Path, base: FrozenBase) -> None:
    [piece] = folder.glob("memory-*.safetensors")
    weights = load_file(piece)
    if damage == "missing tensor":
        del weights["router.bias"]
    elif damage == "unknown tensor":
        weights["router.extra"] = torch.zeros(1)
    elif damage == "another shape":
        weights["router.metadata"] = torch.zeros(5)
    save_file(weights, piece)
    if damage == "no pieces":
        piece.unlink()
    with pytest.raises(CheckpointError, match="broken weights"):
        load_network(folder, base)


@pytest.mark.parametrize(("version", "hint"), [(4, "Update d2a"), (2, "Fetch or train it again")])
def test_another_format_is_refused(folder: Path, version: int, hint: str) -> None:
    _edit(folder, format_version=version)
    with pytest.raises(CheckpointError, match=f"has format {version}, this d2a reads 3. {hint}"):
        read_meta(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '"memory"', "{}", '{"format_version": "1"}', "\xff"])
def test_a_broken_description_is_refused(text: str, folder: Path) -> None:
    (folder / "memory.json").write_text(text, "latin-1")
    with pytest.raises(CheckpointError, match="broken checkpoint"):
        read_meta(folder)


def test_an_unknown_key_of_the_shape_is_refused(folder: Path) -> None:
    spec = json.loads((folder / "memory.json").read_text())["spec"]
    _edit(folder, spec=spec | {"num_heads": 3})
    with pytest.raises((CheckpointError, ConfigError), match="num_heads"):
        read_meta(folder)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere is not a checkpoint .*d2a train"):
        find_checkpoint(load_preset("smollm2"), tmp_path / "nowhere")


def test_a_preset_without_a_memory_names_the_command_that_makes_one() -> None:
    with pytest.raises(CheckpointError, match=r"gemma has no trained memory.*d2a train --model gemma.*--checkpoint"):
        find_checkpoint(load_preset("gemma"))


def test_a_registered_memory_is_found_and_replaced_whole(
    base: FrozenBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2A_DATA", str(tmp_path / "data"))
    preset = replace(load_preset("gemma"), name="tiny")
    first, second = _save(tmp_path / "1", base), _save(tmp_path / "2", base, seed=2)
    (first / "old.txt").write_text("of the first")
    for made in (first, second):
        register_checkpoint(made, "tiny")
        assert read_meta(find_checkpoint(preset)).fingerprint == read_meta(made).fingerprint
    assert not (find_checkpoint(preset) / "old.txt").exists()
    assert [p.name for p in (tmp_path / "data" / "checkpoints").iterdir()] == ["tiny"]


def test_weights_are_cut_into_pieces_below_the_limit(
    base: FrozenBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PIECE_BYTES <= 16_000_000
    network = tiny_network(base)
    largest = max(t.numel() * 2 for t in network.state_dict().values())
    monkeypatch.setattr("models.checkpoint.MAX_PIECE_BYTES", 2 * largest)
    folder = _save(tmp_path / "memory", base)
    pieces = sorted(folder.glob("*.safetensors"))
    assert len(pieces) > 2
    assert pieces[0].name == f"memory-00001-of-{len(pieces):05d}.safetensors"
    assert all(sum(t.nbytes for t in load_file(p).values()) <= 2 * largest for p in pieces)
    loaded, _ = load_network(folder, base)
    assert loaded.state_dict().keys() == network.state_dict().keys()


def test_saving_again_leaves_no_piece_of_the_old_memory(
    base: FrozenBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("models.checkpoint.MAX_PIECE_BYTES", 10_000)
        folder = _save(tmp_path / "memory", base)
    _save(folder, base, seed=2)
    assert [p.name for p in folder.glob("*.safetensors")] == ["memory-00001-of-00001.safetensors"]


def test_an_interrupted_save_is_no_checkpoint(folder: Path, base: FrozenBase, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_args: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        _save(folder, base, seed=2)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        find_checkpoint(load_preset("smollm2"), folder)
