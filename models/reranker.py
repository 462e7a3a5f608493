"""The frozen cross-encoder of stage 2, used where its weights are on this machine; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch


class CrossEncoder:
    """Scores question-text pairs with a sequence classifier of one logit."""

    def __init__(self, source: str, device: torch.device) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(source)
        self.model = AutoModelForSequenceClassification.from_pretrained(source).to(device).eval()
        self.name = source

    @torch.no_grad()
    def scores(self, question: str, texts: Sequence[str], max_tokens: int) -> np.ndarray:
        """Return one score a text, float32; pairs are cut at `max_tokens`, the text first."""
        batch = self.tokenizer(
            [question] * len(texts),
            list(texts),
            truncation="only_second",
            max_length=max_tokens,
            padding=True,
            return_tensors="pt",
        )
        return self.model(**batch.to(self.model.device)).logits[:, 0].float().cpu().numpy()


def find_reranker(name: str, device: torch.device) -> CrossEncoder | None:
    """Return the cross-encoder `name`, a folder or a cached hub repository, or None where it is not here."""
    from huggingface_hub import try_to_load_from_cache

    if (Path(name) / "config.json").is_file():
        return CrossEncoder(name, device)
    cached = try_to_load_from_cache(name, "config.json")
    return CrossEncoder(str(Path(cached).parent), device) if isinstance(cached, str) else None
