"""The frozen cross-encoder of stage 2, used where its weights are on this machine; nothing is downloaded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

logger = logging.getLogger(__name__)


class CrossEncoder:
    """Scores question-text pairs with a sequence classifier of one logit.

    Raises:
        ValueError: `source` holds another kind of model, whose head would be random.
    """

    def __init__(self, source: str, device: torch.device) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(source)
        model, report = AutoModelForSequenceClassification.from_pretrained(source, output_loading_info=True)
        if report["missing_keys"] or model.config.num_labels != 1:
            raise ValueError(f"{source} is no sequence classifier of one logit")
        self.model = model.to(device).eval()
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
    from huggingface_hub.errors import HFValidationError

    config: object = Path(name) / "config.json"
    if not Path(name).is_dir():
        try:
            config = try_to_load_from_cache(name, "config.json")
        except HFValidationError:  # the path of a folder that does not exist
            return None
    if not isinstance(config, str | Path):
        return None
    try:
        return CrossEncoder(str(Path(config).parent), device)
    except (OSError, ValueError) as error:  # something is missing, or it is another kind of model
        logger.warning("cannot use reranker %s, going on without: %s", name, str(error).splitlines()[0])
        return None
