"""Configuration of training: every shipped file loads, unknown keys and impossible values are refused."""

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from models.errors import ConfigError
from models.presets import RECIPES, load_preset
from training.config import LossWeights, TrainConfig, load_config, parse_overrides
from training.curriculum import LOSSES, Stage
from training.run import TrainRequest

SHIPPED = sorted(
    f.name.removesuffix(".toml")
    for f in (resources.files("training") / "configs").iterdir()
    if f.name.endswith(".toml")
)
CORE = {"lm", "distill", "route", "rerank", "irrelevant", "protect"}


def config_of(tmp_path, text, **kwargs):
    path = tmp_path / "mine.toml"
    path.write_text(text, "utf-8")
    return load_config(str(path), **kwargs)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_configuration_loads_under_both_recipes_of_its_preset(name, recipe):
    config = load_config(name, recipe=recipe)
    assert (config.model, config.recipe) == (name, recipe)
    assert recipe in load_preset(config.model).recipes


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "memory_layers", "rate"),
    [("gemma", 2304, 26, range(22, 26), 1e-4), ("qwen", 2560, 36, range(32, 36), 8e-5)],
)
def test_gemma_and_qwen_carry_the_published_table(name, hidden, layers, memory_layers, rate):
    config, preset = load_config(name), load_preset(name)
    spec = preset.spec(config.recipe)
    assert preset.base == {"gemma": "google/gemma-2-2b-it", "qwen": "Qwen/Qwen3-4B-Instruct-2507"}[name]
    assert config.recipe == "paper"
    # Atom encoder and compiler.
    assert (spec.num_encoder_layers, spec.d_embed, spec.d_latent, spec.d_key) == (4, 256, 256, 256)
    assert (spec.rank, spec.alpha, spec.max_atom_tokens) == (8, 16.0, 96)
    assert range(layers - spec.num_memory_layers, layers) == memory_layers
    assert spec.target_modules == ("q_proj", "v_proj", "o_proj", "down_proj")
    # Router.
    router = spec.router
    assert (router.num_candidates, router.top_k, router.temperature) == (32, 8, 1.0)
    assert (router.reranker, router.max_rerank_tokens) == ("BAAI/bge-reranker-base", 192)
    # Optimisation and data.
    assert (config.learning_rate, config.betas, config.weight_decay) == (rate, (0.9, 0.999), 0.01)
    assert (config.warmup_steps, config.max_grad_norm, config.global_batch) == (500, 1.0, 128)
    assert (config.distill_temperature, config.questions_per_document, config.max_epochs) == (1.5, 8, 50)
    assert (config.max_context_tokens, config.max_answer_tokens) == (8192, 128)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_paper_recipe_is_the_published_curriculum(name):
    config = load_config(name, recipe="paper")
    stages = [(config.phase_at(step, 0.0), step) for step in (0, 1999, 2000, 5999, 6000, 8999, 9000, 11999)]
    assert [(p.stage, p.top_k) for p, _ in stages] == [(1, 1)] * 2 + [(2, 4)] * 2 + [(3, 8)] * 2 + [(4, 8)] * 2
    assert [p.is_last for p, _ in stages] == [False] * 6 + [True] * 2
    first, second, third, fourth = (stages[i][0].weights for i in (0, 2, 4, 6))
    assert first.keys() == CORE
    assert second.keys() == CORE | {"composition", "sparse"}
    assert third.keys() == fourth.keys() == CORE | {"composition", "sparse", "conflict", "confidence"}
    # The two raises, and nothing else changes.
    assert third["irrelevant"] == fourth["irrelevant"] > second["irrelevant"] == first["irrelevant"]
    assert fourth["sparse"] > third["sparse"] == second["sparse"]
    assert {k: v for k, v in fourth.items() if k not in ("irrelevant", "sparse")} == {
        k: v for k, v in third.items() if k not in ("irrelevant", "sparse")
    }


