"""De-duplication: what training shares with the evaluation sets, and with itself.

Two texts overlap if their words are equal, or share 13 in a row; case and punctuation do not count. Compared are
paragraphs without their titles: all of training against those that an evaluation question needs, and of ROPES the
situations alone, since backgrounds serve both training and evaluation by design. It reads no files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from training.datasets.context import CJK, Context, QAItem, without_paragraphs
from training.datasets.ropes import SITUATION

NGRAM = 13
_WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
# An odd multiplier permutes the 64-bit integers, so that the order of words counts.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The evaluation sets that a context shares text with.

    Args:
        exact: Those of which it holds a whole paragraph.
        near: Those of which it holds 13 words in a row, but no whole paragraph.
    """

    exact: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.exact or self.near)


class HeldOut:
    """The texts of evaluation sets, to be asked what overlaps with them.

    Args:
        eval_sets: Contexts by the name of the evaluation set.
    """

    def __init__(self, eval_sets: Mapping[str, Iterable[Context]]) -> None:
        self.names = tuple(eval_sets)
        self._hashes = _WordHashes()
        self._exact: dict[bytes, set[str]] = {}
        grams, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for number, contexts in enumerate(eval_sets.values()):
            texts = {text for context in contexts for text in _needed(context)}
            for words in map(_words, texts):
                self._exact.setdefault(_digest(words), set()).add(self.names[number])
                grams.append(self._ngrams(words))
                owners.append(np.full(len(grams[-1]), number))
        joined = np.concatenate(grams)
        order = np.argsort(joined)
        self._grams, self._owners = joined[order], np.concatenate(owners)[order]

    def clean(self, context: Context) -> tuple[Context | None, Overlap]:
        """Take out of a training context what overlaps with an evaluation set.

        Returns:
            The context, without the paragraphs that overlap if no answer needs them; None where what is left
            would be no sample. And which sets it overlapped with.
        """
        found = {place: shared for place, text in _compared(context) if (shared := self._overlap(text))}
        if not found:
            return context, Overlap()
        exact = frozenset().union(*(shared.exact for shared in found.values()))
        near = frozenset().union(*(shared.near for shared in found.values()))
        overlap = Overlap(exact=exact, near=near - exact)
        can_spare = context.mode == "multi_hop" and len(found) < len(context.paragraphs)
        if can_spare and not any(context.paragraphs[place].is_supporting for place in found):
            return without_paragraphs(context, found), overlap
        return None, overlap

    def _overlap(self, text: str) -> Overlap:
        words = _words(text)
        exact = frozenset(self._exact.get(_digest(words), ()))
        return Overlap(exact=exact, near=self._owners_of(self._ngrams(words)) - exact)

    def _owners_of(self, grams: np.ndarray) -> frozenset[str]:
        starts = np.searchsorted(self._grams, grams)
        inside = starts < len(self._grams)
        shared = grams[inside][self._grams[starts[inside]] == grams[inside]]
        spans = zip(np.searchsorted(self._grams, shared), np.searchsorted(self._grams, shared, "right"), strict=True)
        return frozenset(self.names[owner] for start, stop in spans for owner in self._owners[start:stop])

    def _ngrams(self, words: Sequence[str]) -> np.ndarray:
        """Return a 64-bit number for every 13 words in a row; a shorter text counts as a whole."""
        if not words:
            return np.empty(0, np.uint64)
        hashes = np.fromiter(map(self._hashes.__getitem__, words), np.uint64, len(words))
        length = min(NGRAM, len(words))
        count = len(words) - length + 1
        grams = np.full(count, length, np.uint64)
        for place in range(length):
            grams = grams * _MULTIPLIER + hashes[place : place + count]
        return grams


class _WordHashes(dict[str, int]):
    """A 64-bit number for each word, the same in every process."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
        return self.setdefault(word, int.from_bytes(digest, "little"))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _digest(words: Sequence[str]) -> bytes:
    return hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest()


def _compared(context: Context) -> Iterator[tuple[int, str]]:
    """Yield the texts that stand for a context, with the places of their paragraphs."""
    if not context.paragraphs:
        yield 0, context.text
        return
    has_situation = any(paragraph.title == SITUATION for paragraph in context.paragraphs)
    for place, paragraph in enumerate(context.paragraphs):
        if not has_situation or paragraph.title == SITUATION:
            yield place, context.text[paragraph.char_start : paragraph.char_end]


def _needed(context: Context) -> Iterator[str]:
    """Yield the texts that an evaluation question needs: of several paragraphs, the supporting ones."""
    for place, text in _compared(context):
        if context.mode != "multi_hop" or not context.paragraphs or context.paragraphs[place].is_supporting:
            yield text


def merge_equal(contexts: Iterable[Context]) -> list[Context]:
    """Join the questions of contexts of equal text; the first of equal questions counts."""
    groups: dict[str, list[Context]] = {}
    for context in contexts:
        groups.setdefault(context.text, []).append(context)
    return [_merged(group) if len(group) > 1 else group[0] for group in groups.values()]


def _merged(group: Sequence[Context]) -> Context:
    questions: dict[str, QAItem] = {}
    for item in (item for context in group for item in context.questions):
        questions.setdefault(item.question, item)
    title = next((context.title for context in group if context.title), "")
    return replace(group[0], title=title, questions=tuple(questions.values()))
