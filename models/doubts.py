"""What in the words of a question speaks against an answer in its candidates: names, opposites, negations.

A near miss is a question that looks as if the text answered it, and shares nearly all words with an atom that does not:
another name, an antonym, a "not". Scores and the model itself hardly notice such a word; a comparison does. Made for
English: elsewhere numbers are found, and what has a capital.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from models.lexical import tokenize
from models.opposites import OPPOSITES

NUM_DOUBTS = 3
MAX_NAMES = 3  # a long question, or one that quotes a text, has many that no atom has
_SENTENCE = re.compile(r"(?<=[a-z]{3}[.?!])\s+")
_WORD = re.compile(r"\w+(?:'\w+)?")
_NEGATIONS = frozenset({"not", "no", "never", "none", "neither", "nor", "without", "cannot", "except", "unable"})


def doubts(question: str, texts: Sequence[str]) -> tuple[float, float, float]:
    """Return what the question says and its candidate atoms do not.

    Args:
        texts: Of the atoms that may answer it, best first; none casts no doubt.

    Returns:
        How many of its names and numbers no atom has, 3 at most; 1 if an atom has the opposite of a word that none has,
        else 0; and 1 if it has a negation and the atom that shares most words with it has none, else 0.
    """
    if not texts:
        return 0.0, 0.0, 0.0
    asked = _words(question)
    known = frozenset().union(*map(_bare_words, texts))
    missing = [word for word in asked if _bare(word) not in known]
    unknown = {word for word in names(question) if _bare(word) not in known}
    own = {_bare(word) for word in asked}
    opposite = any(other in known and other not in own for word in missing for other in OPPOSITES.get(_bare(word), ()))
    stems = set(tokenize(question))
    nearest = max(texts, key=lambda text: len(stems & set(tokenize(text))))
    return float(min(len(unknown), MAX_NAMES)), float(opposite), float(_negates(question) and not _negates(nearest))


def names(question: str) -> list[str]:
    """Return numbers and words with a capital, but for the first word of a sentence."""
    sentences = map(_words, _SENTENCE.split(question))
    named = (
        word for words in sentences for i, word in enumerate(words) if word[0].isdigit() or (word[0].isupper() and i)
    )
    return [word for word in named if word != "I"]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.replace("\u2019", "'"))


@lru_cache(maxsize=32768)
def _bare_words(text: str) -> frozenset[str]:
    """Return the words of an atom, which are compared with those of many questions."""
    return frozenset(map(_bare, _words(text)))


def _bare(word: str) -> str:
    return word.casefold().removesuffix("'s")


def _negates(text: str) -> bool:
    return any(word.casefold() in _NEGATIONS or word.casefold().endswith("n't") for word in _words(text))
