"""Reading atoms out of what a language model wrote.

Holds a tolerant reader: every well-formed `<atom>` before a truncation or a broken tag survives, a
broken one is dropped and counted. It does not compare spans with a document, and ids stay as the model
wrote them (`models.atomizer.assemble` does both).
Paper: appendix "Annotator and prompt format", "Failure Handling and Quality Logging".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from models.atoms import ABSTRACTION_LEVELS, RELATION_TYPES, SEMANTIC_TYPES, Relation

UNREADABLE_CONFIDENCE = 0.5

_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#(\d{1,7})|#x([0-9a-fA-F]{1,6}));")
# C0 without tab and line feed, DEL, C1, and the marks that turn the direction of writing round.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_THINKING = (
    re.compile(r"\A\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE),
    # Some chat templates put the opening tag into the prompt, so that the reply holds the closing one only.
    re.compile(r"\A.*</think(?:ing)?>(?=\s*(?:```\w*\s*)?<atoms\b)", re.DOTALL | re.IGNORECASE),
)
# An opening tag is followed by another tag, which tells it from `<atom>` in the text of a document.
_ATOM_OPEN = re.compile(r"<atom\b([^<>]*)(?:>(?=\s*(?:<|\Z))|\Z)", re.IGNORECASE)
_ATOM_CLOSE = re.compile(r"</atom\s*>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>/]+))""")
_RELATION = re.compile(r"<relation\b([^<>]*)>", re.IGNORECASE)
_OWN_TAG = re.compile(r"</?(?:content|source_span|retrieval_text|relation)\b[^<>]*>", re.IGNORECASE)
_CDATA = re.compile(r"\A\s*<!\[CDATA\[(.*)\]\]>\s*\Z", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An atom as the model wrote it, its fields valid and its span not yet looked for.

    Args:
        local_id: The model's own id, unique at best within its reply; empty where it gave none.
        source_spans: Readings of the quotation, the likeliest first: with and without XML entities.
        conflict_group: A name that holds within the reply.
        relations: Their targets are ids of the model.
    """

    local_id: str
    semantic_type: str
    content: str
    source_spans: tuple[str, ...]
    retrieval_text: str
    is_answer_bearing: bool
    abstraction_level: str
    conflict_group: str | None
    confidence: float
    relations: tuple[Relation, ...]


@dataclass(frozen=True, kw_only=True)
class ParsedReply:
    """What could be read of a reply.

    Args:
        dropped: Atoms that were left out, counted by reason.
        repaired: Fields that were mended or left out, counted by reason.
    """

    drafts: tuple[Draft, ...]
    dropped: Counter[str]
    repaired: Counter[str]


def parse_atoms(reply: str, *, is_echo: Callable[[str], bool]) -> ParsedReply:
    """Read every well-formed atom of a reply.

    Text around the atoms is ignored, thinking and code fences included, and so are `&` and `<` that
    should have been escaped.

    Args:
        is_echo: Tells whether a text was copied from the prompt; such an atom is dropped.
    """
    for thinking in _THINKING:
        reply = thinking.sub("", reply, count=1)
    dropped: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    drafts = []
    for attributes, body in _elements(reply):
        content = _element(body or "", "content")
        span = _element(body or "", "source_span")
        if body is None or content is None or span is None:
            dropped["broken tags"] += 1
        elif not any(c.isalnum() for c in content):
            dropped["no content"] += 1
        elif is_echo(_clean(content)):
            dropped["copied from the prompt"] += 1
        else:
            drafts.append(_draft(attributes, body, content, span, repaired))
    return ParsedReply(drafts=tuple(drafts), dropped=dropped, repaired=repaired)


def _elements(reply: str) -> Iterator[tuple[dict[str, str], str | None]]:
    """Yield the attributes and the inside of each atom; None for one that is never closed."""
    opens = list(_ATOM_OPEN.finditer(reply))
    ends = [*(o.start() for o in opens[1:]), len(reply)]
    for opening, end in zip(opens, ends, strict=False):
        inside = reply[opening.end() : end]
        closes = list(_ATOM_CLOSE.finditer(inside))
        yield _attributes(opening[1]), inside[: closes[-1].start()] if closes else None


def _attributes(text: str) -> dict[str, str]:
    found = _ATTRIBUTE.finditer(text)
    return {m[1].lower(): _unescape(m[2] or m[3] or m[4] or "").strip() for m in found}


def _element(body: str, name: str) -> str | None:
    """Return the raw inside of an element, or None where it is missing or runs into another one."""
    match = re.search(rf"<{name}\b[^<>]*>(.*?)</{name}\s*>", body, re.DOTALL | re.IGNORECASE)
    if match is None or _OWN_TAG.search(match[1]):
        return None
    cdata = _CDATA.match(match[1])
    return (cdata[1] if cdata else match[1]).strip()


def _draft(attributes: dict[str, str], body: str, content: str, span: str, repaired: Counter[str]) -> Draft:
    def scalar(name: str) -> str:
        # Models that know XML from elsewhere write short fields as elements.
        return attributes.get(name) or _unescape(_element(body, name) or "").strip()

    retrieval_text = _clean(_element(body, "retrieval_text") or "")
    if not retrieval_text:
        repaired["missing retrieval_text"] += 1
    conflict = scalar("conflict")
    return Draft(
        local_id=scalar("id"),
        semantic_type=_choice(scalar("semantic_type"), SEMANTIC_TYPES, "fact_claim", "semantic type", repaired),
        content=_clean(content),
        source_spans=tuple(dict.fromkeys((_unescape(span), span))),
        retrieval_text=retrieval_text or _clean(content),
        is_answer_bearing=scalar("answer_bearing").lower() not in ("no", "false", "0"),
        abstraction_level=_choice(scalar("level"), ABSTRACTION_LEVELS, "evidence", "abstraction level", repaired),
        conflict_group=None if conflict.lower() in ("", "none", "null", "no", "n/a") else conflict,
        confidence=_confidence(scalar("confidence"), repaired),
        relations=tuple(_relations(body, repaired)),
    )


def _choice(value: str, allowed: tuple[str, ...], default: str, name: str, repaired: Counter[str]) -> str:
    """Return the allowed value that is meant: `Fact claim` and `fact` mean `fact_claim`."""
    word = re.sub(r"[\W_]+", "_", value.lower()).strip("_")
    if word in allowed:
        return word
    alike = [a for a in allowed if word and a.startswith(word)]
    if len(alike) == 1:
        return alike[0]
    repaired[f"unknown {name}"] += 1
    return default


def _confidence(value: str, repaired: Counter[str]) -> float:
    """Read `0.9`, `0,9`, `90%` and `90` as 0.9."""
    try:
        number = float(value.rstrip("% ").replace(",", "."))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        repaired["unreadable confidence"] += 1
        return UNREADABLE_CONFIDENCE
    # From 1 to 10 the scale is anyone's guess, and certainty the likeliest meaning.
    if value.endswith("%") or number > 10:
        number /= 100
    return min(1.0, max(0.0, number))


def _relations(body: str, repaired: Counter[str]) -> Iterator[Relation]:
    for match in _RELATION.finditer(body):
        attributes = _attributes(match[1])
        kind = re.sub(r"[\W_]+", "_", attributes.get("type", "").lower())
        if kind in RELATION_TYPES and attributes.get("target"):
            yield Relation(type=kind, target=attributes["target"])
        else:
            repaired["unknown relation type"] += 1


def _clean(text: str) -> str:
    """Return one line without control characters and entities."""
    return " ".join(_CONTROL.sub("", _unescape(text)).split())


def _unescape(text: str) -> str:
    """Resolve the entities of XML only: those of HTML would turn `&copy` in plain text into a sign."""

    def character(match: re.Match[str]) -> str:
        if match[1]:
            return _ENTITIES[match[1]]
        code = int(match[2]) if match[2] else int(match[3], 16)
        is_text = code < 0x110000 and not 0xD800 <= code < 0xE000
        return chr(code) if is_text else match[0]

    return _ENTITY.sub(character, text)
