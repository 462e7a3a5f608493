"""Names in a sentence, found by capital letters alone.

Holds the cheap recogniser that context, types and relations share. It knows no gazetteer: a word that
the document also writes in lower case is no name when it merely opens a sentence.
"""

from __future__ import annotations

import re

from models.atomizer.lexicon import CALENDAR_WORDS, PRONOUNS, STOP_WORDS

_LINKS = frozenset({"of", "the", "de", "la", "van", "von", "du", "der", "del", "and", "for"})
_MAX_WORDS = 6
_LEFT_MARKS = "([{\"'“‘«*_"
_OUTER_MARKS = _LEFT_MARKS + ")]}”’».,;:!?†‡§¶∗®™"
_OPENER = re.compile(
    r"(?:in|on|at|after|before|during|by|from|since|until|when|while|although|as|for|with|under|following|despite)\b"
    r"[^,.;]{0,60},\s+",
    re.IGNORECASE,
)


def common_words(text: str) -> frozenset[str]:
    """Return the words that a text writes in lower case somewhere."""
    return frozenset(re.findall(r"\b[^\W\d_A-Z][^\W\d_]+", text))


def entities(text: str, common: frozenset[str]) -> list[str]:
    """Return the capitalised phrases of a sentence in order of appearance, each once.

    Args:
        common: Words that are no names when they stand alone at the head of the sentence.
    """
    found: list[str] = []
    phrase: list[str] = []
    words = text.split()
    for position, word in enumerate(words):
        core = word.strip(_OUTER_MARKS)
        if phrase and core != word and word[0] in _LEFT_MARKS:
            _close(phrase, found, common)
        opens = core[:1].isupper() and core.lower() not in STOP_WORDS
        if opens or (phrase and (core[:1].isupper() or core[:1].isdigit())):
            phrase.append(core.removesuffix("'s").removesuffix("’s"))
            ends = not word.endswith(core) and not _is_initial(core, word)
            if ends or len(phrase) >= _MAX_WORDS or word.endswith(("'s", "’s")):
                _close(phrase, found, common)
        elif phrase and core == word and core in _LINKS and words[position + 1 : position + 2]:
            following = words[position + 1].lstrip(_LEFT_MARKS)
            if core != "and" and (following[:1].isupper() or following in _LINKS):
                phrase.append(core)
            else:
                _close(phrase, found, common)
        else:
            _close(phrase, found, common)
    _close(phrase, found, common)
    return list(dict.fromkeys(found))


def subject(text: str, common: frozenset[str]) -> str:
    """Return the name that a sentence begins with, after an opening like `In 1890,`; empty if none."""
    start = opener_end(text)
    head = text[start : start + 120]
    names = entities(head, common)
    if not names:
        return ""
    position = head.find(names[0])
    return names[0] if position == 0 or head[:position].strip().lower() in ("the", "a", "an") else ""


def begins_with_pronoun(text: str) -> str:
    """Return the pronoun that stands as subject at the head of a sentence, in lower case; empty if none."""
    head = text[opener_end(text) :].split(None, 1)
    word = head[0].strip(_OUTER_MARKS).lower() if head else ""
    return word if word in PRONOUNS else ""


def opener_end(text: str) -> int:
    """Return where the main clause begins, after an opening phrase that ends in a comma."""
    match = _OPENER.match(text)
    return match.end() if match else 0


def key(name: str) -> str:
    """Return the form under which mentions of one name are compared."""
    return name.lower().removeprefix("the ")


def _is_initial(core: str, word: str) -> bool:
    """Tell whether a full stop belongs to the name, as in `J. Smith` or `Dr. Smith`."""
    return word == core + "." and len(core) <= 2


def _close(phrase: list[str], found: list[str], common: frozenset[str]) -> None:
    while phrase and phrase[-1] in _LINKS:
        phrase.pop()
    if phrase and _is_name(phrase, common):
        found.append(" ".join(phrase))
    phrase.clear()


def _is_name(phrase: list[str], common: frozenset[str]) -> bool:
    first = phrase[0].lower()
    if first in CALENDAR_WORDS and all(w.isdigit() for w in phrase[1:]):
        return False
    if len(phrase) > 1:
        return True
    is_plain_word = phrase[0][1:].islower() and (first in common or first.endswith(("ly", "ing", "ed")))
    return len(first) > 1 and not is_plain_word
