"""Every part measures what the product does, over tiny bases."""

import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models import generation
from models.baselines.d2l import HyperLora
from models.checkpoint import CheckpointMeta
from models.engine import Candidates, Engine
from models.lexical import LexicalIndex, best_rows
from models.presets import MemorySpec
from models.router import AnswerabilityGate
from tests.models.tiny import tiny_base, tiny_network, tiny_spec
from training.bench.efficiency import generating, questions
from training.bench.efficiency.compiling import batched_bytes, compile_part, compile_passage, d2l_part
from training.bench.efficiency.generating import (
    EVERYTHING,
    NOTHING,
    CountOps,
    generation_part,
    ops_of_a_token,
    variants,
)
from training.bench.efficiency.meters import Meter
from training.bench.efficiency.product import product_part
from training.bench.efficiency.questions import AskedBank, KeyBlocks, never_ending, questions_part, rows_of
from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.storing import shard_bytes, store_part
from training.bench.efficiency.subjects import Subject
from training.bench.efficiency.texts import Passage, as_atoms, invented, text_of, words

CPU = torch.device("cpu")
SPECS = {
    "d2a": tiny_spec("d2a"),
    "d2a in int8": tiny_spec("d2a", kv={"store": "int8"}),
    "d2a in int6": tiny_spec("d2a", kv={"store": "int6"}),
    "paper": tiny_spec("paper"),
    "paper with latent micro-KV": tiny_spec("paper", kv={"source": "latent"}),
}
READING = tiny_spec("d2a", router={"num_read": SPECS["d2a"].router.top_k + 2})
ATOMS = ("Ilse Kant built nine bridges.", "Otters live in lake Tor.", "The zoo keeps forty otters.")


def subject_of(spec: str | MemorySpec = "d2a", family: str = "llama") -> Subject:
    base = tiny_base(family)
    network = tiny_network(base, SPECS[spec] if isinstance(spec, str) else spec).requires_grad_(False)
    meta = CheckpointMeta(preset="tiny", spec=network.spec, base_fingerprint="", gate=asdict(AnswerabilityGate()))
    return Subject(engine=Engine(base, network, meta), is_trained=False)


def request_of(**changes: object) -> EfficiencyRequest:
    settings = {"model": "smollm2", "size": "tiny", "budget_s": 0.0, "num_atoms": 4, "num_tokens": 64, "new_tokens": 3}
    return EfficiencyRequest(**{**settings, "bank_sizes": (50, 200), **changes})


def test_texts_have_the_tokens_that_were_asked_for():
    tokenizer = tiny_base("llama").tokenizer  # a token a character
    assert len(text_of(tokenizer, 37, random.Random(0))) == 37
    passage = invented(tokenizer, num_atoms=5, num_tokens=100, seed=0)
    assert [len(a) for a in passage.atoms] == [20] * 5
    counts = np.bincount([int(w[1:]) for w in words(20_000, random.Random(0)).split()])
    assert counts[1] > 5 * counts[10] > 0  # as often as their rank says


@pytest.mark.parametrize("spec_name", SPECS)
def test_a_compiled_document_is_routed_as_the_engine_would(spec_name):
    subject = subject_of(spec_name)
    subject.engine.network.router.stretch.fill_(3.0)
    meter = Meter(CPU)
    routed = {}
    reading = meter.once(lambda: routed.update(it=compile_passage(subject.engine, Passage.of(ATOMS), meter)))
    keys_NE, _ = subject.engine.compile(as_atoms(ATOMS), store="compact")
    cosine = keys_NE @ subject.engine.query_key(ATOMS[0])  # the question is the first atom's first words
    index, are_used = LexicalIndex.build(ATOMS, documents=[0] * 3), subject.spec.router.lexical
    lexical, stretch = index.all_scores(ATOMS[0]) * are_used, index.stretch_scores(ATOMS[0]) * are_used
    candidates = Candidates(cosine=cosine, lexical=lexical, stretch=stretch, rerank=None)
    expected = subject.engine.route(candidates, as_atoms(ATOMS), top_k=subject.spec.router.top_k)
    assert routed["it"].rows == expected.rows
    assert routed["it"].score == pytest.approx(expected.score, abs=1e-4)
    assert set(reading.parts) == {"encoder", "compiler", "key write", "word index", "route"}
    # What is not in a part is the making of atoms; other processes may take turns there.
    assert sum(reading.parts.values()) == pytest.approx(reading.seconds, rel=0.25, abs=0.01)


