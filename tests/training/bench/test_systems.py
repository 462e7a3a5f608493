from dataclasses import replace

import numpy as np
import pytest
import torch

from models.baselines.checkpoint import BaselineMeta, save_baseline
from models.baselines.d2l import D2LConfig, HyperLora, internalize
from models.errors import CheckpointError
from models.static_lora import StaticLora
from tests.models.tiny import tiny_network, tiny_spec
from tests.training.bench.worlds import TOWN, ZOO, bank_of, small_suite
from training.bench.bank import taken
from training.bench.protocols import OfficialPrompt, Protocol
from training.bench.systems import SYSTEMS, build_system
from training.bench.systems.passages import Passages, fused, windows
from training.bench.systems.prompts import Prompts

ROWS = range(5)


@pytest.fixture(scope="module")
def bank(base, network, tmp_path_factory):
    return bank_of(base, network)


def built(name, base, network=None, checkpoint=None):
    return build_system(name, base, network, preset="tiny", checkpoint=checkpoint)[0]


def same(left, right):
    assert left.lora.keys() == right.lora.keys()
    assert left.prefix.keys() == right.prefix.keys()
    for site, (a, b) in left.lora.items():
        torch.testing.assert_close((a, b), right.lora[site])
    for layer, prefix in left.prefix.items():
        torch.testing.assert_close(vars(prefix), vars(right.prefix[layer]))


def test_no_context_gives_nothing_and_the_base_its_document(base, bank):
    nothing, document = (built(name, base).give(bank, ROWS) for name in ("no-context", "base+ctx"))
    assert nothing.texts == [None] * 5
    assert document.texts[0] == TOWN
    assert document.texts[4] == ZOO
    assert nothing.adapter([0]) is document.adapter([0]) is None


def test_doc2atom_gives_what_the_library_composes(base, network, bank):
    given = built("doc2atom", base, network).give(bank, ROWS)
    assert given.gated
    assert given.texts == [None] * 5
    same(given.adapter([3, 1]), bank.library.adapter(taken(bank.route(ROWS), [3, 1])))


def test_where_the_gate_decides_alone_no_memory_may_refuse_and_the_base_may(base, network, bank, monkeypatch):
    memories = ("doc2atom", "gold-atoms", "shuffled-document", "doc2atom+atoms")
    systems = {name: built(name, base, network) for name in (*memories, "base+ctx")}
    assert all(system.give(bank, ROWS).may_refuse for system in systems.values())
    router = replace(network.spec.router, gate_alone=True)
    monkeypatch.setattr(bank.library.network, "spec", replace(network.spec, router=router))
    assert {name for name, system in systems.items() if system.give(bank, ROWS).may_refuse} == {"base+ctx"}


def test_text_beside_the_memory_is_its_atoms_or_the_document(base, network, bank):
    atoms = built("doc2atom+atoms", base, network).give(bank, ROWS)
    document = built("doc2atom+ctx", base, network).give(bank, ROWS)
    weights = bank.route([0]).log_weight_BK[0].exp().tolist()
    texts = [bank.library.texts[atom] for atom in bank.route([0]).row_BK[0].tolist()]
    assert atoms.texts[0] == " ".join(text for text, weight in zip(texts, weights, strict=True) if weight > 0.01)
    assert document.texts[0] == TOWN


def test_in_a_bank_of_all_the_document_is_that_of_the_best_atom(base, network):
    # Asked of the zoo's document, though the answer stands in that of the town.
    suite = small_suite(asked=((2, "Who was born in Marn?", ""), (0, "Ilse Kant, Marn", "")))
    bank = bank_of(base, network, suite, kind="all")
    given = built("doc2atom+ctx", base, network).give(bank, range(2))
    best = bank.route(range(2)).row_BK[:, 0].tolist()
    assert given.texts == [bank.library.records[bank.library.passage_of[atom]].context for atom in best]
    assert given.texts[0] == TOWN


def test_a_shuffled_memory_holds_another_articles_atoms_and_no_gate_judges_it(base, network, bank):
    given = built("shuffled-document", base, network).give(bank, ROWS)
    assert not given.gated
    assert given.routed is None
    routed = bank.route_strangers(ROWS)
    for row, atoms in enumerate(routed.row_BK.tolist()):
        title = bank.suite.contexts[bank.suite.samples[row].document].title
        assert all(bank.library.records[bank.library.passage_of[atom]].title != title for atom in atoms)
    same(given.adapter(list(ROWS)), bank.library.adapter(routed))


