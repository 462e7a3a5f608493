"""The library of the evaluation: the same routing, gate features and answers as the product over the same bank."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import models.base
from models.atoms import AnnotationMeta, AnnotationRecord, Question
from models.checkpoint import load_network
from models.memory import DocumentMemory
from models.router import AnswerabilityGate
from tests.models.tiny import FAMILIES
from tests.models.worlds import SPECS, TOWN, ZOO, memory_config
from tests.training.samples import colours, river_and_town
from tests.training.worlds import base_of, library_over
from training.banks import same_article
from training.gate import judged
from training.library import Ask, Candidates, Library, RoutedAsks

QUESTIONS = ("Who was born in Marn?", "When do visitors feed the otters?", "What is the price of zinc?")


@pytest.fixture(autouse=True)
def exact_arithmetic(monkeypatch):
    monkeypatch.setattr(models.base, "pick_dtype", lambda _device: torch.float32)


def product(tmp_path, family, recipe, **changes):
    """Return a filled memory, a library of the same atoms, and questions asked of no passage."""
    # More atoms than candidates, so that stage 1 must leave some out.
    texts = {"town": TOWN, "zoo": ZOO, "hens": " ".join(f"Hen {n} visits otter {n * 7 % 50}." for n in range(30))}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    memory = DocumentMemory(memory_config(tmp_path, family, spec=SPECS[recipe], **{"threshold": 0.0, **changes}))
    memory.ingest([str(tmp_path / f"{name}.txt") for name in texts])
    records, uids = [], []
    for document in memory.documents():
        stored = memory.atoms(document.document_id)
        uids += [a.uid for a in stored]
        meta = AnnotationMeta(annotator="test")
        records.append(
            AnnotationRecord(
                context="", title=document.title, atoms=tuple(a.atom for a in stored), annotation_meta=meta
            )
        )
    base = memory._load().base
    library = Library(base, load_network(memory.config.checkpoint, base)[0], records)
    library.compile()
    return memory, library, uids, [Ask(question=Question(question=q), passage=0, gold=()) for q in QUESTIONS]


@pytest.mark.parametrize(
    ("family", "recipe", "store", "num_read"),
    [
        *((f, "d2a", "compact", 0) for f in FAMILIES),
        ("llama", "d2a", "compact", 11),
        ("gemma2", "d2a in int8", "compact", 0),
        ("qwen3", "d2a in int6", "full", 11),
        ("qwen3", "d2a", "full", 11),
        ("llama", "paper", "full", 9),
        ("llama", "paper", "compact", 0),
        ("gemma2", "paper with latent micro-KV", "compact", 0),
    ],
)
def test_the_library_routes_and_answers_as_the_product(tmp_path, family, recipe, store, num_read):
    memory, library, uids, asks = product(tmp_path, family, recipe, store=store)
    assert len(uids) > 32
    with torch.no_grad():
        for network in (library.network, memory._load().network):
            network.router.stretch.fill_(6.0)
            if num_read:
                network.router.spec = replace(network.router.spec, num_read=num_read)
                network.router.reading.fill_(1.5)
    key_BE = library.query_keys(asks)
    routed = library.route(key_BE, library.library_candidates(asks, key_BE), top_k=8, asks=asks)
    replies = library.answer(asks, library.adapter(routed), max_new_tokens=6)
    gate = AnswerabilityGate(coefficients=(1.0, 1.0, 0.01, 0.1, -0.02, -0.3, -0.5, -0.7, -0.2, 0.9, 1.5), bias=-1.0)
    memory._load().gate = gate
    scores = gate(judged(routed, replies))
    for i, ask in enumerate(asks):
        answer = memory.ask(ask.question.question)
        ours = {
            uids[row]: w
            for row, w in zip(routed.row_BK[i].tolist(), routed.log_weight_BK[i].exp().tolist(), strict=True)
        }
        theirs = {a.uid: a.weight for a in answer.atoms if a.selected}
        # Both round token states alike, but another batch may move one over the edge between two values.
        exact = not recipe.startswith("d2a")
        assert ours == pytest.approx(theirs, abs=1e-5 if exact or not num_read else 1e-3)
        assert sum(a.refusal_logprob is not None for a in answer.atoms) == num_read
        assert float(scores[i]) == pytest.approx(answer.answerability, abs=1e-5 if exact else 1e-3)
        if exact:
            said = answer.text if answer.status == "answered" else ""
            assert replies[i].text.strip(" .") in (said.strip(" ."), "unanswerable")


@pytest.mark.parametrize("recipe", ["d2a", "d2a in int8", "d2a in int6"])
def test_the_library_holds_the_states_that_a_bank_gives_back(tmp_path, recipe):
    memory, library, uids, _ = product(tmp_path, "qwen3", recipe)
    document = memory.atoms(memory.documents()[0].document_id)
    rows = [uids.index(a.uid) for a in document]
    stored = memory._open_both()[0].load_shard_rows([a.uid for a in document])
    dtypes = {"d2a": torch.bfloat16, "d2a in int8": torch.int8, "d2a in int6": torch.uint8}
    assert stored["entry"][0].dtype == dtypes[recipe]
    # The same texts in one batch, so that there is nothing to round but what is stored.
    slots, expected = library._slots(torch.tensor(rows)), memory._load()._slots(stored)
    for name in ("key_UMHSF", "value_UMHSF", "mask_US"):
        assert torch.equal(getattr(slots, name), getattr(expected, name)), name


def test_candidates_are_the_best_of_both_searches(tmp_path):
    _, library, _, asks = product(tmp_path, "llama", "d2a")
    key_BE = library.query_keys(asks)
    index = library.lexical()
    for ask, key_E, found in zip(asks, key_BE, library.library_candidates(asks, key_BE), strict=True):
        near = set((library.key_NE @ key_E).topk(32).indices.tolist())
        lexical, stretch = index.all_scores(ask.question.question), index.stretch_scores(ask.question.question)
        words = np.argsort(-(lexical + stretch), kind="stable")[:32]
        assert set(found.rows.tolist()) == near | set(words[(lexical + stretch)[words] > 0].tolist())
        np.testing.assert_array_equal(found.lexical, lexical[found.rows])
        np.testing.assert_array_equal(found.stretch, stretch[found.rows])


def test_without_words_in_the_recipe_only_keys_find_candidates(tmp_path):
    _, library, _, asks = product(tmp_path, "llama", "paper")
    key_BE = library.query_keys(asks)
    for key_E, found in zip(key_BE, library.library_candidates(asks, key_BE), strict=True):
        assert found.rows.tolist() == sorted((library.key_NE @ key_E).topk(32).indices.tolist())


def test_hidden_atoms_are_no_candidates_even_where_few_are_left():
    library = library_over(base_of("llama"), SPECS["d2a"], river_and_town())
    asks = [library.asks(passage)[0] for passage in range(4)]
    found = library.library_candidates(
        asks, library.query_keys(asks), visible=[~same_article(library, a) for a in asks]
    )
    assert [candidates.rows.tolist() for candidates in found] == [
        [5, 6, 7, 8, 9], [5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 9], list(range(9))
    ]  # fmt: skip


def test_a_passage_alone_is_scored_as_a_bank_of_its_own():
    library = library_over(base_of("llama"), SPECS["d2a"], river_and_town())
    ask = library.asks(2)[0]
    rows, scores, stretch, _ = library.passage_candidates(ask)
    assert rows.tolist() == [5, 6, 7, 8] and int(scores.argmax()) == 1
    assert scores[1] != library.lexical().all_scores(ask.question.question)[6]
    np.testing.assert_allclose(stretch, scores, atol=1e-6)  # one stretch tells no atom from another


def test_asks_know_their_gold_rows():
    library = Library(base_of("llama"), None, river_and_town())
    assert [[ask.gold for ask in library.asks(p)] for p in range(4)] == [[(0,), (1, 2)], [(3,), ()], [(6,)], [(9,)]]


def test_gold_routing_gives_gold_atoms_equal_parts_and_nothing_without_them():
    library = library_over(base_of("llama"), SPECS["d2a"], river_and_town())
    asks = [*library.asks(0), library.asks(1)[1]]
    routed = library.gold_route(asks)
    weights = [
        {row: w for row, w in zip(rows, ws, strict=True) if w > 0}
        for rows, ws in zip(routed.row_BK.tolist(), routed.log_weight_BK.exp().tolist(), strict=True)
    ]
    assert weights == [{0: 1.0}, {1: 0.5, 2: 0.5}, {}]
    # No gold atom, no memory: the answer is the bare base's.
    replies, bare = library.answer(asks, library.adapter(routed)), library.answer(asks, None)
    assert replies[2].refusal_logprob == pytest.approx(bare[2].refusal_logprob, abs=1e-4)
    assert replies[0].refusal_logprob != pytest.approx(bare[0].refusal_logprob, abs=1e-3)


@pytest.mark.parametrize("recipe", SPECS)
def test_a_batch_answers_as_its_questions_do_alone(recipe):
    library = library_over(base_of("gemma2"), SPECS[recipe], colours(6))
    asks = [ask for passage in range(2) for ask in library.asks(passage)]

    def answers(asks):
        key_BE = library.query_keys(asks)
        routed = library.route(key_BE, library.library_candidates(asks, key_BE), top_k=3)
        return library.answer(asks, library.adapter(routed), max_new_tokens=5)

    alone = [answers([ask])[0] for ask in asks]
    for one, together in zip(alone, answers(asks), strict=True):
        assert one.text == together.text
        assert one.refusal_logprob == pytest.approx(together.refusal_logprob, abs=1e-3)
        assert one.gain == pytest.approx(together.gain, abs=1e-3) and one.gain > 0.01


def test_composing_encodes_no_atom_again(monkeypatch):
    import training.library

    library = library_over(base_of("llama"), SPECS["d2a"], colours(4))
    asked, original = [], training.library.text_features
    monkeypatch.setattr(training.library, "text_features", lambda *a, **k: asked.append(len(a[2])) or original(*a, **k))
    library.adapter(library.gold_route(library.asks(1)))
    assert not asked
    library.compile()
    assert asked == [len(library.atoms)] == [len(library._entry)]


def test_atoms_compiled_in_parts_are_those_compiled_at_once(monkeypatch):
    library = library_over(base_of("llama"), SPECS["d2a"], colours(4))
    key_NE, entry = library.key_NE, library._entry
    monkeypatch.setattr("training.library.COMPILE_ATOMS", len(library.atoms) - 1)
    library.compile()
    torch.testing.assert_close(library.key_NE, key_NE)
    for after, before in zip(library._entry, entry, strict=True):
        torch.testing.assert_close(after, before)


def test_a_bank_that_holds_nothing_is_read_and_doubted_without_a_number_going_missing():
    spec = replace(SPECS["d2a"], router=replace(SPECS["d2a"].router, num_read=2))
    library = library_over(base_of("llama"), spec, colours(8))
    library.network.router.reading.data.fill_(1.0)
    asks = [library.asks(passage)[0] for passage in (0, 1)]
    nothing = Candidates(*(np.empty(0, dtype=kind) for kind in (np.int64, np.float32, np.float32)))
    for first in (library.passage_candidates(asks[0]), nothing):
        routed = library.route(library.query_keys(asks), [first, nothing], top_k=2, num_atoms=[3, 0], asks=asks)
        features = routed.gate_features(torch.tensor([-1.0, -1.0]), torch.tensor([0.5, 0.5]))
        assert features.isfinite().all() and features[1, 4:-2].tolist() == [0.0] * 5


def test_what_the_model_reads_moves_the_best_candidates_and_leaves_out_the_others():
    spec = replace(SPECS["d2a"], router=replace(SPECS["d2a"].router, num_read=3))
    library = library_over(base_of("llama"), spec, colours(6))
    asks = [library.asks(p)[0] for p in range(3)]
    key_BE = library.query_keys(asks)
    found = library.library_candidates(asks, key_BE)
    plain = library.route(key_BE, found, top_k=2, asks=asks)
    assert library.network.router.num_read == 0  # without a weight nothing is read
    scored = library.scored(key_BE, found)
    library.network.router.reading.data.fill_(2.0)
    best, refusal_BM = library.read(asks, scored, num_read=3)
    for i, ask in enumerate(asks):
        rows = scored.row_BC[i][scored.score_BC[i].masked_fill(~scored.valid_BC[i], -1e9).topk(3).indices].tolist()
        assert best.row_BC[i].tolist() == rows
        # Under one atom of weight 1, as if it were all that was routed.
        ones = torch.ones(3)
        alone = RoutedAsks(
            row_BK=best.row_BC[i][:, None],
            log_weight_BK=torch.zeros(3, 1),
            best_score_B=ones,
            top_lexical_B=ones,
            num_atoms_B=ones,
            doubts_BD=torch.zeros(3, 5),
        )
        replies = library.answer([ask] * 3, library.adapter(alone), max_new_tokens=0)
        assert refusal_BM[i].tolist() == pytest.approx([r.refusal_logprob for r in replies], abs=1e-3)
    routed = library.route(key_BE, found, top_k=2, asks=asks)
    expected = best.score_BC - 2.0 * refusal_BM
    order = expected.topk(2).indices
    assert torch.equal(routed.row_BK, best.row_BC.gather(1, order))
    torch.testing.assert_close(routed.best_score_B, expected.max(1).values)
    assert torch.equal(routed.top_lexical_B, plain.top_lexical_B)
    assert torch.equal(library.route(key_BE, found, top_k=2).row_BK, plain.row_BK)  # without questions nothing is read
