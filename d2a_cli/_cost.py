"""What a job will ask of an endpoint that may cost money, said before it begins, and consent where it is large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from d2a_cli import _errors, _output

if TYPE_CHECKING:
    from models.atomizer import JobEstimate

# Up to this many requests the preview is printed without a question.
LARGE_JOB_CALLS = 25


def confirm(estimate: JobEstimate | None, job: str, *, yes: bool, hint: str) -> None:
    """Print what a job takes, and have a large one confirmed.

    Args:
        estimate: None, or one without requests, needs no word.
        job: What is done, as the subject of `takes about 3 requests`.
        yes: Consent was given beforehand.
        hint: The next step where nobody can be asked.

    Raises:
        UsageError: The job is large and nobody can be asked.
    """
    if estimate is None or not estimate.num_calls:
        return
    cost = "price unknown" if estimate.cost_usd is None else f"about ${estimate.cost_usd:.2f}"
    _output.note(
        f"{job} takes about {estimate.num_calls} requests: {estimate.num_input_tokens} tokens in, "
        f"up to {estimate.num_output_tokens} out, {cost}"
    )
    if yes or estimate.num_calls <= LARGE_JOB_CALLS:
        return
    if not _output.can_prompt():
        raise _errors.UsageError("a job of this size needs your consent", hint=hint)
    if not typer.confirm("Go on?", err=True):
        raise typer.Exit(_errors.EXIT_ERROR)
