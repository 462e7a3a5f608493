"""Ask the questions of `examples/questions.json` of the example document, under one or more kinds of context.

python benchmarks/example.py none atoms
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from models.config import MemoryConfig
from models.memory import DocumentMemory
from training.metrics import token_f1

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def main() -> None:
    """Print one line a kind of context: mean F1, refusals of what cannot be answered, and milliseconds."""
    questions = json.loads((EXAMPLES / "questions.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        bank = Path(folder) / "bank"
        DocumentMemory(MemoryConfig(bank=bank)).ingest([str(EXAMPLES / "eddystone.pdf")])
        for context in sys.argv[1:] or ["none"]:
            memory = DocumentMemory(MemoryConfig(bank=bank, context=context))
            asked = [(q, memory.ask(q["question"])) for q in questions]
            f1 = [token_f1(a.text, q["answers"]) for q, a in asked if q["answers"]]
            refused = [a.status == "unanswerable" for q, a in asked if not q["answers"]]
            median_ms = sorted(a.timings["total_ms"] for _, a in asked)[len(asked) // 2]
            mean = 100 * sum(f1) / len(f1)
            print(f"{context}: F1 {mean:.1f}, refused {sum(refused)} of {len(refused)}, {median_ms:.0f} ms")


if __name__ == "__main__":
    main()
