"""A question over a bank: candidates of both retrievers, scores, weights. Paper, "Two-Stage Query Router"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from models.bank import Bank
from models.doubts import doubts
from models.engine import Candidates, Engine, RoutedRows
from models.lexical import best_rows
from models.results import RoutedAtom, StoredAtom


def route_question(
    bank: Bank, engine: Engine, question: str, *, top_k: int | None
) -> tuple[list[StoredAtom], RoutedRows, tuple[RoutedAtom, ...]]:
    """Find candidates by cosine, united with BM25's where the recipe says so, and select among them.

    BM25's are the best by an atom's words and those of the stretch around it, in equal parts.

    Args:
        top_k: Atoms to select; None takes the memory's own.

    Returns:
        The candidates, which of their rows were selected with what weights, and all of it for a reader's eyes.
    """
    spec = engine.spec.router
    key_E = engine.query_key(question)
    uids = [uid for uid, _ in bank.search(key_E, limit=spec.num_candidates)]
    index = bank.lexical()
    lexical = index.all_scores(question)
    stretch = index.stretch_scores(question, own=lexical)
    if spec.lexical:
        named = best_rows(lexical + stretch, spec.num_candidates)
        uids = list(dict.fromkeys([*uids, *(index.uids[r] for r in named)]))
    stored = bank.atoms_by_uid(uids)
    rows = index.rows_of(uids)
    found = Candidates(
        cosine=bank.keys_by_uid(uids) @ key_E,
        lexical=lexical[rows],
        stretch=stretch[rows],
        rerank=engine.rerank(question, [a.atom.content for a in stored]),
    )
    top_k = top_k or spec.top_k
    num_read = engine.network.router.num_read
    routed = engine.route(found, [a.atom for a in stored], top_k=max(top_k, num_read))
    if num_read:
        tensors = bank.load_shard_rows([stored[row].uid for row in routed.rows])
        routed = engine.read(question, routed, tensors, top_k=top_k)
    judged = [stored[row].atom.content for row in routed.refusal or routed.rows]
    mean_refusal = fmean(routed.refusal.values()) if routed.refusal else 0.0
    routed = replace(routed, doubts=(mean_refusal, *doubts(question, judged), index.evidence(question)))
    titles = {d.document_id: d.title for d in bank.documents()}
    return stored, routed, _explained(stored, titles, found, routed)


def _explained(
    stored: Sequence[StoredAtom], titles: Mapping[str, str], found: Candidates, routed: RoutedRows
) -> tuple[RoutedAtom, ...]:
    """Every candidate with its scores: the selected ones first, then the others, best first."""
    weight = dict(zip(routed.rows, routed.weight, strict=True))
    rest = sorted((i for i in range(len(stored)) if i not in weight), key=lambda i: -routed.score[i])
    return tuple(
        RoutedAtom(
            uid=stored[i].uid,
            document_id=stored[i].document_id,
            document_title=titles.get(stored[i].document_id, ""),
            page_label=stored[i].page_label,
            content=stored[i].atom.content,
            cosine=float(found.cosine[i]),
            lexical=float(found.lexical[i]),
            rerank=None if found.rerank is None else float(found.rerank[i]),
            refusal_logprob=routed.refusal.get(i),
            score=routed.score[i],
            weight=weight.get(i, 0.0),
            selected=i in weight,
        )
        for i in [*routed.rows, *rest]
    )