def test_compiling_reports_documents_as_both_systems_read_them():
    subject = subject_of()
    found = compile_part(subject, request_of(documents=(ATOMS, ATOMS[:1])), Meter(CPU))
    # One token a character: 29 + 24 + 27 with two line ends, and 29; atoms are cut at 24.
    assert [len(a) for a in ATOMS] == [29, 24, 27]
    benchmark = found["benchmark"]
    assert (benchmark["documents"], benchmark["mean_atoms"]) == (2, 2.0)
    assert benchmark["mean_tokens"] == ((80 + 2) + 29) / 2
    assert benchmark["mean_atom_tokens_read"] == (3 * 24 + 24) / 2
    assert found["invented"]["mean_tokens"] == 64 + 3
    means = [part["mean_ms"] for part in benchmark["parts"].values()]
    assert sum(means) == pytest.approx(benchmark["mean_ms"], rel=0.25, abs=10)
    assert sum(means[2:]) == pytest.approx(benchmark["router_mean_ms"])


def test_doc_to_lora_is_left_out_where_it_does_not_fit():
    subject = subject_of()
    hyper = HyperLora.over(subject.base)
    passage = Passage.of(ATOMS)
    one = batched_bytes(subject, hyper, passage, layers_at_once=1)
    assert batched_bytes(subject, hyper, passage, layers_at_once=None) == 6 * one
    found = d2l_part(subject, request_of(memory_gib=4 * one / 2**30), Meter(CPU))["invented"]
    # The invented document is shorter than this one, but six layers of it need more than four of these.
    assert found["layer by layer"]["n"] == 2
    assert "are free" in found["batched"]["left_out"] or found["batched"]["n"] >= 2
    starved = d2l_part(subject, request_of(memory_gib=0.0), Meter(CPU))["invented"]
    assert "would need about" in starved["layer by layer"]["left_out"]


def test_keys_in_blocks_are_searched_exactly(monkeypatch):
    monkeypatch.setattr(questions, "BLOCK_ROWS", 30)
    keys = KeyBlocks.invented(100, 12, CPU)
    assert [len(b) for b in keys.blocks] == [30, 30, 30, 10]
    assert keys.num_bytes == 100 * 12 * 4
    key = F.normalize(torch.randn(12, generator=torch.Generator().manual_seed(3)), dim=-1).numpy()
    everything = torch.cat(keys.blocks).numpy() @ key
    rows, cosine = keys.top(key, 8)
    assert rows.tolist() == np.argsort(-everything)[:8].tolist()
    np.testing.assert_allclose(cosine, everything[rows], atol=1e-6)
    np.testing.assert_allclose(keys.cosines(key, np.array([99, 0, 45])), everything[[99, 0, 45]], atol=1e-6)
    assert len(keys.top(key, 500)[0]) == 100


def test_candidates_of_words_join_those_of_keys():
    subject = subject_of()
    atoms, shard = questions.few_atoms(request_of(), subject)
    index = questions.word_index(200).index
    bank = AskedBank(
        engine=subject.engine, keys=KeyBlocks.invented(200, 12, CPU), index=index, atoms=atoms, shard=shard
    )
    question, meter = words(8, random.Random(1)), Meter(CPU)
    limit = subject.spec.router.num_candidates
    by_keys, _ = bank.keys.top(subject.engine.query_key(question), limit)
    lexical = index.all_scores(question)
    by_words = best_rows(lexical + index.stretch_scores(question), limit)
    routed = bank.route(question, meter)
    found = sorted(set(by_keys.tolist()) | set(by_words.tolist()))
    assert len(routed.score) == len(found) > limit
    assert routed.top_lexical == pytest.approx(float(lexical[found].max()))


def test_reading_the_best_candidates_is_a_part_of_routing():
    subject = subject_of(READING)
    subject.engine.network.router.reading.fill_(1.0)
    atoms, shard = questions.few_atoms(request_of(), subject)
    keys = KeyBlocks.invented(40, 12, CPU)
    bank, meter = AskedBank(engine=subject.engine, keys=keys, index=None, atoms=atoms, shard=shard), Meter(CPU)
    routed = {}
    reading = meter.once(lambda: routed.update(it=bank.route("w1 w2", meter)))
    top_k = subject.spec.router.top_k
    assert "reading" in reading.parts and len(routed["it"].refusal) == top_k + 2
    assert len(routed["it"].rows) == top_k


