"""Measure a checkpoint on SQuAD's format: memory only, routing, refusal, and the rows that keep one honest.

    python -m training.evaluate --records build/data/squad_dev.jsonl.gz --limit 200

Banks: `passage`, one a passage (K = 3), and `library`, one of all passages (K = 8); `passage@2` is the first with
K = 2. `--limit` draws that many questions at random; banks stay complete. Rows that put text into the prompt:
`+atoms`, `+document`. `shuffled` attaches another article's memory, and `shuffled-answering` the same one to a model
that may not begin with the refusal. Where the gate decides alone no other memory may, and the column `may_refuse` is F1
as if it might. `--rows` with nothing behind it measures routing alone, which needs no language model unless the router
has it read candidates. `--strangers` asks the bank of all passages what another set asks, which it cannot answer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.base import load_base
from models.checkpoint import CheckpointMeta, find_checkpoint, load_network
from models.memory import CONTEXT_WEIGHT
from models.presets import load_preset
from models.router import AnswerabilityGate
from training.banks import other_article
from training.gate import affordable_threshold, judged
from training.library import Ask, Library, Reply, RoutedAsks
from training.metrics import auroc, bootstrap_interval, exact_match, token_f1
from training.records import read_records

PASSAGE_K, LIBRARY_K = 3, 8
K_ROWS = ("passage@2", "passage@8")
# Of what another article's memory tells, and of what the base knows without any.
CONTROL_ROWS = ("no-context", "shuffled", "shuffled-answering", "wrong-document")
MEMORY_ROWS = ("gold", "passage", *K_ROWS, "library", *CONTROL_ROWS)
CONTEXT_ROWS = ("passage+atoms", "passage+document", "library+atoms", "library+document", "base+document")
OFF_TOPIC_ROWS = ("off-topic passage", "off-topic library")
STRANGERS = "off-topic strangers"


class Evaluation:
    """Runs rows over questions in batches and collects one result a question and row."""

    def __init__(self, library: Library, gate: AnswerabilityGate, *, seed: int = 0, max_new_tokens: int = 32) -> None:
        self.library, self.gate, self.max_new_tokens = library, gate, max_new_tokens
        self.rng = random.Random(seed)
        titles = sorted({r.title for r in library.records})
        half = set(titles[::2])
        in_half = np.array([r.title in half for r in library.records])[library.passage_of]
        # A question of one half of the articles is off-topic to a bank of the other half.
        self.own_half = {True: in_half, False: ~in_half}
        self.half = half

    def run(self, asks: Sequence[Ask], rows: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        """Return, for each row, one result a question, in the order of `asks`."""
        key_BE = self.library.query_keys(asks)
        cached: dict[str, RoutedAsks] = {}

        def routed(bank: str) -> RoutedAsks:
            if bank not in cached:
                cached[bank] = self._route(bank, asks, key_BE)
            return cached[bank]

        return {row: self._row(row, asks, routed) for row in rows}

    def _route(self, bank: str, asks: Sequence[Ask], key_BE: torch.Tensor) -> RoutedAsks:
        library = self.library
        bank, _, count = bank.partition("@")
        top_k = int(count) if count else LIBRARY_K if bank.endswith(("library", "strangers")) else PASSAGE_K
        if bank == "gold":
            return library.gold_route(asks)
        if bank == "shuffled":
            asks = [self._donor(a) for a in asks]
            key_BE = library.query_keys(asks)
        if bank in ("library", STRANGERS):
            return library.route(key_BE, library.library_candidates(asks, key_BE), top_k=top_k, asks=asks)
        if bank == "off-topic library":
            masks = [~self._own_half(a) for a in asks]
            found = library.library_candidates(asks, key_BE, visible=masks)
            return library.route(key_BE, found, top_k=top_k, num_atoms=[int(m.sum()) for m in masks], asks=asks)
        if bank == "off-topic passage":
            asks = [
                Ask(question=a.question, passage=other_article(library, a.passage, self.rng), gold=()) for a in asks
            ]
        return library.route_passages(key_BE, asks, top_k=top_k)

    def _own_half(self, ask: Ask) -> np.ndarray:
        return self.own_half[self.library.records[ask.passage].title in self.half]

    def _row(self, row: str, asks: Sequence[Ask], routed: Callable[[str], RoutedAsks]) -> list[dict[str, Any]]:
        bank, _, context = row.partition("+")
        if bank in ("no-context", "base"):
            texts = [self._document(a.passage) for a in asks] if context else None
            replies = self.library.answer(asks, None, contexts=texts, max_new_tokens=self.max_new_tokens)
            return [self._result(a, r) for a, r in zip(asks, replies, strict=True)]
        if bank in ("shuffled", "shuffled-answering"):
            return self._shuffled(asks, routed("shuffled"), may_refuse=bank == "shuffled")
        if bank == "wrong-document":
            return self._wrong_document(asks, routed)
        route = routed(bank)
        contexts = {"": None, "atoms": self._atom_texts(route), "document": self._documents(route)}[context]
        off_topic = bank.startswith("off-topic")
        replies = self.library.answer(
            asks, self.library.adapter(route), contexts=contexts, max_new_tokens=0 if off_topic else self.max_new_tokens
        )
        if bank == "gold":  # given, not routed: there is nothing for the gate to judge
            return [self._result(a, r) for a, r in zip(asks, replies, strict=True)]
        return self._results(asks, replies, route)

    def _shuffled(self, asks: Sequence[Ask], route: RoutedAsks, *, may_refuse: bool) -> list[dict[str, Any]]:
        """Give every question the memory that a question about another article would be given."""
        adapter = self.library.adapter(route)
        replies = self.library.answer(asks, adapter, max_new_tokens=self.max_new_tokens, may_refuse=may_refuse)
        return [self._result(a, r) for a, r in zip(asks, replies, strict=True)]

    def _wrong_document(self, asks: Sequence[Ask], routed: Callable[[str], RoutedAsks]) -> list[dict[str, Any]]:
        """Ask another article's passage, and the untouched base where the gate refuses: `--on-irrelevant base`."""
        route = routed("off-topic passage")
        replies = self.library.answer(asks, self.library.adapter(route), max_new_tokens=self.max_new_tokens)
        own = self._results(asks, replies, route)
        base = self._row("no-context", asks, routed)
        return [
            {"refused": refused, **{k: (b if refused else o)[k] for k in ("id", "answer", "f1", "em")}}
            for o, b in zip(own, base, strict=True)
            for refused in [o["answerability"] < self.gate.threshold]
        ]

    def _donor(self, ask: Ask) -> Ask:
        passage = other_article(self.library, ask.passage, self.rng)
        own = self.library.asks(passage)
        return self.rng.choice(own) if own else Ask(question=ask.question, passage=passage, gold=())

    def _document(self, passage: int) -> str:
        return self.library.records[passage].context

    def _documents(self, route: RoutedAsks) -> list[str]:
        return [self._document(int(self.library.passage_of[row])) for row in route.row_BK[:, 0].tolist()]

    def _atom_texts(self, route: RoutedAsks) -> list[str]:
        texts = self.library.texts
        return [
            " ".join(texts[r] for r, w in zip(rows, weights, strict=True) if w > math.log(CONTEXT_WEIGHT))
            for rows, weights in zip(route.row_BK.tolist(), route.log_weight_BK.tolist(), strict=True)
        ]

    def _results(self, asks: Sequence[Ask], replies: Sequence[Reply], route: RoutedAsks) -> list[dict[str, Any]]:
        """Return replies with what the gate makes of their routing, and where the first gold atom stands in it."""
        features_BF = judged(route, replies)
        results = []
        for ask, reply, features_F, rows in zip(asks, replies, features_BF, route.row_BK.tolist(), strict=True):
            hits = [row in ask.gold for row in rows]
            results.append(
                self._result(ask, reply)
                | {
                    "gate_features": features_F.tolist(),
                    "answerability": float(self.gate(features_F)),
                    "rank": hits.index(True) + 1 if any(hits) else None,
                }
            )
        return results

    def _result(self, ask: Ask, reply: Reply) -> dict[str, Any]:
        question = ask.question
        result: dict[str, Any] = {
            "id": question.question_id,
            "answer": reply.text,
            "f1": token_f1(reply.text, question.answers),
            "em": exact_match(reply.text, question.answers),
        }
        if reply.overruled:
            result["overruled"] = True
        return result


