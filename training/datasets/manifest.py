"""The data manifest: what a run trained on, and what was kept out of it.

A checkpoint carries it, so that each row of a benchmark can say whether the set was in-domain or zero-shot. Holds
the manifest, its JSON form, and the making of clean training contexts, which writes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from training.datasets import LoadedSource
from training.datasets.context import Context
from training.datasets.files import sha256
from training.datasets.overlap import HeldOut, merge_equal
from training.datasets.registry import family_of

MAX_NAMED_FILES = 16
IN_DOMAIN, ZERO_SHOT = "in-domain", "zero-shot"
NOTHING_HELD_OUT = "no evaluation set was found, so that nothing kept its text out of training"


@dataclass(frozen=True, kw_only=True)
class SourceManifest:
    """What of one source took part.

    Args:
        files: SHA-256 of each file by its name; of more than 16 files, one of their fingerprints.
        num_contexts, num_questions: What is left to train on.
        dropped: How many contexts (`overlap`, `merged`) or questions (the parsers' reasons) were left out.
        overlaps: How many contexts overlapped with each evaluation set; one may overlap with several.
    """

    name: str
    split: str
    files: dict[str, str]
    num_contexts: int
    num_questions: int
    dropped: dict[str, int] = field(default_factory=dict)
    overlaps: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataManifest:
    """The sources of a run, and the evaluation sets that they were de-duplicated against, with their contexts.

    Args:
        warnings: What should have been done and was not.
    """

    sources: tuple[SourceManifest, ...]
    held_out: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def in_domain(self, eval_set: str) -> str:
        """Tell whether the training split of a set of the same family took part.

        LongBench's subsets belong to the families that they were drawn from. The paper calls them all zero-shot.

        Args:
            eval_set: A name in `EVAL_SETS` or `DATASETS`, or `longbench/SUBSET`.

        Returns:
            `in-domain` or `zero-shot`.
        """
        families = {family_of(source.name) for source in self.sources if source.num_contexts}
        return IN_DOMAIN if family_of(eval_set) in families else ZERO_SHOT

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DataManifest:
        """Build from the JSON form."""
        sources = tuple(SourceManifest(**source) for source in data["sources"])
        return cls(sources=sources, held_out=dict(data["held_out"]), warnings=tuple(data.get("warnings", ())))


def clean_sources(
    sources: Sequence[LoadedSource], eval_sets: Mapping[str, Sequence[Context]]
) -> tuple[dict[str, list[Context]], DataManifest]:
    """Keep evaluation text out of training sources, and join contexts of equal text.

    A text that several sources hold stays in the first, with the questions of all.

    Returns:
        Contexts with questions by source, and the manifest.
    """
    held_out = HeldOut(eval_sets)
    kept: list[tuple[str, Context]] = []
    reports = []
    for source in sources:
        contexts, dropped, overlaps = _without_overlap(source.contexts, held_out)
        kept += [(source.name, context) for context in contexts]
        reports.append((source, Counter(source.dropped) + dropped, overlaps))
    owner = {context.text: name for name, context in reversed(kept)}
    by_source: dict[str, list[Context]] = {source.name: [] for source in sources}
    for context in merge_equal(context for _, context in kept):
        by_source[owner[context.text]].append(context)
    given = Counter(name for name, _ in kept)
    manifests = []
    for source, dropped, overlaps in reports:
        left = by_source[source.name]
        dropped["merged"] += given[source.name] - len(left)
        manifests.append(_report(source, left, +dropped, overlaps))
    sizes = {name: len(contexts) for name, contexts in eval_sets.items()}
    warnings = () if any(sizes.values()) else (NOTHING_HELD_OUT,)
    return by_source, DataManifest(sources=tuple(manifests), held_out=sizes, warnings=warnings)


def _without_overlap(
    contexts: Iterable[Context], held_out: HeldOut
) -> tuple[list[Context], Counter[str], Counter[str]]:
    kept: list[Context] = []
    dropped: Counter[str] = Counter()
    overlaps: Counter[str] = Counter()
    for context in contexts:
        if not context.questions:
            dropped["no_questions"] += 1
            continue
        cleaned, overlap = held_out.clean(context)
        overlaps.update(overlap.exact | overlap.near)
        if cleaned is None:
            dropped["overlap"] += 1
        else:
            dropped["paragraphs_overlap"] += len(context.paragraphs) - len(cleaned.paragraphs)
            kept.append(cleaned)
    return kept, dropped, overlaps


def _fingerprints(source: LoadedSource) -> dict[str, str]:
    found = {path.name: sha256(path) for path in sorted(source.files)}
    if len(found) <= MAX_NAMED_FILES:
        return found
    joined = hashlib.sha256("".join(f"{name} {digest}\n" for name, digest in found.items()).encode())
    return {f"{len(found)} files": joined.hexdigest()}


def _report(
    source: LoadedSource, left: Sequence[Context], dropped: Counter[str], overlaps: Counter[str]
) -> SourceManifest:
    return SourceManifest(
        name=source.name,
        split=source.split,
        files=_fingerprints(source),
        num_contexts=len(left),
        num_questions=sum(len(context.questions) for context in left),
        dropped=dict(sorted(dropped.items())),
        overlaps=dict(sorted(overlaps.items())),
    )
