import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

import training.bench.records
from models.lexical import LexicalIndex
from tests.models.tiny import tiny_network, tiny_spec
from tests.training.bench.worlds import HARBOUR, TOWN, ZOO, bank_of, small_suite
from training.bench.bank import Shelf, SuiteBank, joined, strangers, taken
from training.bench.records import bench_records
from training.datasets.context import QAItem
from training.library import Library
from training.records import DataError


def texts_of(bank, routed):
    weighed = (routed.log_weight_BK > -torch.inf).tolist()
    return [
        [bank.library.atoms[atom].source_span for atom, real in zip(atoms, row, strict=True) if real]
        for atoms, row in zip(routed.row_BK.tolist(), weighed, strict=True)
    ]


def test_a_bank_of_the_document_holds_its_own_atoms_alone(base, network):
    bank = bank_of(base, network, top_k=5)
    for row, found in enumerate(texts_of(bank, bank.route(range(5)))):
        assert found
        assert all(text in bank.document(row) for text in found)


def test_a_bank_of_all_reaches_every_document(base, network):
    bank = bank_of(base, network, kind="all", top_k=8)
    [found] = texts_of(bank, bank.route([0]))
    assert any(text in ZOO for text in found)
    assert bank.facts() == {"num_atoms": 8, "num_documents_read": 3, "mean_bank_atoms": 8.0}


def test_a_bank_of_the_document_reads_no_document_that_nobody_asks(base, network):
    suite = small_suite()
    drawn = replace(suite, samples=(suite.samples[0], suite.samples[3]))
    assert [r.context for r in bank_of(base, network, drawn).library.records] == [TOWN, ZOO]
    assert [r.context for r in bank_of(base, network, drawn, kind="all").library.records] == [TOWN, HARBOUR, ZOO]


def test_gold_atoms_are_those_that_hold_the_answer(base, network):
    bank = bank_of(base, network)
    assert texts_of(bank, bank.route_gold(range(5))) == [
        ["Ilse Kant was born in Marn."],
        ["The town of Marn burned in 1953."],
        ["Ships carried wool to the north."],
        ["Otters live in lake Tor."],
        ["The zoo keeps forty otters."],
    ]


def test_a_question_asked_of_a_strange_document_has_no_gold(base, network):
    suite = small_suite()
    asked = replace(suite.samples[0], sample_id="q0@zoo", document=2, kind="off_topic", references=())
    assert bank_of(base, network, replace(suite, samples=(asked,))).asks[0].gold == ()


def test_a_stranger_is_asked_of_another_article():
    suite = small_suite()
    for sample, found in zip(suite.samples, strangers(suite, 0), strict=True):
        assert suite.contexts[found[0]].title != suite.contexts[sample.document].title
        assert found[1] in [q.question for q in suite.contexts[found[0]].questions]


def test_a_stranger_of_a_single_draw_is_a_question_that_was_not_drawn():
    suite = small_suite()
    assert strangers(replace(suite, samples=suite.samples[:1]), 0) == [(2, "Where do otters live?")]


def test_a_suite_of_one_article_has_no_strangers(base, network):
    suite = small_suite()
    alone = replace(suite, contexts=suite.contexts[:2], samples=suite.samples[:3])
    assert strangers(alone, 0) == [None] * 3
    with pytest.raises(LookupError, match="no document of another article"):
        bank_of(base, network, alone).route_strangers([0])


def test_a_stranger_is_routed_alike_whether_it_is_asked_itself_or_not(base, network):
    rows = range(len(small_suite().samples))
    together, alone = bank_of(base, network).route_strangers(rows), bank_of(base, network)
    for row in rows:  # none of them is its own stranger, so that each is routed as such
        routed = alone.route_strangers([row])
        assert routed.row_BK.tolist() == together.row_BK[[row]].tolist()
        assert torch.allclose(routed.log_weight_BK, together.log_weight_BK[[row]], atol=1e-5)


def test_few_atoms_are_candidates_all_and_many_are_those_that_either_search_finds(base):
    spec = tiny_spec(router={"num_candidates": 1})
    bank = bank_of(base, tiny_network(base, spec), top_k=3)
    ask, [key_E] = bank.asks[0], bank.keys(bank.asks[:1])
    found = bank._document_candidates(ask, key_E)
    index = LexicalIndex.build(bank.library.texts[:3], documents=[0] * 3)
    near = int((bank.library.key_NE[:3] @ key_E).argmax())
    lexical, stretch = index.all_scores(ask.question.question), index.stretch_scores(ask.question.question)
    assert found.rows.tolist() == sorted({near, int((lexical + stretch).argmax())})
    assert found.lexical.tolist() == lexical[found.rows].tolist()
    assert found.stretch.tolist() == stretch[found.rows].tolist()
    wide = bank_of(base, tiny_network(base), top_k=3)._document_candidates(ask, key_E)
    assert (wide.rows.tolist(), wide.stretch.tolist()) == ([0, 1, 2], stretch.tolist())