def test_rows_of_a_shard_in_memory_are_those_of_its_atoms():
    shard = {
        "latent": torch.arange(6.0).view(3, 2),
        "entry": torch.arange(5.0).view(5, 1),
        "entry.offsets": torch.tensor([0, 2, 2, 5]),
    }
    found = rows_of(shard, [2, 0])
    assert [t.tolist() for t in found["latent"]] == [[4.0, 5.0], [0.0, 1.0]]
    assert [t.flatten().tolist() for t in found["entry"]] == [[2.0, 3.0, 4.0], [0.0, 1.0]]


def test_an_answer_has_exactly_the_tokens_that_were_asked_for(monkeypatch):
    subject = subject_of()
    kept = generation.end_ids
    everything = set(range(len(subject.base.tokenizer)))
    monkeypatch.setattr(generation, "end_ids", lambda *_: everything)  # any token would end it
    started = subject.engine.start("Who?", None)
    assert subject.engine.finish(started, max_new_tokens=5)[1] == 0
    with never_ending():
        assert subject.engine.finish(subject.engine.start("Who?", None), max_new_tokens=5)[1] == 5
    monkeypatch.setattr(generation, "end_ids", kept)
    with pytest.raises(RuntimeError), never_ending():
        raise RuntimeError
    assert generation.end_ids is kept


def test_questions_are_measured_at_every_size_and_large_indices_left_out(monkeypatch):
    built = {n: questions.word_index(n).index for n in (50, 100, 200)}
    monkeypatch.setattr(questions, "word_index", lambda n: questions.WordIndex(index=built[n], build_s=2.0))
    found = questions_part(subject_of(), request_of(bank_sizes=(50, 100, 200), index_budget_s=5.0), Meter(CPU))
    # 50 atoms took 2 s, so that 100 should take 4; those took 2 as well, so that 200 should take 4 again.
    assert [b["words"] for b in found["banks"]] == ["used"] * 3
    assert [b["keys_mib"] for b in found["banks"]] == [round(n * 12 * 4 / 2**20, 2) for n in (50, 100, 200)]
    question = found["banks"][0]["question"]
    assert set(question["parts"]) == {
        "encode", "stage 1, keys", "stage 1, words", "stage 2", "compose", "first token", "gate",
        "other tokens",
    }  # fmt: skip
    assert sum(p["mean_ms"] for p in question["parts"].values()) == pytest.approx(question["mean_ms"], rel=0.25, abs=10)
    found = questions_part(subject_of(), request_of(bank_sizes=(50, 100, 200), index_budget_s=3.0), Meter(CPU))
    assert [b["words"] for b in found["banks"]] == [
        "used",
        "left out: building the index would take about 4 s",
        "left out: building the index would take about 8 s",
    ]
    assert "stage 1, words" not in found["banks"][1]["routing"]["parts"]
    assert questions_part(subject_of("paper"), request_of(), Meter(CPU))["banks"][0]["words"] == "not used"


@pytest.mark.parametrize("spec_name", SPECS)
def test_generation_is_compared_by_kinds_of_adapter(spec_name):
    subject = subject_of(spec_name)
    found = generation_part(subject, request_of(), Meter(CPU))
    kinds = found["kinds"]
    assert ("micro-KV alone" in kinds) == (spec_name != "paper")
    assert all(figures["n"] == 3 and figures["ops_a_token"] > 0 for figures in kinds.values())
    assert kinds[EVERYTHING]["ops_a_token"] > kinds[NOTHING]["ops_a_token"]
    low, high = found["overhead_quartiles"]
    assert low <= found["overhead"] == found["overhead_of"][EVERYTHING] <= high
    assert (found["new_tokens"], found["turn_tokens"]) == (3, 3)


def test_kinds_of_adapter_take_short_turns_there_and_back(monkeypatch):
    turns = []
    generate = generating.generate

    def seen(engine, question, adapter, meter, *, new_tokens):
        turns.append((adapter is not None, new_tokens))
        generate(engine, question, adapter, meter, new_tokens=new_tokens)

    monkeypatch.setattr(generating, "generate", seen)
    found = generation_part(subject_of("paper"), request_of(new_tokens=20), Meter(CPU))
    without, under = (False, 8), (True, 8)
    # Two that warm up, then three turns of both kinds.
    assert turns == [without, under, without, under, under, without, without, under]
    kinds = found["kinds"]
    assert (kinds[NOTHING]["n"], kinds[EVERYTHING]["n"], found["turn_tokens"]) == (3, 3, 8)
    one = kinds[NOTHING]["parts"]
    assert one["other tokens"]["mean_ms"] + one["first token"]["mean_ms"] == pytest.approx(
        kinds[NOTHING]["mean_ms"], abs=0.01
    )


