"""Calibration: the score's weights go where held-out questions want them, and leave keys and latents alone."""

import json
from dataclasses import replace

import pytest
import torch

import models.presets
import training.config
from models.atoms import AnnotationRecord
from models.checkpoint import read_meta
from tests.training.samples import colours, make_record
from tests.training.test_run import request_for
from tests.training.worlds import SPECS, base_of, library_over
from training.calibration import calibrate, fit_reading, fit_scores, refit
from training.run import train


@pytest.fixture
def library():
    return library_over(base_of("llama"), SPECS["d2a"], colours(40))


def test_words_gain_weight_where_they_find_the_answer_and_random_keys_do_not(library):
    router = library.network.router
    with torch.no_grad():
        router.lexical.fill_(1.0)
        router.bias.fill_(3.0)
    figures = fit_scores(library, max_questions=60)
    assert figures["loss_after"] < 0.5 * figures["loss_before"]
    assert figures["lexical"] == router.lexical.item() > 5.0
    assert figures["bias"] == router.bias.item() < 3.0


def test_the_stretch_gains_weight_where_questions_lean_on_the_neighbours():
    # No atom of a lake holds its name but the first, and all lakes have the same second and third atom.
    lakes = ["Alva", "Brim", "Corso", "Dunmore", "Elsin", "Farrow", "Gask", "Hollin"]
    library = library_over(base_of("llama"), SPECS["d2a"], [_lake(name) for name in lakes])
    figures = fit_scores(library)
    assert figures["stretch"] == library.network.router.stretch.item() > 3.0


def test_only_the_scores_own_weights_change_and_stay_frozen(library):
    before = {name: value.clone() for name, value in library.network.state_dict().items()}
    fit_scores(library, max_questions=30)
    changed = {n for n, v in library.network.state_dict().items() if not torch.equal(v, before[n])}
    assert changed <= {f"router.{n}" for n in ("log_scale", "bias", "lexical", "stretch", "metadata")}
    assert "router.lexical" in changed
    assert not any(p.requires_grad for p in library.network.parameters())


def test_weights_are_those_that_a_checkpoint_keeps(library):
    fit_scores(library, max_questions=30)
    router = library.network.router
    for value in (router.log_scale, router.bias, router.lexical, router.stretch, router.metadata):
        assert torch.equal(value, value.bfloat16().float())


def test_a_memory_without_words_keeps_their_weight_at_zero():
    library = library_over(base_of("llama"), SPECS["paper"], colours(8))
    figures = fit_scores(library, max_questions=12)
    assert not {"lexical", "stretch"} & set(figures)
    assert library.network.router.lexical.item() == library.network.router.stretch.item() == 0.0


def test_the_gate_is_fitted_to_the_new_scores(library):
    gate, figures = calibrate(library, max_questions=12, batch_size=6)
    assert (figures["scores"]["questions"], figures["questions"]) == (120, 12)
    assert figures["auroc"]["off_library"] > 0.9  # colours name their passage, so words alone tell
    assert 0.0 <= gate.threshold <= 1.0


def test_reading_gains_weight_where_it_tells_and_what_it_reads_is_chosen_as_before(monkeypatch):
    spec = replace(SPECS["d2a"], router=replace(SPECS["d2a"].router, num_read=4))
    library = library_over(base_of("llama"), spec, colours(12))
    router = library.network.router
    with torch.no_grad():
        router.stretch.fill_(1.5)
    asks = [library.asks(p)[0] for p in range(6)]
    key_BE = library.query_keys(asks)
    found = library.library_candidates(asks, key_BE)
    before = library.scored(key_BE, found)

    def read(asks, found, *, num_read):
        best = replace(found, **{n: t[:, :num_read] for n, t in vars(found).items()})
        gold = torch.tensor(
            [[row in a.gold for row in rows] for a, rows in zip(asks, best.row_BC.tolist(), strict=True)]
        )
        return best, torch.where(gold, -8.0, -0.1)  # nearly no refusal under the atom that answers

    monkeypatch.setattr(library, "read", read)
    figures = fit_reading(library, max_questions=12, batch_size=6)
    assert figures["reading"] == pytest.approx(router.reading.item(), rel=0.01)
    assert router.num_read == 4 and router.reading.item() > 0.5
    assert figures["loss_after"] < 0.5 * figures["loss_before"]
    after = library.scored(key_BE, found)
    expected = figures["scale"] * before.score_BC + figures["shift"]
    # Weights are kept in bfloat16, of 8 bits: half a percent each.
    assert torch.allclose(after.score_BC, expected, rtol=0.02, atol=0.02 * expected.abs().max().item())


def _lake(name: str) -> AnnotationRecord:
    sentences = [f"Lake {name} lies in Oland.", "Its water is green.", "Its fish are trout."]
    questions = [(f"Which water has {name}?", "green", [1]), (f"Which fish has {name}?", "trout", [2])]
    return make_record(f"Lake {name}", sentences, questions)


def test_a_checkpoint_whose_configuration_has_a_field_that_is_gone_is_fitted_anew(tmp_path, monkeypatch):
    request = request_for(tmp_path, "llama", "d2a")
    folder = train(request, on_event=lambda _: None)
    path = folder / "memory.json"
    data = json.loads(path.read_text("utf-8"))
    data["training"]["config"]["cuda_graphs"] = True
    path.write_text(json.dumps(data), "utf-8")
    before = read_meta(folder)
    # By its name alone no preset of a test is found.
    preset = models.presets.load_preset(str(tmp_path / "tiny.toml"))
    monkeypatch.setattr(models.presets, "load_preset", lambda _name: preset)
    loaded = training.config.load_config(request.config)
    monkeypatch.setattr(training.config, "load_config", lambda _name: loaded)
    figures = refit(
        request.data, folder, max_questions=8, batch_size=4, gate_alone=True, base_path=request.base_path, device="cpu"
    )
    after = read_meta(folder)
    assert after.gate["threshold"] == figures["threshold"] and after.spec == before.spec
    assert after.training["config"] == before.training["config"]
