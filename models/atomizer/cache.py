"""Replies of a language model on disk, so that no window is paid for twice.

Holds one JSON file a reply, named by the hash of everything that shaped it. It does not judge replies:
what is put in comes out.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a model answered.

    Args:
        finish_reason: `stop`, or `length` where the reply was cut; empty where the server gave none.
        num_input_tokens, num_output_tokens: As the server counts them, 0 where it does not.
    """

    text: str
    finish_reason: str
    num_input_tokens: int = 0
    num_output_tokens: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not isinstance(self.finish_reason, str):
            raise TypeError(f"Reply: text must be a string, got {type(self.text).__name__}")


class ReplyCache:
    """A folder of replies that several processes may share.

    Args:
        folder: Made when the first reply is kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @staticmethod
    def key(*parts: object) -> str:
        """Return the name of a reply: SHA-256 of the JSON of all that shaped it, in hex."""
        return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()

    def get(self, key: str) -> Reply | None:
        """Return the reply kept under `key`; None where there is none or its file is damaged."""
        if self._folder is None:
            return None
        try:
            return Reply(**json.loads(self._path(self._folder, key).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            logger.warning("a cached reply is unreadable and will be asked for again: %s", error)
            return None

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply. A reader sees it whole or not at all; a full disk loses it, with a log line."""
        if self._folder is None:
            return
        path = self._path(self._folder, key)
        temporary = None
        try:
            # Replies repeat what the documents say, so they are the owner's alone.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".reply-")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(asdict(reply), file)
            os.replace(temporary, path)
        except OSError as error:
            logger.warning("a reply could not be cached: %s", error)
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"
