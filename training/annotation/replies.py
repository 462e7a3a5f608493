"""Reading probes and the roles of atoms out of what a language model wrote.

Holds two tolerant readers: each well-formed element before a truncation or a broken tag survives, the others are
left out. They compare nothing with the atoms; `training.annotation.crosscheck` does.
Paper: appendix "Annotator and prompt format".
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Aloud, and at times without an opening tag (it is in the prompt) or without a closing one (the reply was cut).
_THINKING = re.compile(r"\A(?:.*</think(?:ing)?>|\s*<think(?:ing)?>.*\Z)", re.DOTALL | re.IGNORECASE)
_PROBE = re.compile(r"<probe\b[^<>]*>([^<>]*)</probe\s*>", re.IGNORECASE)
_QUESTION_OPEN = re.compile(r"<question\b([^<>]*)>", re.IGNORECASE)
_QUESTION_CLOSE = re.compile(r"</question\s*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>/]+))""")
_ID = re.compile(r"[\w-]+")
_NO_ID = frozenset({"none", "null", "empty", "n", "a", "na", "-", "and"})
_NO = frozenset({"no", "false", "0"})
_YES = frozenset({"yes", "true", "1"})


@dataclass(frozen=True, kw_only=True)
class Label:
    """What a model says about one question.

    Args:
        question_type: As written, in lower case with underscores; empty where missing.
        is_answerable: None where the reply does not say.
    """

    question_type: str
    is_answerable: bool | None
    gold: tuple[str, ...]
    supporting: tuple[str, ...]
    distractors: tuple[str, ...]


def parse_probes(reply: str) -> list[str]:
    """Return the probes of a reply, each once, in order."""
    return list(dict.fromkeys(text for m in _PROBE.finditer(_answer(reply)) if (text := _line(m[1]))))


def parse_labels(reply: str) -> dict[str, Label]:
    """Return the labels of a reply by the id of their question; the first label of a question counts.

    A question without a `<gold>` that is closed was cut or broken, and is left out.
    """
    labels: dict[str, Label] = {}
    for attributes, body in _questions(_answer(reply)):
        gold = _ids(body, "gold")
        name = attributes.get("id", "")
        if name and gold is not None:
            labels.setdefault(name if name.startswith("q_") else f"q_{name}", _label(attributes, body, gold))
    return labels


def _label(attributes: dict[str, str], body: str, gold: tuple[str, ...]) -> Label:
    kind = re.sub(r"[\W_]+", "_", attributes.get("type", "").lower()).strip("_")
    word = attributes.get("answerable", "").lower()
    is_answerable = True if word in _YES else False if word in _NO or kind == "irrelevant" else None
    return Label(
        question_type=kind,
        is_answerable=is_answerable,
        gold=gold,
        supporting=_ids(body, "supporting") or (),
        distractors=_ids(body, "distractors") or (),
    )


def _answer(reply: str) -> str:
    """Drop what a model thought aloud."""
    return _THINKING.sub("", reply, count=1)


def _questions(reply: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the attributes and the inside of each question that is closed before the next one begins."""
    opens = list(_QUESTION_OPEN.finditer(reply))
    ends = [*(o.start() for o in opens[1:]), len(reply)]
    for opening, end in zip(opens, ends, strict=False):
        close = _QUESTION_CLOSE.search(reply, opening.end(), end)
        if close:
            found = _ATTRIBUTE.finditer(opening[1])
            attributes = {m[1].lower(): html.unescape(m[2] or m[3] or m[4] or "").strip() for m in found}
            yield attributes, reply[opening.end() : close.start()]


def _ids(body: str, name: str) -> tuple[str, ...] | None:
    """Return the ids in a list, `4` read as `atom_4`; None where the list is missing or not closed."""
    match = re.search(rf"<{name}\s*(?:/>|>([^<>]*)</{name}\s*>)", body, re.IGNORECASE)
    if match is None:
        return None
    words = (word.lower() for word in _ID.findall(match[1] or ""))
    return tuple(dict.fromkeys(f"atom_{w}" if w.isdigit() else w for w in words if w not in _NO_ID))


def _line(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in html.unescape(text))
    return " ".join(printable.split())
