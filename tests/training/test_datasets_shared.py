"""Loading the copies beside the repository: counts that their description states."""

from pathlib import Path

import pytest

from training.datasets import find_sources, load, load_eval_sets, load_source
from training.datasets.overlap import HeldOut, merge_equal

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is absent")


def counts(contexts):
    contexts = list(contexts)
    items = [item for context in contexts for item in context.questions]
    return len(contexts), len(items), sum(item.is_impossible for item in items)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("squad_v2", (773, 5147, 348)),
        ("ropes", (1410, 10924, 0)),  # 1,412 paragraphs, two situations twice
        ("2wikimultihopqa", (500, 500, 0)),
        ("hotpotqa", (100, 100, 0)),
        ("musique", (100, 100, 0)),
        ("boolq", (7927, 9427, 0)),
        ("quoref", (833, 1000, 0)),
        ("cmrc2018", (848, 3219, 0)),
        ("friendsqa", (136, 1182, 0)),
        ("timeqa", (318, 1171, 189)),
    ],
)
def test_training_sets_have_the_stated_sizes(name, expected):
    assert counts(load(name, DATA)) == expected


def test_multirc_loses_the_questions_that_have_no_true_candidate():
    source = load_source("multirc", DATA)
    num_contexts, num_questions, _ = counts(source.contexts)
    assert (num_contexts, num_questions + source.dropped["no_true_candidate"]) == (456, 5131)


def test_parts_of_squad_share_passages_with_each_other():
    assert len(merge_equal(load("squad", DATA))) == 6378


def test_qasper_is_read_as_papers_and_as_evidence():
    contexts = list(load("qasper", DATA))
    papers = [c for c in contexts if not c.context_id.startswith("evidence")]
    assert (len(papers), sum(len(c.questions) for c in papers)) == (10, 51)
    assert sum(len(c.questions) for c in contexts) == 51 + 472


def test_evaluation_sets_have_the_stated_sizes():
    names = ("squad_v2", "ropes", "ropes_contrast", "drop", "drop_contrast", "2wikimultihopqa", "musique", "qasper")
    found = {name: counts(contexts)[1:] for name, contexts in load_eval_sets(DATA, names).items()}
    assert found == {
        "squad_v2": (11873, 5945),
        "ropes": (1688, 0),
        "ropes_contrast": (974, 0),
        "drop": (9536, 0),
        "drop_contrast": (947, 0),
        "2wikimultihopqa": (503 + 164, 0),
        "musique": (200, 0),
        "qasper": (82, 0),
    }


def test_every_located_answer_is_in_its_context_and_every_squad_answer_is_located():
    for name in ("squad_v2", "friendsqa", "quoref", "2wikimultihopqa", "drcd", "ropes"):
        for context in load(name, DATA):
            for answer in (a for item in context.questions for a in item.answers if a.char_start is not None):
                start, stop = answer.span
                assert context.text[start:stop].casefold() == answer.text.casefold(), (name, context.context_id)
    assert all(a.span for c in load("squad_v2", DATA) for q in c.questions for a in q.answers)


def test_fifty_samples_of_2wiki_share_a_needed_paragraph_with_its_dev_set_and_musique_holds_passages_of_squad_dev():
    held_out = HeldOut(load_eval_sets(DATA, ["2wikimultihopqa", "squad"]))
    cleaned = [held_out.clean(context) for context in load("2wikimultihopqa", DATA)]
    # 50 share one word by word, 9 more 13 words in a row.
    assert sum(kept is None for kept, _ in cleaned) == 59
    passages = [overlap for _, overlap in map(held_out.clean, load("musique", DATA)) if "squad" in overlap.exact]
    assert len(passages) == 12


def test_no_situation_of_ropes_is_in_its_dev_set():
    held_out = HeldOut(load_eval_sets(DATA, ["ropes"]))
    assert all(held_out.clean(context)[0] is not None for context in load("ropes", DATA))


def test_all_sets_are_found():
    assert len(find_sources(DATA)) == 17


def test_contexts_and_questions_of_a_set_have_names_of_their_own():
    for name in find_sources(DATA):
        contexts = list(load(name, DATA))
        assert len({c.context_id for c in contexts}) == len(contexts), name