def test_lora_only_drops_micro_kv_alone(base, network, bank):
    own, bare = (built(name, base, network).give(bank, ROWS).adapter([0, 1]) for name in ("doc2atom", "lora-only"))
    assert own.prefix
    assert not bare.prefix
    same(bare, replace(own, prefix={}))


def test_a_static_lora_is_one_for_all_questions_beside_their_own_micro_kv(base, network, bank):
    own, static = (
        built(name, base, network).give(bank, ROWS).adapter(list(ROWS)) for name in ("doc2atom", "kv+static-lora")
    )
    same(replace(static, lora={}), replace(own, lora={}))
    [mean] = bank.library.latent_NZ.mean(0, keepdim=True)
    factors = network.compiler.factors(mean)
    site = network.compiler.sites[0]
    torch.testing.assert_close(static.lora[site][0], factors.a[site][None])
    gate = torch.sigmoid(factors.mask_logits).flatten()[0]
    scale = network.spec.alpha / network.spec.rank
    torch.testing.assert_close(static.lora[site][1], factors.b[site][None] * gate * scale)


def test_a_static_lora_beside_atoms_that_share_one_says_that_it_would_be_doc2atom_again(base):
    network = tiny_network(base, tiny_spec("d2a", lora="static"))
    with pytest.raises(CheckpointError, match=r"is doc2atom itself: all atoms .* share one LoRA\. Read the row"):
        built("kv+static-lora", base, network)
    assert built("doc2atom", base, network).name == "doc2atom"


def test_gold_atoms_are_given_without_routing(base, network, bank):
    given = built("gold-atoms", base, network).give(bank, ROWS)
    assert not given.gated
    same(given.adapter([2]), bank.library.adapter(taken(bank.route_gold(ROWS), [2])))


def saved(folder, base, system, reads, **training):
    if system == "d2l":
        config = D2LConfig(width=16, num_encoder_blocks=1, num_heads=4, num_kv_heads=2, head_dim=4, max_chunk_tokens=64)
        module, shape = HyperLora.over(base, config), config.to_dict()
        torch.nn.init.normal_(module.scale_b_LR)
    else:
        module, shape = StaticLora(tiny_spec(), base), tiny_spec().to_dict()
        for b in module.b_1OR:
            torch.nn.init.normal_(b)
    meta = BaselineMeta(
        system=system, preset="tiny", base_fingerprint=base.fingerprint(), shape=shape, reads=reads, training=training
    )
    save_baseline(folder, module, meta)
    return folder


@pytest.mark.parametrize(
    "name, kind, reads",
    [("blind", "blind", ""), ("tuned+atoms", "reader", "atoms"), ("tuned+ctx", "reader", "document")],
)
def test_readers_give_one_trained_lora_and_their_text(base, network, bank, tmp_path, name, kind, reads):
    given = built(name, base, network, saved(tmp_path, base, kind, reads)).give(bank, ROWS)
    like = {"blind": "no-context", "tuned+atoms": "doc2atom+atoms", "tuned+ctx": "base+ctx"}[name]
    assert list(given.texts) == list(built(like, base, network).give(bank, ROWS).texts)
    assert given.adapter([0]) is given.adapter([1, 2])
    assert all(len(a) == 1 for a, _ in given.adapter([0]).lora.values())