def test_the_shipped_checkpoint_can_be_trained_again():
    config = load_config("smollm2")
    assert (config.recipe, config.global_batch, config.questions_per_document, config.batch_route) == (
        "d2a",
        128,
        1,
        384,
    )
    assert (config.learning_rate, config.warmup_steps, config.max_steps, config.max_minutes) == (1e-3, 200, 1500, 15.0)
    assert (config.eval_every, config.patience, config.gold_forcing) == (250, 4, 0.5)
    assert config.loss == LossWeights(lm=1.0, route=1.0, null_slot=0.3, contrastive=0.5, irrelevant=1e-4)
    assert [config.phase_at(1, p).top_k for p in (0.0, 0.19, 0.2, 0.49, 0.5, 1.0)] == [2, 2, 4, 4, 8, 8]
    assert config.phase_at(1, 0.25).gold_forcing == pytest.approx(0.375)  # 0.5 * (1 - 0.25)


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path):
    text = 'model = "qwen"\nmax_steps = 7\n[loss]\nlm = 2\n[memory]\nrank = 4\n[recipes.paper]\nmax_steps = 9\n'
    config = config_of(tmp_path, text)
    plain = config_of(tmp_path, "")
    expected = replace(plain, model="qwen", max_steps=7, loss=replace(plain.loss, lm=2), memory={"rank": 4})
    assert config == expected
    assert config_of(tmp_path, text, recipe="paper").max_steps == 9


def test_stages_of_a_file_replace_those_of_its_recipe(tmp_path):
    text = 'stages = [{until_share = 0.5, top_k = 2, losses = ["lm"]}, {top_k = 3, weights = {lm = 0.5}}]'
    config = config_of(tmp_path, text)
    assert config.stages == (
        Stage(until_share=0.5, top_k=2, losses=("lm",)),
        Stage(top_k=3, weights={"lm": 0.5}, losses=LOSSES),
    )
    assert config.phase_at(0, 0.0).weights == {"lm": 1.0}
    late = config.phase_at(0, 0.5)
    assert (late.weights["lm"], late.weights["route"], "distill" in late.weights) == (0.5, 1.0, False)
    assert config.active_losses == {"lm", "route", "null_slot", "contrastive", "irrelevant"}


