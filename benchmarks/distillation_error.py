"""Print how far distillation from what a cache can hold of a teacher is from the full KL divergence.

    python benchmarks/distillation_error.py [--context section] [--temperature 1.5]

The teacher is the default preset's base with `examples/eddystone.md`, or the section of it that the answer is in,
in its prompt, at the tokens of every answer in `examples/questions.json`, the refusal where there is none. Kept of
it are the K best tokens and a tail bucket, in float16, or the state that leaves its last layer, in bfloat16, from
which the frozen head gives every logit again.

Two students stand for the ends of a training run: `first` is the base without the document, what an untrained
memory gives; `last` has nine tenths of the teacher's logits. Errors are relative: of the loss summed over tokens,
of its gradient with respect to the student's logits, and of that with respect to the states under the head, which
is what the memory learns from; gradients in the Frobenius norm.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import FrozenBase, load_base
from models.presets import load_preset
from models.prompts import REFUSAL, end_ids, prompt_ids
from training.losses import distill_loss, distill_topk_loss, teacher_topk

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARE_LAST = 0.9


Loss = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Error:
    """Relative errors against the full divergence, in percent.

    Args:
        kept: K, or `state`.
        tail: The teacher's mean mass outside of its K best tokens, in percent.
    """

    student: str
    kept: str
    tail: float
    loss: float
    logits: float
    states: float


@torch.no_grad()
def answer_states(base: FrozenBase, question: str, answer: str, context: str | None) -> Tensor:
    """Return the states `[T, D]` that leave the last layer where `answer`, and the end that follows it, are next."""
    prompt = prompt_ids(base.tokenizer, question, context)
    end = min(end_ids(base.tokenizer, base.model.generation_config.eos_token_id))
    reply = [*base.tokenizer(answer, add_special_tokens=False)["input_ids"], end]
    ids_BL = torch.tensor([prompt + reply], device=base.device)
    out_BLD = base.run_layers(base.embed(ids_BL), start=0, stop=base.num_layers)
    return out_BLD[0, len(prompt) - 1 : -1]


def section_of(document: str, evidence: list[str]) -> str:
    """Return the section of a Markdown document that holds most of the evidence."""
    text = document.replace("\n## ", "\0## ").split("\0")
    return max(text, key=lambda part: sum(" ".join(e.split()) in " ".join(part.split()) for e in evidence))


def kept_teachers(base: FrozenBase, state_TD: Tensor, *, temperature: float) -> Iterator[tuple[str, float, Loss]]:
    """Yield what a cache can hold of a teacher: its name, the mass of its tail in percent, and the loss it gives."""
    teacher_TV = head_logits(base, state_TD)
    for k in SIZES:
        exact = teacher_topk(teacher_TV, k=k, temperature=temperature)
        kept = replace(exact, log_p_TK=exact.log_p_TK.half(), log_tail_T=exact.log_tail_T.half())
        tail = 100 * exact.log_tail_T.exp().mean().item()
        yield str(k), tail, partial(distill_topk_loss, teacher=kept, temperature=temperature)
    rounded_TV = head_logits(base, state_TD.bfloat16().float())
    yield "state", 0.0, partial(distill_loss, teacher_TV=rounded_TV, temperature=temperature)


@torch.no_grad()
def head_logits(base: FrozenBase, state_TD: Tensor) -> Tensor:
    """Return the logits `[T, V]`, in float64 so that the errors are not rounding's."""
    return base.logits(state_TD).double()


def with_gradient(loss: Loss, student_TV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss and its gradient with respect to the student's logits."""
    student_TV = student_TV.clone().requires_grad_(True)
    total, _ = loss(student_TV)
    return total.detach(), torch.autograd.grad(total, student_TV)[0]


def percent(estimate: Tensor, exact: Tensor) -> float:
    """Return the norm of the error relative to that of `exact`, in percent."""
    return 100 * ((estimate - exact).norm() / exact.norm()).item()


def measure(base: FrozenBase, teacher_TD: Tensor, first_TD: Tensor, *, temperature: float) -> Iterator[Error]:
    """Yield the errors of everything that can be kept, for both students."""
    teacher_TV, first_TV = head_logits(base, teacher_TD), head_logits(base, first_TD)
    head_VD = base.model.lm_head.weight.double()
    students = {"first": first_TV, "last": SHARE_LAST * teacher_TV + (1 - SHARE_LAST) * first_TV}
    for name, student_TV in students.items():
        full = partial(distill_loss, teacher_TV=teacher_TV, temperature=temperature)
        total, gradient_TV = with_gradient(full, student_TV)
        for kept, tail, loss in kept_teachers(base, teacher_TD, temperature=temperature):
            total_k, gradient_k = with_gradient(loss, student_TV)
            yield Error(
                student=name,
                kept=kept,
                tail=tail,
                loss=percent(total_k, total),
                logits=percent(gradient_k, gradient_TV),
                states=percent(gradient_k @ head_VD, gradient_TV @ head_VD),
            )


def main() -> None:
    """Run the base, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", choices=("document", "section"), default="document", help="what the teacher reads")
    parser.add_argument("--temperature", type=float, default=1.5, help="tau of both distributions")
    parser.add_argument("--json", action="store_true", help="write JSON instead of the table")
    options = parser.parse_args()

    base = load_base(load_preset("smollm2"), dtype=torch.float32)
    document = (EXAMPLES / "eddystone.md").read_text("utf-8")
    questions = json.loads((EXAMPLES / "questions.json").read_text("utf-8"))
    teacher, first = [], []
    for q in questions:
        context = document if options.context == "document" else section_of(document, q["evidence"])
        for answer in q["answers"] or [REFUSAL]:
            teacher.append(answer_states(base, q["question"], answer, context))
            first.append(answer_states(base, q["question"], answer, None))
    errors = list(measure(base, torch.cat(teacher), torch.cat(first), temperature=options.temperature))

    num_tokens = sum(map(len, teacher))
    if options.json:
        print(json.dumps({"prompts": len(teacher), "tokens": num_tokens, "errors": [asdict(e) for e in errors]}))
        return
    print(f"{len(teacher)} prompts, {num_tokens} answer tokens, tau {options.temperature:g}; errors in percent\n")
    print(f"{'student':<8} {'kept':>6} {'tail':>7} {'loss':>8} {'logits':>8} {'states':>8}")
    for e in errors:
        print(f"{e.student:<8} {e.kept:>6} {e.tail:>7.2f} {e.loss:>8.2f} {e.logits:>8.2f} {e.states:>8.2f}")


if __name__ == "__main__":
    main()