def router_ranks(library: Library, asks: Sequence[Ask], *, batch: int) -> dict[str, list[int]]:
    """Return the rank of the best gold atom by the router, in the passage and among all; huge behind the first 8."""
    ranks: dict[str, list[int]] = {"passage": [], "library": []}
    for start in range(0, len(asks), batch):
        some = asks[start : start + batch]
        key_BE = library.query_keys(some)
        banks = {
            "passage": library.route_passages(key_BE, some, top_k=LIBRARY_K),
            "library": library.route(key_BE, library.library_candidates(some, key_BE), top_k=LIBRARY_K, asks=some),
        }
        for name, routed in banks.items():
            weighed = (routed.log_weight_BK > -math.inf).tolist()
            for ask, rows, real in zip(some, routed.row_BK.tolist(), weighed, strict=True):
                hits = [k for k, row in enumerate(rows) if row in ask.gold and real[k]]
                ranks[name].append(hits[0] + 1 if hits else 10**9)
    return ranks


def hit_rates(ranks: dict[str, list[int]]) -> dict[str, float]:
    """Return percentages of questions whose best gold atom is among the first K."""
    return {f"{bank}_top{k}": _mean(r <= k for r in found) for bank, found in ranks.items() for k in (1, 2, 3, 8)}


def bm25_ranks(library: Library, asks: Sequence[Ask]) -> dict[str, list[int]]:
    """Return the rank of the best gold atom by BM25 alone, in the passage and among all; huge where it is missed."""
    ranks: dict[str, list[int]] = {"passage": [], "library": []}
    for ask in asks:
        query = ask.question.question
        scores = library.passage_candidates(ask).lexical
        ranks["passage"].append(_gold_rank(scores, np.array(ask.gold, dtype=np.int64) - library.start[ask.passage]))
        ranks["library"].append(_gold_rank(library.lexical().all_scores(query), np.array(ask.gold, dtype=np.int64)))
    return ranks