def test_overrides_reach_into_tables_and_leave_the_original_alone():
    config = TrainConfig()
    changed = config.with_overrides({"loss.lm": 0.5, "memory.kv.source": "none", "seed": 7})
    assert (changed.loss.lm, changed.memory, changed.seed) == (0.5, {"kv": {"source": "none"}}, 7)
    assert changed.loss.route == config.loss.route
    assert config == TrainConfig()
    paper = load_config("gemma")
    assert paper.with_overrides({}) == paper


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 3", r"unknown key 'steps'.*max_steps"),
        ("[loss]\nlma = 1", r"loss: unknown key 'lma'.*contrastive"),
        ("lm = = 1", "not valid TOML"),
        ("global_batch = 0", "global_batch must be at least 1, got 0"),
        ("warmup_steps = 0", "warmup_steps must be at least 1, got 0"),
        ("share_library = 1.5", r"share_library must be in \[0, 1\], got 1.5"),
        ('max_steps = "many"', "max_steps must be a whole number, got 'many'"),
        ("max_steps = 1.5", "max_steps must be a whole number, got 1.5"),
        ("seed = true", "seed must be a whole number, got True"),
        ('learning_rate = "high"', "learning_rate must be a number, got 'high'"),
        ("learning_rate = 0.0", "learning_rate must be above 0, got 0.0"),
        ("max_minutes = 0", "max_minutes must be a number above 0, got 0"),
        ("model = 3", "model must be text, got 3"),
        ("rescue_gold = 1", "rescue_gold must be true or false, got 1"),
        ("memory = 4", "memory must be a table, got 4"),
        ("betas = [0.9]", r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ("micro_batch = 0", "micro_batch must be a whole number from 1, got 0"),
        ('recipe = "mine"', "recipe must be one of paper, d2a, got 'mine'"),
        ('protect_form = "l3"', "protect_form must be one of l2, null_space, got 'l3'"),
        ("eval_top_k = { shelf = 3 }", "eval_top_k must be a table of K by passage and library"),
        ("loss = 3", "loss must be a table, got 3"),
        ("[loss]\nlm = -1", "loss: lm must be a number from 0, got -1"),
        ('[loss]\nlm = "x"', "loss: lm must be a number from 0, got 'x'"),
        ("stages = []", r"stages must be tables \[\[stages\]\], got \[\]"),
        ("stages = [3]", r"stages\[0\] must be a table, got 3"),
        ("[[stages]]\ntop_k = 0", r"stages\[0\]: top_k must be at least 1, got 0"),
        ("[[stages]]\ntop_k = 1\nk = 2", r"stages\[0\]: unknown key 'k'"),
        ("[[stages]]\ntop_k = 1\nuntil_step = 3", r"stages\[0\]: must have no end, for it is the last"),
        ("stages = [{top_k = 1}, {top_k = 2}]", r"stages\[0\]: must have one of until_step and until_share"),
        ("stages = [{top_k = 1, until_share = 1.5}, {top_k = 2}]", "until_share must be between 0 and 1, got 1.5"),
        ("stages = [{top_k = 1, until_step = 0.5}, {top_k = 2}]", "until_step must be a whole number from 1"),
        (
            "stages = [{top_k = 1, until_step = 9}, {top_k = 1, until_step = 5}, {top_k = 2}]",
            r"stages must rise in until_step, got \[9, 5\]",
        ),
        (
            "stages = [{top_k = 1, until_step = 9}, {top_k = 1, until_share = 0.5}, {top_k = 2}]",
            "stages must all end by until_step or all by until_share",
        ),
        ('[[stages]]\ntop_k = 1\nlosses = ["lma"]', "unknown loss 'lma'"),
        ("[[stages]]\ntop_k = 1\nweights = { lm = -1 }", "weights: lm must be a number from 0, got -1"),
        ("[recipes.mine]", "recipes: unknown key 'mine'"),
        ("[systems.mine]", "systems: unknown key 'mine'"),
        ("[systems]\ndoc2atom = 1", "systems.doc2atom must be a table, got 1"),
        ("[recipes]\nd2a = 1", "recipes.d2a must be a table, got 1"),
        ("[systems.reader]\nsead = 1", "systems.reader: unknown key 'sead'"),
        ('[systems.d2l]\nrecipe = "paper"', "systems.d2l: unknown key 'recipe'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        config_of(tmp_path, text)


def test_a_systems_table_is_for_it_alone_and_goes_over_the_recipes(tmp_path):
    text = (
        'recipe = "d2a"\nlearning_rate = 1.0\n[recipes.d2a]\nlearning_rate = 0.5\n[systems.d2l]\nlearning_rate = 0.1\n'
    )
    assert config_of(tmp_path, text).learning_rate == 0.5
    assert config_of(tmp_path, text, system="reader").learning_rate == 0.5
    assert config_of(tmp_path, text, system="d2l").learning_rate == 0.1


@pytest.mark.parametrize("name", ["gemma", "qwen"])
def test_doc_to_lora_trains_at_its_own_published_rate(name):
    request = TrainRequest(config=name, data=None, out=Path("out"), system="d2l")
    assert request.resolved().learning_rate == 4e-5
    assert replace(request, overrides={"learning_rate": 1e-3}).resolved().learning_rate == 1e-3


@pytest.mark.parametrize(
    ("system", "reads", "share"),
    [("doc2atom", None, 0.04), ("reader", "atoms", 0.04), ("reader", "document", 0.0), ("d2l", "atoms", 0.0)],
)
def test_who_reads_a_document_whole_never_learns_to_refuse_what_it_answers(system, reads, share):
    request = TrainRequest(config="smollm2", data=None, out=Path("out"), system=system, reads=reads)
    assert request.resolved().share_withheld == share


def test_an_unknown_name_says_what_to_pass():
    with pytest.raises(ConfigError, match=r"no training configuration 'nonesuch'.*TOML"):
        load_config("nonesuch")


def test_an_unknown_override_is_refused():
    with pytest.raises(ConfigError, match="override: unknown key 'sead'"):
        TrainConfig().with_overrides({"sead": 1})


def test_overrides_of_a_command_line_are_json_or_text():
    pairs = ["seed=7", "feature_home=device", 'records="a.jsonl"', "memory.router.null_slot=false", "micro_batch=null"]
    assert parse_overrides(pairs) == {
        "seed": 7,
        "feature_home": "device",
        "records": "a.jsonl",
        "memory.router.null_slot": False,
        "micro_batch": None,
    }
    with pytest.raises(ConfigError, match="--set must be KEY=VALUE, got 'seed'"):
        parse_overrides(["seed"])
