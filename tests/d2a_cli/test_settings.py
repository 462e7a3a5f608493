"""Layers of settings, their origins, and what a stranger's project may not decide."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from d2a_cli import _settings
from models.checkpoint import data_root
from models.config import AtomizerConfig, MemoryConfig
from models.errors import ConfigError

Run = Callable[..., Any]


def write_user(text: str) -> Path:
    path = _settings.user_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_project(text: str, folder: Path | None = None) -> Path:
    path = (folder or Path.cwd()) / ".d2a" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults_are_those_of_the_configuration() -> None:
    config = _settings.load().memory_config()
    bank, cache = config.bank, config.atomizer.cache_dir
    assert config == MemoryConfig(bank=bank, atomizer=AtomizerConfig(cache_dir=cache))
    assert bank == data_root() / "bank"


def test_each_layer_overrides_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    def top_k(flags: dict[str, Any] | None = None) -> tuple[Any, str]:
        entry = _settings.load(flags).entries["top_k"]
        return entry.value, entry.origin

    assert top_k() == (None, "default")
    user = write_user("top_k = 1")
    assert top_k() == (1, str(user))
    project = write_project("top_k = 2")
    assert top_k() == (2, str(project))
    monkeypatch.setenv("D2A_TOP_K", "3")
    assert top_k() == (3, "environment D2A_TOP_K")
    assert top_k({"top_k": 4}) == (4, "command line")
    assert top_k({"top_k": None}) == (3, "environment D2A_TOP_K")
    monkeypatch.setenv("D2A_TOP_K", "")  # an empty variable is no setting
    assert top_k() == (2, str(project))
    monkeypatch.setenv("D2A_TOP_K", "none")  # clears what the files say
    assert top_k() == (None, "environment D2A_TOP_K")


def test_project_is_found_upward_and_holds_the_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path.cwd()
    write_project('checkpoint = "trained"', root)
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    config = _settings.load().memory_config()
    assert config.bank == root / ".d2a" / "bank"
    assert config.checkpoint == root / "trained"  # relative to the project, not to where one stands
    assert _settings.load({"checkpoint": "trained"}).memory_config().checkpoint == deep / "trained"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_kk = 3", r"config\.toml: unknown key 'top_kk'\. Did you mean 'top_k'\?"),
        ('model = "gemma"', r"unknown key 'model'\. Did you mean 'preset'\?"),
        ('base_url = "x"', r"Did you mean 'atomizer\.base_url'\?"),
        ("[atomizer]\nmodle = 'x'", r"unknown key 'atomizer\.modle'\. Did you mean 'atomizer\.model'\?"),
        ('top_k = "many"', r"config\.toml: top_k must be a whole number, got 'many'"),
        ("top_k = 2.5", r"top_k must be a whole number, got 2\.5"),
        ("top_k = true", r"top_k must be a whole number, got True"),
        ("top_k = 0", r"config\.toml: top_k must be at least 1, got 0"),
        ("preset = 3", r"preset must be text, got 3"),
        ('device = "tpu"', r"config\.toml: device must be one of auto, cpu, cuda, mps, got 'tpu'"),
        ("[atomizer]\nconcurrency = 0", r"config\.toml: atomizer: concurrency must be positive, got 0"),
        ("top_k = ", r"config\.toml: not valid TOML"),
    ],
)
def test_fault_in_a_file_names_the_file_and_the_way_out(text: str, message: str) -> None:
    write_user(text)
    with pytest.raises(ConfigError, match=message):
        _settings.load()


def test_fault_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2A_ATOMIZER_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match=r"environment D2A_ATOMIZER_TIMEOUT_S: atomizer\.timeout_s must be a number"):
        _settings.load()


@pytest.mark.parametrize(("name", "value"), [("base_url", "https://evil.example/v1"), ("api_key_env", "AWS_SECRET")])
def test_project_cannot_decide_where_the_key_goes(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, d2a: Run, memory: Any
) -> None:
    project = write_project(f'[atomizer]\n{name} = "{value}"')
    result = d2a("ask", "q")
    assert (result.exit_code, memory.calls) == (2, [])
    assert f"{project}: atomizer.{name} is not accepted from a project's file" in result.stderr
    project.unlink()
    write_user(f'[atomizer]\n{name} = "{value}"')
    assert getattr(_settings.load().memory_config().atomizer, name) == value
    monkeypatch.setenv(f"D2A_ATOMIZER_{name.upper()}", "OTHER")
    assert getattr(_settings.load().memory_config().atomizer, name) == "OTHER"


def test_secret_pasted_for_its_variable_is_refused_and_never_echoed(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for result in (
        d2a("config", "set", "atomizer.api_key_env", "sk-secret-123"),
        d2a("config", "show", stdin=monkeypatch.setenv("D2A_ATOMIZER_API_KEY_ENV", "sk-secret-123")),
    ):
        assert result.exit_code == 2
        assert "must be the name of an environment variable" in result.stderr
        assert "sk-secret" not in result.output


def test_show_prints_origins_but_no_secret(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    user = write_user('[atomizer]\nbase_url = "https://me:pass@host/v1?key=abc"')
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-123")
    monkeypatch.setenv("D2A_TOP_K", "3")
    result = d2a("config", "show", "--origin")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in result.stdout.splitlines()}
    assert rows["atomizer.base_url"] == ["https://***@host/v1?***", str(user)]
    assert rows["atomizer.api_key_env"] == ["OPENAI_API_KEY (set)", "default"]
    assert rows["top_k"] == ["3", "environment D2A_TOP_K"]
    assert set(rows) == {"key", *_settings.KEYS}
    form = json.loads(d2a("config", "show", "--json").stdout)
    assert form["top_k"] == {"value": "3", "origin": "environment D2A_TOP_K"}
    assert "sk-secret" not in result.output and "pass" not in json.dumps(form)


def test_unknown_variable_of_ours_is_named(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2A_TOPK", "3")
    assert "D2A_TOPK is in the environment but is no setting" in d2a("config", "show").stderr


def test_set_keeps_the_rest_of_the_file(d2a: Run) -> None:
    project = write_project('# ours\ntop_k = 2  # few\n\n[atomizer]\nmodel = "m"\n')
    project.chmod(0o640)
    assert d2a("config", "set", "top_k", "5").exit_code == 0
    assert d2a("config", "set", "atomizer.concurrency", "2").exit_code == 0
    assert d2a("config", "set", "threshold", "0.25").exit_code == 0
    text = project.read_text()
    assert text == '# ours\ntop_k = 5  # few\nthreshold = 0.25\n\n[atomizer]\nmodel = "m"\nconcurrency = 2\n'
    assert project.stat().st_mode & 0o777 == 0o640
    assert not list(project.parent.glob(".*.toml*"))  # no temporary file is left


def test_set_writes_the_users_file_outside_a_project_and_for_keys_a_project_may_not_hold(d2a: Run) -> None:
    assert d2a("config", "set", "preset", "qwen").exit_code == 0
    assert _settings.user_file().read_text() == 'preset = "qwen"\n'
    project = write_project("top_k = 2\n")
    result = d2a("config", "set", "atomizer.base_url", "http://localhost:1/v1")
    assert str(_settings.user_file()) in result.stderr
    assert project.read_text() == "top_k = 2\n"
    assert _settings.load().memory_config().atomizer.base_url == "http://localhost:1/v1"


def test_set_stores_a_path_so_that_it_means_the_same_from_anywhere(d2a: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path.cwd()
    project = write_project("", root)
    (root / "sub").mkdir()
    monkeypatch.chdir(root / "sub")
    d2a("config", "set", "bank", "mine")
    assert project.read_text() == 'bank = "sub/mine"\n'
    assert _settings.load().memory_config().bank == root / "sub" / "mine"
    d2a("config", "set", "bank", "/elsewhere")
    assert _settings.load().memory_config().bank == Path("/elsewhere")


@pytest.mark.parametrize("pair", [("top_k", "0"), ("tpo_k", "1"), ("device", "tpu"), ("bank", "")])
def test_set_refuses_what_could_not_be_read_back(d2a: Run, pair: tuple[str, str]) -> None:
    project = write_project("top_k = 2\n")
    result = d2a("config", "set", *pair)
    assert result.exit_code == 2, result.output
    assert project.read_text() == "top_k = 2\n"


def test_set_refuses_a_file_that_stays_invalid(d2a: Run) -> None:
    text = "threshold = 7\n"
    project = write_project(text)
    result = d2a("config", "set", "top_k", "3")
    assert (result.exit_code, project.read_text()) == (2, text)
    text = '[atomizer]\nbase_url = "https://evil.example"\n'
    project.write_text(text)
    result = d2a("config", "set", "top_k", "3")
    assert (result.exit_code, project.read_text()) == (2, text)


def test_set_can_mend_the_very_value_that_is_wrong(d2a: Run) -> None:
    project = write_project('top_k = "many"\n')
    assert d2a("config", "set", "top_k", "3").exit_code == 0
    assert project.read_text() == "top_k = 3\n"


def test_none_clears_an_optional_setting(d2a: Run) -> None:
    write_user("top_k = 2\n")
    write_project("\n")
    assert d2a("config", "set", "top_k", "none").exit_code == 0
    assert _settings.load().entries["top_k"].value is None


def test_path_lists_the_files_the_higher_one_first(d2a: Run) -> None:
    project = write_project("")
    lines = d2a("config", "path").stdout.splitlines()
    assert lines == [f"project\t{project}\texists", f"user\t{_settings.user_file()}\tabsent"]
