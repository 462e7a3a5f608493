"""The builder: what each system is built with, and what it keeps of its records."""

import pytest

from models.baselines.d2l import D2LConfig, HyperLora
from tests.models.tiny import tiny_spec
from tests.training.samples import colours
from tests.training.worlds import base_of
from training.build import Builder, Material
from training.config import TrainConfig
from training.curriculum import LossWeights
from training.episodes import build_episodes

RECORDS = tuple(colours(8))
HYPER = D2LConfig(width=16, head_dim=4, num_encoder_blocks=2, rank=4, max_chunk_tokens=40)


def test_doc_to_lora_is_built_with_its_own_teacher_and_reads_no_more_than_the_memorys():
    base, config = (
        base_of("llama"),
        TrainConfig(loss=LossWeights(distill=1.0), distill_temperature=1.5, distill_top_k=20, max_context_tokens=6),
    )
    material = Material(records=RECORDS, episodes=build_episodes(RECORDS))
    spec = tiny_spec()
    for name, reads in (("d2l", "raw"), ("d2l", "atoms"), ("reader", "document")):
        builder = Builder(system=name, reads=reads, base=base, spec=spec, config=config, emit=lambda _: None)
        module = HyperLora.over(base, HYPER) if name == "d2l" else builder.module()
        system = builder.over(module, material)
        if name == "reader":
            assert set(system.prompts.documents.texts) == {"The la"}  # a token a character
            continue
        assert len(system.chunks[0]) == 1 and "The la" in base.tokenizer.decode(system.chunks[0][0])
        assert "The lak" not in base.tokenizer.decode(system.chunks[0][0])
        features = system.features
        assert (features.config.distill_temperature, features.teacher_top_k) == (1.0, 16)


@pytest.mark.parametrize("system", ["doc2atom", "blind"])
def test_the_blind_control_keeps_no_states_of_atoms(system):
    material, sizes = Material(records=RECORDS, episodes=build_episodes(RECORDS)), []
    for layers in (False, True):  # with them the memory's states of atoms are kept for each of its two layers
        config = TrainConfig(cache_atom_layers=layers)
        builder = Builder(
            system=system, reads="", base=base_of("llama"), spec=tiny_spec(), config=config, emit=lambda _: None
        )
        built = builder.over(builder.module(), material)
        sizes.append((built.features if system == "doc2atom" else built.prompts.features).num_bytes)
    assert (sizes[0] == sizes[1]) == (system == "blind")