@pytest.mark.parametrize("num_read", [0, 2])
def test_routing_does_not_depend_on_what_was_asked_before(base, num_read):
    network = tiny_network(base, tiny_spec(router={"num_read": num_read}))
    with torch.no_grad():
        network.router.reading.fill_(1.0)  # the model reads the candidates before some are chosen
    fresh, used = bank_of(base, network), bank_of(base, network)
    used.route([0]), used.route_strangers([1, 2])
    used.library.adapter(used.route([4]))
    routes = [bank.route([2, 3]) for bank in (fresh, used)]
    adapters = [bank.library.adapter(routed) for bank, routed in zip((fresh, used), routes, strict=True)]
    assert torch.equal(routes[0].log_weight_BK, routes[1].log_weight_BK)
    for layer, prefix in adapters[0].prefix.items():
        assert torch.equal(prefix.key_BHSF, adapters[1].prefix[layer].key_BHSF)


def test_strangers_that_are_asked_as_well_are_routed_once(base, network, monkeypatch):
    bank, apart = bank_of(base, network), bank_of(base, network)
    rows, own = range(5), bank.route(range(5))
    asks = [apart._strange[row] for row in rows]
    monkeypatch.setattr(bank, "_route", None)
    strange, expected = bank.route_strangers(rows), apart._route(asks)
    assert own.row_BK.tolist() != strange.row_BK.tolist() == expected.row_BK.tolist()
    torch.testing.assert_close(strange.log_weight_BK, expected.log_weight_BK)


def test_routing_in_parts_is_routing_at_once(base, network, monkeypatch):
    whole = bank_of(base, network, kind="all").route(range(5))
    monkeypatch.setattr("training.bench.bank.CPU_ROUTE_ROWS", 2)
    parts = bank_of(base, network, kind="all").route(range(5))
    assert torch.equal(whole.row_BK, parts.row_BK)
    torch.testing.assert_close(whole.log_weight_BK, parts.log_weight_BK)


def test_taking_and_joining_are_each_others_inverse(base, network):
    routed = bank_of(base, network).route(range(4))
    back = joined([taken(routed, [0]), taken(routed, [1, 2, 3])])
    assert all(torch.equal(value, getattr(back, name)) for name, value in vars(routed).items())


def test_bm25_ranks_the_gold_atom_by_words(base, network):
    bank = bank_of(base, network)
    # "born" and "Marn" stand in the first sentence, "Marn" alone in the third.
    assert bank.bm25_rank(0) == 1
    # Only "otters" of "Where do otters live?" and "live": both are in the gold sentence.
    assert bank.bm25_rank(3) == 1
    # No word leads to the first of three sentences, which is known to answer; nothing answers the other question.
    bank = bank_of(base, network, small_suite(asked=((0, "Who is she?", "Ilse Kant"), (0, "Where is Marn?", ""))))
    assert (bank.bm25_rank(0), bank.bm25_rank(1)) == (3, None)


def test_banks_over_the_same_documents_share_a_library_and_others_let_it_go(base, network, monkeypatch):
    shelf = Shelf()

    def library_of(suite):
        return SuiteBank(base, network, suite, kind="document", top_k=2, shelf=shelf).library

    first = library_of(small_suite())
    assert library_of(small_suite("again")) is first
    first, compiled = weakref.ref(first), []
    monkeypatch.setattr(Library, "compile", lambda self: compiled.append(first() is None))
    library_of(replace(small_suite(), samples=small_suite().samples[:1]))
    assert compiled == [True]  # the first was gone by then


def test_atoms_are_made_once_and_read_from_the_cache(tmp_path, monkeypatch):
    contexts = small_suite().contexts
    made = bench_records(contexts, cache=tmp_path)
    assert [atom.content for atom in made[2].atoms] == ZOO.replace(". ", ".|").split("|")
    monkeypatch.setattr("training.annotation.offline.OfflineAnnotator.annotate", None)
    assert bench_records(contexts, cache=tmp_path) == made
    with pytest.raises(TypeError):
        bench_records(contexts[:2], cache=tmp_path)


def test_many_texts_are_shared_among_processes(tmp_path, monkeypatch):
    contexts = small_suite().contexts
    monkeypatch.setattr(training.bench.records, "MANY_CHARS", 0)
    monkeypatch.setattr(training.bench.records, "CONTEXTS_AT_ONCE", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    many = bench_records(contexts, cache=tmp_path / "many")
    monkeypatch.undo()
    assert many == bench_records(contexts, cache=tmp_path / "few")


def test_a_context_without_text_has_no_atoms_and_its_questions_are_asked_all_the_same(base, network):
    suite = small_suite()
    empty = replace(suite.contexts[1], text=" ", questions=())
    item = QAItem(question_id="q9", question="What did ships carry?", answers=())
    samples = (suite.samples[0], replace(suite.samples[2], item=item), suite.samples[3])
    suite = replace(suite, contexts=(suite.contexts[0], empty, suite.contexts[2]), samples=samples)
    bank = bank_of(base, network, suite)
    routed = bank.route(range(3))
    assert np.isinf(routed.log_weight_BK[1].numpy()).all()
    bank.library.adapter(routed)


def test_without_the_atomizers_packages_the_cache_of_another_machine_serves(tmp_path, monkeypatch):
    contexts = small_suite().contexts
    made = bench_records(contexts, cache=tmp_path)

    def missing(*args, **more):
        raise ModuleNotFoundError("No module named 'sentencex'")

    monkeypatch.setattr(training.bench.records, "_annotator", missing)
    assert bench_records(contexts, cache=tmp_path) == made
    with pytest.raises(DataError, match=r"No module named 'sentencex'.*Install d2a with its dependencies, or copy"):
        bench_records(contexts, cache=tmp_path / "other")
