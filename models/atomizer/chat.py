"""One question to an OpenAI-compatible server, and everything that can go wrong with it.

Holds the client and the sorting of its faults into two kinds: `ReplyError` concerns one request, while
`AtomizerError` concerns every request to this server and stops the job. It knows nothing of atoms.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any

from models.atomizer.cache import Reply
from models.atomizer.prompts import Message
from models.config import AtomizerConfig
from models.errors import AtomizerError

if TYPE_CHECKING:
    import httpx2
    import openai

logger = logging.getLogger(__name__)

OFFICIAL_URL = "https://api.openai.com/v1"
CONNECT_TIMEOUT_S = 10.0
MAX_REASON_CHARS = 200

_NEW_LIMIT = "max_completion_tokens"
_REFUSAL = re.compile(r"unsupported|not support|unknown|unrecogni[sz]ed|unexpected|not permitted", re.IGNORECASE)


class ReplyError(Exception):
    """One request brought no usable reply.

    Args:
        reason: In a few words, without a final full stop.
        is_worth_repeating: Whether the same request may succeed at once; False where the client has
            already repeated it, or where the server will refuse it again.
    """

    def __init__(self, reason: str, *, is_worth_repeating: bool) -> None:
        super().__init__(reason)
        self.is_worth_repeating = is_worth_repeating


class ChatClient:
    """A chat model behind an OpenAI-compatible endpoint; threads may share it.

    The first `AtomizerError` is the last word: every later request is refused with it, unsent.

    Transport faults, 429 and 5xx are repeated by the official client, which waits as long as
    `Retry-After` says.

    Raises:
        AtomizerError: The endpoint is no URL, or it is the official one and there is no key for it.
    """

    def __init__(self, config: AtomizerConfig) -> None:
        import httpx2
        import openai

        self._config = config
        self._url = config.base_url or OFFICIAL_URL
        if not self._url.startswith(("http://", "https://")):
            raise AtomizerError(f"atomizer: base_url must start with http:// or https://, got {self._url!r}")
        # A URL may carry a password, which belongs in no message.
        self._shown_url = re.sub(r"//[^/@]*@", "//", self._url)
        self._key = os.environ.get(config.api_key_env, "").strip()
        if not self._key and config.base_url is None:
            raise AtomizerError(
                f"the atomizer {config.model} needs an API key, and {config.api_key_env} is not set",
                hint=f"Set {config.api_key_env}, name a local server with base_url, or use the backend `rules`.",
            )
        self._client = openai.OpenAI(
            # A local server asks for no key, but the client insists on one.
            api_key=self._key or "none",
            base_url=self._url,
            max_retries=config.max_retries,
            http_client=openai.DefaultHttpx2Client(
                timeout=httpx2.Timeout(config.timeout_s, connect=min(CONNECT_TIMEOUT_S, config.timeout_s)),
                event_hooks={"request": [self._refuse_when_stopped], "response": [_stop_on_spent_quota]},
            ),
        )
        self._options: dict[str, Any] = {"max_tokens": config.max_output_tokens, "temperature": 0.0}
        self._lock = threading.Lock()
        self._stopped_by: AtomizerError | None = None
        self._num_under_way = 0
        self.num_calls = 0
        self.num_input_tokens = 0
        self.num_output_tokens = 0

    def complete(self, messages: list[Message]) -> Reply:
        """Return the model's reply to the messages.

        Raises:
            ReplyError: This request brought nothing usable.
            AtomizerError: No request to this server can succeed before the user mends something.
        """
        with self._lock:
            if self._stopped_by:
                raise self._stopped_by
            self.num_calls += 1
            self._num_under_way += 1
        try:
            reply = self._sorted_out(messages)
        except AtomizerError as error:
            self._stop(error)
            raise
        finally:
            with self._lock:
                self._num_under_way -= 1
            self._close_when_idle()
        with self._lock:
            self.num_input_tokens += reply.num_input_tokens
            self.num_output_tokens += reply.num_output_tokens
        return reply

    def close(self) -> None:
        """Send nothing more. Requests under way come to their end, and the last one closes the connections."""
        self._stop(AtomizerError("the client is closed"))
        self._close_when_idle()

    def _stop(self, error: AtomizerError) -> None:
        with self._lock:
            self._stopped_by = self._stopped_by or error

    def _close_when_idle(self) -> None:
        # A socket that is closed while another thread reads from it may leave that thread waiting for ever.
        with self._lock:
            if self._stopped_by and not self._num_under_way:
                self._client.close()

    def _refuse_when_stopped(self, request: httpx2.Request) -> None:
        """Keep the client from repeating a request of a job that has ended: it does not repeat its own faults."""
        import openai

        if self._stopped_by:
            raise openai.OpenAIError("the job has ended")

    def _sorted_out(self, messages: list[Message]) -> Reply:
        import openai

        try:
            return self._read(self._create(messages))
        except (ReplyError, AtomizerError):
            raise
        except openai.OpenAIError as error:
            raise self._fault(error) from error
        except Exception as error:
            # A page of HTML or a foreign JSON with status 200 fails anywhere inside the client.
            raise ReplyError(f"unreadable reply ({type(error).__name__})", is_worth_repeating=True) from error

    def _create(self, messages: list[Message]) -> Any:
        import openai

        for _ in range(1 + len(self._options)):
            options = self._options
            request: dict[str, Any] = {"model": self._config.model, "messages": messages, **options}
            try:
                return self._client.chat.completions.create(**request)
            except openai.BadRequestError as error:
                accepted = _without_refused(options, f"{error.param or ''} {error.message}")
                if accepted == options:
                    raise
                logger.info("the server refuses one of %s: going on with %s", sorted(options), sorted(accepted))
                self._options = accepted
        raise AssertionError("the server refuses an option that was no longer sent")

    def _read(self, completion: Any) -> Reply:
        fault = getattr(completion, "error", None)
        if fault:
            text = fault.get("message", fault) if isinstance(fault, dict) else fault
            if "insufficient_quota" in str(fault):
                raise self._spent_quota()
            raise ReplyError(f"the server reports: {self._quoted(text)}", is_worth_repeating=True)
        if not hasattr(completion, "choices"):
            raise ReplyError("the server sent a page instead of a reply", is_worth_repeating=True)
        if not completion.choices:
            raise ReplyError("the reply holds no choices", is_worth_repeating=True)
        choice = completion.choices[0]
        finish_reason = choice.finish_reason or ""
        content = choice.message.content
        if not isinstance(content, str) or not content.strip():
            why = getattr(choice.message, "refusal", None) or f"finish_reason {finish_reason or 'missing'}"
            raise ReplyError(f"empty content ({self._quoted(why)})", is_worth_repeating=True)
        usage = completion.usage
        return Reply(
            text=content,
            finish_reason=finish_reason,
            num_input_tokens=(usage.prompt_tokens or 0) if usage else 0,
            num_output_tokens=(usage.completion_tokens or 0) if usage else 0,
        )

    def _fault(self, error: openai.OpenAIError) -> ReplyError | AtomizerError:
        """Return what a fault of the client means: for one request, or for all of them."""
        import httpx2
        import openai

        cause = error.__cause__
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout):
            return AtomizerError(
                f"cannot connect to {self._shown_url}: {self._quoted(cause) or 'no answer'}",
                hint="Check base_url, and that the server runs.",
            )
        if isinstance(error, openai.APITimeoutError):
            reason = f"no reply within {self._config.timeout_s:g} s; raise timeout_s or lower window_tokens"
            return ReplyError(reason, is_worth_repeating=False)
        if isinstance(error, openai.APIStatusError):
            return self._status_fault(error)
        return ReplyError(f"the connection broke ({self._quoted(cause or error)})", is_worth_repeating=False)

    def _status_fault(self, error: openai.APIStatusError) -> ReplyError | AtomizerError:
        if error.code == "insufficient_quota" or "insufficient_quota" in error.message or error.status_code == 402:
            return self._spent_quota()
        if error.status_code in (401, 403):
            return AtomizerError(
                f"{self._shown_url} refuses the key: {self._quoted(error.message)}",
                hint=f"Put a valid key into {self._config.api_key_env}.",
            )
        if error.status_code == 404:
            return AtomizerError(
                f"{self._shown_url} has no model {self._config.model!r}, or is not the root of "
                f"an OpenAI-compatible API: {self._quoted(error.message)}",
                hint="Check model and base_url; the latter usually ends in /v1.",
            )
        return ReplyError(f"HTTP {error.status_code}: {self._quoted(error.message)}", is_worth_repeating=False)

    def _spent_quota(self) -> AtomizerError:
        return AtomizerError(
            f"the quota of the key in {self._config.api_key_env} at {self._shown_url} is used up (insufficient_quota)",
            hint="Add credit or change the key, then run the same command again.",
        )

    def _quoted(self, text: object) -> str:
        """Return a server's words on one short line, without the key that it may repeat."""
        line = " ".join(str(text).split())
        if self._key:
            line = line.replace(self._key, "***")
        line = re.sub(r"[\x00-\x1f\x7f-\x9f]", "", line)
        return line if len(line) <= MAX_REASON_CHARS else f"{line[:MAX_REASON_CHARS]}…"


def _without_refused(options: dict[str, Any], complaint: str) -> dict[str, Any]:
    """Rename or drop the first option that a server does not know; a limit of tokens is never dropped."""
    if not _REFUSAL.search(complaint):
        return options
    for name, value in options.items():
        if re.search(rf"\b{name}\b", complaint) and name != _NEW_LIMIT:
            others = {k: v for k, v in options.items() if k != name}
            return {**others, _NEW_LIMIT: value} if name == "max_tokens" else others
    return options


def _stop_on_spent_quota(response: httpx2.Response) -> None:
    """Keep the client from repeating a 429 that no waiting mends; this header is how a server says so."""
    if response.status_code == 429:
        response.read()
        if b"insufficient_quota" in response.content:
            response.headers["x-should-retry"] = "false"
