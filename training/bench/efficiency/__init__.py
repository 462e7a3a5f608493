"""What memory costs: compile time, question latency, generation speed, bytes an atom, beside Doc-to-LoRA.

`run` measures part by part and writes `efficiency.json` as it goes; `compiling`, `questions`, `product`, `generating`
and `storing` are the parts, `targets` judges them, `meters` holds clocks and memory, `bases` and `texts` what is
measured on. Nothing here needs lancedb but `product`, which says so where it is missing.

    python -m training.bench.efficiency --model gemma qwen --size true --out efficiency.json
"""

from training.bench.efficiency.request import EfficiencyRequest
from training.bench.efficiency.run import run_efficiency

__all__ = ["EfficiencyRequest", "run_efficiency"]
