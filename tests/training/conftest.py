"""What the tests of training share: a short instruction, for the tiny tokenizer takes a token a character."""

from collections.abc import Iterator

import pytest
import torch

import models.prompts


@pytest.fixture(autouse=True, scope="module")
def short_instruction() -> Iterator[None]:
    """Cut the prompt to a third, and the time of most tests with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.prompts, "INSTRUCTION", "Answer.")
        yield


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Run on one thread: parallel sums come in another order each time, and tiny models gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