@pytest.mark.parametrize("name, reads", [("d2l-raw", "raw"), ("d2l-atom", "atoms")])
def test_doc_to_lora_reads_each_questions_own_document(base, network, bank, tmp_path, name, reads):
    system = built(name, base, network, saved(tmp_path, base, "d2l", reads))
    given = system.give(bank, ROWS)
    assert given.texts == [None] * 5
    texts = [bank.document(row) if reads == "raw" else bank.atom_lines(row) for row in (3, 0, 4)]
    together = given.adapter([3, 0, 4])
    for place, text in enumerate(texts):
        alone = internalize(base, system.hyper, [text])
        for site, (a, b) in alone.lora.items():
            update = together.lora[site][1][place] @ together.lora[site][0][place]
            torch.testing.assert_close(update, (b @ a)[0], atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_another_kind_is_refused(base, network, tmp_path):
    folder = saved(tmp_path, base, "reader", "document")
    with pytest.raises(CheckpointError, match=r"a reader that reads document, tuned.atoms needs a reader"):
        built("tuned+atoms", base, network, folder)


def test_only_the_converted_release_stands_for_the_official_checkpoint(base, bank, tmp_path):
    ours = saved(tmp_path / "ours", base, "d2l", "raw")
    with pytest.raises(CheckpointError, match=r"is no converted release.*models.baselines.release"):
        built("d2l-ckpt", base, None, ours)
    released = saved(tmp_path / "released", base, "d2l", "raw", release={})
    assert built("d2l-ckpt", base, None, released).give(bank, ROWS).texts == [None] * 5


def test_a_registered_baseline_is_found_without_its_path(base, network, tmp_path, monkeypatch):
    monkeypatch.setenv("D2A_DATA", str(tmp_path))
    saved(tmp_path / "baselines/tiny/blind", base, "blind", "")
    assert built("blind", base, network).name == "blind"


def test_every_name_is_a_system_or_says_what_it_lacks(base, network):
    for name in SYSTEMS:
        try:
            assert built(name, base, network).name == name
        except CheckpointError as error:
            assert error.hint


def test_windows_cover_the_text_and_begin_where_atoms_do(bank):
    [record] = [r for r in bank.library.records if r.context == TOWN]
    found = windows(record, size=60)
    assert "".join(TOWN[a:b] for a, b in found) == TOWN
    # Sentences of 27, 37 and 32 characters, blanks apart: two do not fit into 60, or the last two.
    assert [TOWN[a:b].strip() for a, b in found] == [
        "Ilse Kant was born in Marn.",
        "She built nine bridges there in 1920.",
        "The town of Marn burned in 1953.",
    ]
    assert [TOWN[a:b] for a, b in windows(record, size=600)] == [TOWN]


def test_fusion_adds_reciprocal_ranks():
    # Ranks (0, 2), (1, 0), (2, 1): 1/61 + 1/63 < 1/62 + 1/61, and 1/63 + 1/62 is least.
    assert fused([np.array([3.0, 2.0, 1.0]), np.array([1.0, 3.0, 2.0])]).tolist() == [1, 0, 2]
    assert fused([np.array([1.0, 1.0])]).tolist() == [0, 1]


def test_retrieval_finds_passages_by_words_by_keys_and_by_both(base, network, monkeypatch):
    monkeypatch.setattr("training.bench.systems.passages.WINDOW_CHARS", 30)
    monkeypatch.setattr(windows, "__defaults__", (30,))
    bank = bank_of(base, network, kind="all", top_k=1)
    words = Passages(bank).best([0, 2, 3], by=("words",))
    assert words == [
        ["Ilse Kant was born in Marn."],
        ["Ships carried wool to the north."],
        ["Otters live in lake Tor."],
    ]
    [[found]] = Passages(bank).best([0], by=("keys",))
    nearest = int((bank.library.key_NE @ bank.keys(bank.asks[:1])[0]).argmax())
    assert found == bank.library.atoms[nearest].source_span


def test_retrieval_in_a_bank_of_the_document_stays_in_it(base, network, bank):
    given = built("retrieval", base, network).give(bank, ROWS)
    assert given.texts == [bank.document(row) for row in ROWS]


def test_our_prompt_is_kept_by_systems_that_were_trained_with_it(base):
    protocol = Protocol(name="official", official=OfficialPrompt(template="Read {context} and say {input}."))
    prompts = Prompts(base, protocol)
    trained, untrained = (
        base.tokenizer.decode(prompts.ids(["why"], ["this"], is_trained=t)[0], skip_special_tokens=True)
        for t in (True, False)
    )
    assert "Context: this" in trained
    assert "Read this and say why." in untrained
    assert "Context" not in untrained


def test_a_text_is_cut_to_the_protocol_and_to_the_bases_positions(base):
    # One token a character, 512 positions: 512 - 128 - 256 = 128 are left for the text.
    assert Prompts(base, Protocol(name="paper")).cut("x" * 500) == "x" * 128
    assert Prompts(base, Protocol(name="paper", max_context_tokens=7)).cut("x" * 500) == "x" * 7
    assert Prompts(base, Protocol(name="paper")).cut("short") == "short"


def test_a_prompt_is_tokenised_once_for_all_systems(base, monkeypatch):
    prompts = Prompts(base, Protocol(name="paper"))
    [first] = prompts.ids(["why"], ["this"], is_trained=True)
    monkeypatch.setattr("training.bench.systems.prompts.all_prompt_ids", lambda tokenizer, questions, texts: [])
    assert prompts.ids(["why"], ["this"], is_trained=False)[0] is first


def test_small_suites_are_as_the_tests_say():
    assert [len(c.questions) for c in small_suite().contexts] == [2, 1, 2]