def test_operations_of_a_token_grow_with_the_sites_alone():
    subject = subject_of("paper")
    bank = AskedBank(
        engine=subject.engine, keys=KeyBlocks.invented(4, 12, CPU), index=None, atoms=as_atoms(ATOMS), shard={}
    )
    _, shard = subject.engine.compile(bank.atoms, store="compact")
    bank = AskedBank(engine=bank.engine, keys=bank.keys, index=None, atoms=bank.atoms, shard=shard)
    adapter = bank.compose(bank.route("Who?", Meter(CPU)))
    sites = list(adapter.lora)
    half = type(adapter)(lora={s: adapter.lora[s] for s in sites[:4]})
    none, some, every = (ops_of_a_token(subject.engine, "Who?", a) for a in (None, half, adapter))
    assert len(sites) == 8 and every - none == 2 * (some - none) > 0
    assert list(variants(adapter)) == [NOTHING, EVERYTHING]


@pytest.mark.parametrize("spec_name", SPECS)
def test_the_bytes_of_a_shard_are_those_of_the_arithmetic(spec_name):
    found = store_part(subject_of(spec_name), request_of(), Meter(CPU))
    assert found["compact"]["arithmetic_is_exact"] and found["full"]["arithmetic_is_exact"]
    assert found["full"]["file_bytes"] > found["compact"]["file_bytes"]


def test_bytes_an_atom_by_hand():
    base, spec = tiny_base("llama"), SPECS["d2a"]
    # Latent 6 x 4; ten tokens of 48 states in bfloat16, one offset of 8.
    assert shard_bytes(base, spec, num_tokens=10, store="compact") == 24 + 10 * 48 * 2 + 8 == 992
    # In int8 ten tokens of 48 states and one scale in float16, one offset for each of the two.
    assert shard_bytes(base, SPECS["d2a in int8"], num_tokens=10, store="compact") == 24 + 10 * (48 + 2) + 16 == 540
    # In int6 they are 36 bytes.
    assert shard_bytes(base, SPECS["d2a in int6"], num_tokens=10, store="compact") == 24 + 10 * (36 + 2) + 16 == 420
    # A layer: q 48 -> 64, v 48 -> 32, o 64 -> 48, down 64 -> 48: 112 + 80 + 112 + 112 = 416 at rank 4; two layers in
    # float32, and eight mask logits.
    assert shard_bytes(base, spec, num_tokens=10, store="full") == 992 + 4 * (2 * 4 * 416 + 8) == 14_336
    assert shard_bytes(base, SPECS["paper"], num_tokens=10, store="compact") == 4 * 24


def test_the_product_is_measured_over_a_bank_on_disk(monkeypatch):
    pytest.importorskip("lancedb")
    monkeypatch.setattr("training.bench.efficiency.product.MEASURED_S", 0.0)
    found = product_part(subject_of(), request_of(bank_sizes=(40, 90), budget_s=60.0), Meter(CPU))
    assert [row["num_atoms"] for row in found["banks"]] == [40, 90]
    # A key of 12 floats at least, and the atom's JSON.
    assert all(row["bytes_an_atom_beside_states"] > 48 and row["routing"]["n"] == 5 for row in found["banks"])
    assert {"nearest keys", "words", "atoms of candidates"} <= set(found["banks"][0]["of which"])
    short = product_part(subject_of(), request_of(bank_sizes=(40, 90), budget_s=0.0), Meter(CPU))
    assert len(short["banks"]) == 1 and short["left_out"].startswith("90 atoms and more")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert product_part(subject_of(), request_of(), Meter(CPU)) == {"left_out": "lancedb is not installed here"}


def test_only_operations_that_make_new_values_are_counted():
    x = torch.ones(2, 3, 4)
    with CountOps() as ops:
        y = x.transpose(1, 2) @ x  # two batched products in one operation, and what is done around it only looks
        z = y.view(2, 16)[:, 3]
    assert ops.count == 1 and z.tolist() == [3.0, 3.0]
