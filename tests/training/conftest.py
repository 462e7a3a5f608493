"""What the tests of training share: a short instruction, for the tiny tokenizer takes a token a character."""

from collections.abc import Iterator

import pytest

import models.prompts


@pytest.fixture(autouse=True, scope="module")
def short_instruction() -> Iterator[None]:
    """Cut the prompt to a third, and the time of most tests with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.prompts, "INSTRUCTION", "Answer.")
        yield
