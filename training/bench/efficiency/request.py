"""What a measurement of cost is asked for, and how its time is shared out; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from models.errors import ConfigError
from models.presets import RECIPES

# Parts in the order in which they run, each with its share of the time, which those that are asked for divide.
SHARES = {"compile": 0.2, "d2l": 0.25, "questions": 0.25, "generation": 0.25, "store": 0.05}
PRODUCT, PRODUCT_SHARE = "product", 0.5  # comes last, with a limit of its own beside them
PARTS = (*SHARES, PRODUCT)
SIZES = ("trained", "true", "tiny")


@dataclass(frozen=True, kw_only=True)
class EfficiencyRequest:
    """What to measure and for how long.

    Args:
        model: A preset with a published shape.
        recipe: None takes the preset's own.
        size: `trained`, the real base, with its trained memory where there is one; `true`, the published shape with
            random weights; `tiny`, a few layers, for tests.
        documents: Of a benchmark, each as the texts of its atoms; may be none.
        num_atoms, num_tokens: Of the invented document; None for its tokens takes 8,192 on a GPU, 1,024 on a CPU.
        bank_sizes: Atoms of the invented banks, growing; None takes 10^2 to 10^6.
        new_tokens: Of a generated answer; None takes 32 on a GPU, 16 on a CPU.
        parts: Some of `PARTS`.
        budget_s: Seconds of one run, making weights excluded; every part stops repeating when its share is over.
        index_budget_s: Seconds that building a word index may take; larger ones are left out, and the result says so.
        memory_gib: Parts that would need more are left out; None asks the device.
        base_path: Folder of a trained base's weights.
        checkpoint: Folder of a trained memory.
        out: JSON file, written after every part; runs of other models in it stay.

    Raises:
        ConfigError: A value that cannot be.
    """

    model: str
    recipe: str | None = None
    size: str = "trained"
    device: str = "auto"
    documents: tuple[tuple[str, ...], ...] = ()
    num_atoms: int = 64
    num_tokens: int | None = None
    bank_sizes: tuple[int, ...] = (100, 1_000, 10_000, 100_000, 1_000_000)
    new_tokens: int | None = None
    parts: tuple[str, ...] = PARTS
    budget_s: float = 75.0
    index_budget_s: float = 90.0
    memory_gib: float | None = None
    base_path: Path | None = None
    checkpoint: Path | None = None
    seed: int = 0
    out: Path | None = None

    def __post_init__(self) -> None:
        if unknown := [p for p in self.parts if p not in PARTS]:
            raise ConfigError(f"efficiency: parts must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
        if self.size not in SIZES:
            raise ConfigError(f"efficiency: size must be one of {', '.join(SIZES)}, got {self.size!r}")
        if self.recipe is not None and self.recipe not in RECIPES:
            raise ConfigError(f"efficiency: recipe must be one of {', '.join(RECIPES)}, got {self.recipe!r}")
        if list(self.bank_sizes) != sorted(set(self.bank_sizes)) or min(self.bank_sizes, default=1) < 1:
            raise ConfigError(f"efficiency: bank_sizes must be positive and grow, got {self.bank_sizes}")
        if not all(self.documents) or self.num_atoms < 1:
            raise ConfigError("efficiency: documents must have at least one atom each")

    def share_s(self, part: str) -> float:
        """Return the seconds of a part: alone it has the whole budget."""
        if part == PRODUCT:
            return PRODUCT_SHARE * self.budget_s
        return SHARES[part] / sum(SHARES[p] for p in self.parts if p != PRODUCT) * self.budget_s
