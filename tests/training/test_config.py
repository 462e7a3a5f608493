"""Configuration of training: every shipped file loads, unknown keys and impossible values are refused."""

from importlib import resources

import pytest

from models.errors import ConfigError
from models.presets import load_preset
from training.config import LossWeights, TrainConfig, load_config

SHIPPED = sorted(
    f.name.removesuffix(".toml")
    for f in (resources.files("training") / "configs").iterdir()
    if f.name.endswith(".toml")
)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_loads_for_a_preset_that_has_its_recipe(name):
    config = load_config(name)
    assert config.recipe in load_preset(config.model).recipes


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('model = "qwen"\ntop_k = [[0, 2], [0.5, 4]]\n[loss]\nlm = 2\n[memory]\nrank = 4\n', "utf-8")
    config = load_config(str(path))
    expected = TrainConfig(model="qwen", top_k=((0.0, 2), (0.5, 4)), loss=LossWeights(lm=2), memory={"rank": 4})
    assert config == expected


def test_k_holds_from_its_share_of_the_run_on():
    config = TrainConfig(top_k=((0.0, 2), (0.2, 4), (0.5, 8)))
    assert [config.top_k_at(p) for p in (0.0, 0.19, 0.2, 0.49, 0.5, 1.0)] == [2, 2, 4, 4, 8, 8]


def test_overrides_reach_into_tables_and_leave_the_original_alone():
    config = TrainConfig()
    changed = config.with_overrides({"loss.lm": 0.5, "memory.kv.source": "none", "seed": 7})
    assert (changed.loss.lm, changed.memory, changed.seed) == (0.5, {"kv": {"source": "none"}}, 7)
    assert changed.loss.route == config.loss.route
    assert config == TrainConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 3", r"unknown key 'steps'.*max_steps"),
        ("[loss]\nlma = 1", r"loss: unknown key 'lma'.*contrastive"),
        ("lm = = 1", "not valid TOML"),
        ("batch_lm = 0", "batch_lm must be at least 1, got 0"),
        ("warmup_steps = 0", "warmup_steps must be at least 1, got 0"),
        ("share_library = 1.5", r"share_library must be in \[0, 1\], got 1.5"),
        ("top_k = []", "top_k must be pairs"),
        ("top_k = [[0.1, 2]]", "top_k must be pairs"),
        ("top_k = [[0, 2], [0.5, 4], [0.2, 8]]", "top_k must be pairs"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, message):
    path = tmp_path / "c.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=message):
        load_config(str(path))


def test_an_unknown_name_says_what_to_pass():
    with pytest.raises(ConfigError, match=r"no training configuration 'nonesuch'.*TOML"):
        load_config("nonesuch")


def test_an_unknown_override_is_refused():
    with pytest.raises(ConfigError, match="override: unknown key 'sead'"):
        TrainConfig().with_overrides({"sead": 1})
