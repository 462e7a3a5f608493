"""The cross-encoder: used where it is on this machine, absent without a fuss where it is not."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from models.reranker import CrossEncoder, find_reranker
from tests.models.tiny import tiny_tokenizer

CPU = torch.device("cpu")


def _config(num_labels: int = 1) -> BertConfig:
    return BertConfig(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=num_labels,
        max_position_embeddings=64,
        pad_token_id=0,
        initializer_range=0.5,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny random sequence classifier of one logit, with its tokenizer."""
    torch.manual_seed(0)
    BertForSequenceClassification(_config()).save_pretrained(tmp_path / "ranker")
    tiny_tokenizer().save_pretrained(tmp_path / "ranker")
    return tmp_path / "ranker"


def _warning(caplog: pytest.LogCaptureFixture) -> str:
    [line] = [r.getMessage() for r in caplog.records if r.name == "models.reranker"]
    return line


@pytest.mark.parametrize("name", ["BAAI/no-such-reranker", "no-such-folder", "./no/such/folder", "/no/such/folder"])
def test_a_reranker_that_is_not_here_is_none(name: str) -> None:
    assert find_reranker(name, CPU) is None


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_an_incomplete_folder_is_none_with_one_line(
    missing: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / missing).unlink()
    assert find_reranker(str(folder), CPU) is None
    assert "going on without" in _warning(caplog)


@pytest.mark.parametrize("kind", ["no head", "two labels"])
def test_a_model_that_is_no_reranker_is_none_with_one_line(
    kind: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = BertModel(_config()) if kind == "no head" else BertForSequenceClassification(_config(num_labels=2))
    model.save_pretrained(folder)
    assert find_reranker(str(folder), CPU) is None
    assert "is no sequence classifier of one logit" in _warning(caplog)


def test_scores_are_the_classifiers_logits_of_each_pair(folder: Path) -> None:
    reranker = find_reranker(str(folder), CPU)
    assert isinstance(reranker, CrossEncoder)
    texts = ["The mill is in Orla.", "Rye", "A bell"]
    scores = reranker.scores("Where?", texts, 60)
    assert scores.dtype == np.float32
    for score, text in zip(scores, texts, strict=True):
        pair = reranker.tokenizer("Where?", text, return_tensors="pt")
        with torch.no_grad():
            alone = reranker.model(**pair).logits[0, 0]
        assert score == pytest.approx(alone.item(), abs=1e-5)
    assert len(set(scores.tolist())) == 3


def test_a_long_text_is_cut_and_the_question_is_kept(folder: Path) -> None:
    reranker = find_reranker(str(folder), CPU)
    # One token a character: of 60 tokens the question takes 6 and the text's first 54.
    long, cut = reranker.scores("Where?", ["x" * 54 + "y" * 100, "x" * 54], 60)
    assert long == pytest.approx(cut, abs=1e-6)


def test_the_reranker_is_frozen(folder: Path) -> None:
    reranker = find_reranker(str(folder), CPU)
    assert not reranker.model.training
