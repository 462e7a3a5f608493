"""What in the words of a question speaks against an answer in its candidates: names, opposites, negations.

A near miss is a question that looks as if the text answered it, and shares nearly all words with an atom that does not:
another name, an antonym, a "not". Scores and the model itself hardly notice such a word; a comparison does. English
alone: in other languages nothing but names and numbers is found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from models.lexical import tokenize
from models.opposites import OPPOSITES

NUM_DOUBTS = 3
MAX_NAMES = 3  # a long question, or one that quotes a text, has many that no atom has
_WORD = re.compile(r"\w+(?:'\w+)?")
_NEGATIONS = frozenset({"not", "no", "never", "none", "neither", "nor", "without", "cannot", "except", "unable"})


def doubts(question: str, texts: Sequence[str]) -> tuple[float, float, float]:
    """Return what the question says and its candidate atoms do not.

    Args:
        texts: Of the atoms that may answer it, in any order; none casts no doubt.

    Returns:
        How many of its names and numbers no atom has, 3 at most; 1 if an atom has the opposite of a word that none has,
        else 0; and 1 if it has a negation and the atom that shares most words with it has none, else 0.
    """
    if not texts:
        return 0.0, 0.0, 0.0
    asked = _words(question)
    known = {_bare(word) for text in texts for word in _words(text)}
    missing = [word for word in asked if _bare(word) not in known]
    names = sum(word[0].isdigit() or (word[0].isupper() and word is not asked[0]) for word in missing)
    own = {_bare(word) for word in asked}
    opposite = any(other in known and other not in own for word in missing for other in OPPOSITES.get(_bare(word), ()))
    stems = set(tokenize(question))
    nearest = max(texts, key=lambda text: len(stems & set(tokenize(text))))
    return float(min(names, MAX_NAMES)), float(opposite), float(_negates(question) and not _negates(nearest))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.replace("\u2019", "'"))


def _bare(word: str) -> str:
    return word.casefold().removesuffix("'s")


def _negates(text: str) -> bool:
    return any(word.casefold() in _NEGATIONS or word.casefold().endswith("n't") for word in _words(text))
