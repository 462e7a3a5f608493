"""Faults that a user can mend, each with the next step.

Everything a caller of `models` should expect to catch derives from `D2AError`. A bug of ours is an
`AssertionError` and stays a traceback.
"""


class D2AError(ValueError):
    """One line that says what is wrong, and what to do next.

    Args:
        message: What is wrong, without a final full stop.
        hint: The next step, as a command or a short imperative; None where there is none.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{message}. {hint}" if hint else message)
        self.message = message
        self.hint = hint


class DocumentError(D2AError):
    """A document cannot be read: scanned, encrypted, empty, broken, or of an unknown kind."""


class AtomizerError(D2AError):
    """A document cannot be decomposed into atoms."""


class BankError(D2AError):
    """A bank cannot be opened, read or written, or holds nothing under the given name."""


class CheckpointError(D2AError):
    """A preset has no trained checkpoint, or the checkpoint does not fit the base."""


class BaseModelError(D2AError):
    """The frozen base model cannot be found, loaded or used."""


class ConfigError(D2AError):
    """A setting has a name or a value that is not allowed."""