def _gold_rank(scores: np.ndarray, gold: np.ndarray) -> int:
    return 1 + int((scores > scores[gold].max()).sum()) if len(gold) and scores[gold].max() > 0 else 10**9


def summarize(results: dict[str, list[dict[str, Any]]], threshold: float) -> dict[str, dict[str, float]]:
    """Return percentages for each row: F1, exact match, top-1 and top-K of routing, and what the gate does.

    `may_refuse` is F1 had the model kept the refusals in which it was overruled. `at_one_point` is the threshold that
    costs one point of F1 in these very banks, and `refused_at_one_point` what it refuses.
    """
    table: dict[str, dict[str, float]] = {}
    for row, items in results.items():
        figures = {"n": len(items)}
        if not row.startswith("off-topic"):
            figures |= {"f1": _mean(i["f1"] for i in items), "em": _mean(i["em"] for i in items)}
            if overruled := [i for i in items if i.get("overruled")]:
                figures["may_refuse"] = figures["f1"] - 100 * sum(i["f1"] for i in overruled) / len(items)
                figures["overruled"] = 100 * len(overruled) / len(items)
        if "answerability" in items[0]:
            refused = [i["answerability"] < threshold for i in items]
            figures["refused"] = _mean(map(float, refused))
            if "f1" in figures:
                figures["f1_gated"] = _mean(0.0 if r else i["f1"] for i, r in zip(items, refused, strict=True))
                figures["top1"] = _mean(i["rank"] == 1 for i in items)
                figures["top3"] = _mean(i["rank"] is not None and i["rank"] <= 3 for i in items)
                figures["topk"] = _mean(i["rank"] is not None for i in items)
        table[row] = figures
    for bank in ("passage", "library"):
        if bank in results and f"off-topic {bank}" in results:
            own, off = ([i["answerability"] for i in results[row]] for row in (bank, f"off-topic {bank}"))
            limit = affordable_threshold(own, [i["f1"] for i in results[bank]])
            at_one_point = {"at_one_point": limit, "refused_at_one_point": _mean(score < limit for score in off)}
            table[f"off-topic {bank}"] |= {"auroc": 100 * auroc(own, off), **at_one_point}
    return table


