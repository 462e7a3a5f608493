"""LongBench's official scores of its question answering subsets.

`qa_f1` of English subsets is SQuAD's F1 (`training.metrics.token_f1`); what differs is here.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from models.errors import D2AError
from training.metrics import bag_f1, token_f1

if TYPE_CHECKING:
    from jieba import Tokenizer

# As listed by LongBench; what it lacks, such as the opening half of 《》, counts as a word.
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿"
    "–—‘’‛“”„‟…‧﹏."
)
_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


def first_line_f1(prediction: str, references: Sequence[str]) -> float:
    """Return the best word F1 of the first line: the rule for few-shot subsets, whose model goes on with examples."""
    return token_f1(prediction.lstrip("\n").split("\n")[0], references)


def qa_f1_zh(prediction: str, references: Sequence[str]) -> float:
    """Return the best F1 of the words that jieba finds in Chinese text.

    Raises:
        D2AError: The package jieba is not installed.
    """
    return max((bag_f1(_words(prediction), _words(reference)) for reference in references), default=0.0)


def _words(text: str) -> list[str]:
    pieces = ("".join(word.lower().translate(_PUNCTUATION).split()) for word in _jieba().cut(text, cut_all=False))
    return [piece for piece in pieces if piece]


@cache
def _jieba() -> Tokenizer:
    try:
        import jieba
    except ImportError as error:
        raise D2AError("Chinese answers are scored with jieba", hint="Run: pip install 'd2a[bench]'") from error
    jieba.setLogLevel(logging.WARNING)  # it tells where it loads its dictionary from
    return jieba.Tokenizer()