def _mean(values: Iterable[float]) -> float:
    numbers = [float(v) for v in values]
    return 100 * sum(numbers) / len(numbers)


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a command line that names records, a checkpoint, and how many questions to ask at once."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    return parser


def opened(args: argparse.Namespace, *, max_new_tokens: int) -> tuple[Evaluation, CheckpointMeta]:
    """Load what `options` name and compile every atom; also return what the checkpoint says of itself."""
    torch.set_float32_matmul_precision("high")
    preset = load_preset(args.model)
    base = load_base(preset, base_path=args.base, device=args.device)
    network, meta = load_network(find_checkpoint(preset, args.checkpoint), base)
    gate = AnswerabilityGate.of(meta.gate)
    library = Library(base, network, read_records(args.records))
    library.compile()
    return Evaluation(library, gate, seed=args.seed, max_new_tokens=max_new_tokens), meta


def _drawn(asks: Sequence[Ask], args: argparse.Namespace) -> list[Ask]:
    """Return the answerable questions, or `--limit` of them at random."""
    asks = [ask for ask in asks if ask.question.answers]
    return random.Random(args.seed).sample(asks, min(args.limit, len(asks))) if args.limit else asks


def main() -> None:
    """Parse the command line, evaluate, print a table and write every prediction."""
    parser = options(__doc__)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--rows", nargs="*", default=[*MEMORY_ROWS, *OFF_TOPIC_ROWS])
    parser.add_argument("--strangers", type=Path, help="records of another set, whose questions the bank cannot answer")
    parser.add_argument("--out", type=Path, help="folder for predictions.jsonl and summary.json")
    args = parser.parse_args()
    evaluation, meta = opened(args, max_new_tokens=args.max_new_tokens)
    library, gate = evaluation.library, evaluation.gate
    asks = _drawn([a for p in range(len(library.records)) for a in library.asks(p)], args)
    strangers = read_records(args.strangers) if args.strangers else []
    others = _drawn([Ask(question=q, passage=-1, gold=()) for r in strangers for q in r.qa_pairs], args)
    started = time.monotonic()
    results = defaultdict(list)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "predictions.jsonl" if args.out else Path(os.devnull)).open("w", encoding="utf-8") as file:
        parts = [(asks[i : i + args.batch], args.rows) for i in range(0, len(asks) if args.rows else 0, args.batch)]
        parts += [(others[i : i + args.batch], [STRANGERS]) for i in range(0, len(others), args.batch)]
        for some, rows in parts:
            for row, items in evaluation.run(some, rows).items():
                results[row] += items
                file.writelines(json.dumps({"row": row, **item}, ensure_ascii=False) + "\n" for item in items)
            file.flush()
    table = summarize(results, gate.threshold)
    for row, items in results.items():
        if "f1" in table[row]:
            low, high = bootstrap_interval([i["f1"] for i in items])
            table[row] |= {"f1_low": 100 * low, "f1_high": 100 * high}
    summary = {
        "checkpoint": meta.fingerprint,
        "base": meta.base_fingerprint,
        "device": str(library.base.device),
        "dtype": str(library.base.dtype),
        "questions": len(asks),
        "max_new_tokens": args.max_new_tokens,
        "atoms": len(library.texts),
        "threshold": gate.threshold,
        "seconds": round(time.monotonic() - started, 1),
        "rows": table,
        "router": hit_rates(router_ranks(library, asks, batch=args.batch)),
        "bm25": hit_rates(bm25_ranks(library, asks)),
    }
    if args.out:
        (args.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    print(json.dumps({k: v for k, v in summary.items() if k != "rows"}))
    for row, figures in table.items():
        print(
            f"{row:20s} "
            + "  ".join(f"{name} {value:.2f}" if name != "n" else f"n {value}" for name, value in figures.items())
        )


if __name__ == "__main__":
    main()
