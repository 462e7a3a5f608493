"""Decomposition by a language model behind any OpenAI-compatible endpoint.

Holds the job: windows, their cost, who asks when, and what becomes of a window that fails. Prompts,
requests, parsing, numbering and the cache are modules of their own. Nothing here decides what an atom is.
Paper: section "Data Atomization and Processing", appendix "Failure Handling and Quality Logging".
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace

from models.atomizer import Atomization, JobEstimate
from models.atomizer.assemble import SPAN_NOT_FOUND, LocatedReply, locate, merge
from models.atomizer.cache import Reply, ReplyCache
from models.atomizer.chat import OFFICIAL_URL, ChatClient, ReplyError
from models.atomizer.prompts import DECOMPOSITION, Message, Prompt, ask_again
from models.atomizer.spans import windows
from models.atomizer.xml import Draft, parse_atoms
from models.atoms import AnnotationMeta, Atom
from models.config import AtomizerConfig
from models.documents import Document
from models.errors import AtomizerError

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
# No tokenizer packs ordinary text this tightly: a server that counts fewer tokens has cut the prompt.
MAX_BYTES_PER_TOKEN = 12
# An atom repeats its sentence in content and span, and its tags weigh as much again.
OUTPUT_PER_INPUT_TOKEN = 5
MAX_REASKS = 2
MAX_CONTINUATIONS = 3
# So many failures without one success mean that the model is at fault, not the windows.
MAX_FAILURES_AT_START = 8

Window = tuple[int, int]
OnProgress = Callable[[int, int | None], None]


class DecompositionError(AtomizerError):
    """This one document cannot be decomposed; others may well be."""


class OpenAIAtomizer:
    """Asks a chat model for the atoms of each window of a document.

    Args:
        prompt: What to ask; `DECOMPOSITION.adapted(...)` fits it to one corpus.
        client: One that many documents share and the caller closes; None opens one for each document.
        keeps_invalid_spans: Keep atoms whose span is not in the text, flagged `span_valid=False`, for a later
            filter (paper: appendix "Source-span validation"); an atom that an answer may cite needs a true span.
    """

    def __init__(
        self,
        config: AtomizerConfig,
        *,
        prompt: Prompt = DECOMPOSITION,
        client: ChatClient | None = None,
        keeps_invalid_spans: bool = False,
    ) -> None:
        self._config = config
        self._prompt = prompt
        self._client = client
        self._keeps_invalid_spans = keeps_invalid_spans
        self._cache = ReplyCache(config.cache_dir)
        shaping = (prompt.fingerprint, config.base_url, config.window_tokens, config.max_output_tokens, config.language)
        self.fingerprint = f"openai/{config.model}/{ReplyCache.key(*shaping)[:12]}"

    def estimate(self, document: Document) -> JobEstimate:
        """Return what is left to ask about a document; windows in the cache cost nothing."""
        job = _Job(document, config=self._config, prompt=self._prompt, cache=self._cache)
        missing = job.missing()
        num_input = sum(_num_tokens(m["content"]) for w in missing for m in job.messages(w))
        num_output = sum(OUTPUT_PER_INPUT_TOKEN * _num_tokens(document.text[slice(*w)]) for w in missing)
        input_usd, output_usd = self._config.price_per_million_input_usd, self._config.price_per_million_output_usd
        is_priced = input_usd is not None and output_usd is not None
        return JobEstimate(
            num_calls=len(missing),
            num_input_tokens=num_input,
            num_output_tokens=num_output,
            cost_usd=(num_input * input_usd + num_output * output_usd) / 1e6 if is_priced else None,
        )

    def atomize(self, document: Document, *, on_progress: OnProgress | None = None) -> Atomization:
        """Decompose a document; windows that fail are named in the result and the others are kept.

        Args:
            on_progress: Called with the windows done so far and their total.

        Raises:
            DecompositionError: The document is blank or needs more requests than `max_calls`, or all its
                windows failed.
            AtomizerError: The server refuses every request.
        """
        job = _Job(document, config=self._config, prompt=self._prompt, cache=self._cache)
        if not job.windows:
            raise DecompositionError(f"{document.source} holds no text")
        num_calls = len(job.missing())
        if num_calls > self._config.max_calls:
            raise DecompositionError(
                f"atomizer: max_calls must be at least {num_calls} for {document.source}, got {self._config.max_calls}",
                hint="Raise max_calls, or take a larger window_tokens.",
            )
        on_progress = on_progress or (lambda done, total: None)
        if self._client is not None:
            outcomes = job.run(self._client, on_progress)
        else:
            with closing(ChatClient(self._config)) as client:
                outcomes = job.run(client, on_progress)
            logger.info(
                "%s: %d requests, %d input tokens, %d output tokens",
                document.source,
                client.num_calls,
                client.num_input_tokens,
                client.num_output_tokens,
            )
        result = _atomization(document, job.windows, outcomes, annotator=f"openai/{self._config.model}")
        return _with_unlocated(result, outcomes) if self._keeps_invalid_spans else result


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """What a reply says: atoms with their place in the text, and drafts whose span is not there."""

    located: LocatedReply
    unlocated: tuple[Draft, ...]


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What became of a stretch of text.

    Args:
        failure: Why a part or all of it is missing; None where all of it was decomposed.
        is_cut: Whether the last reply reached the limit of output tokens.
    """

    replies: tuple[_Reading, ...] = ()
    failure: str | None = None
    is_cut: bool = False

    @property
    def num_atoms(self) -> int:
        return sum(len(r.located.atoms) for r in self.replies)


class _Job:
    """The windows of one document on their way through a model."""

    def __init__(self, document: Document, *, config: AtomizerConfig, prompt: Prompt, cache: ReplyCache) -> None:
        self._document = document
        self._config = config
        self._prompt = prompt
        self._cache = cache
        self._lock = threading.Lock()
        self._num_calls_left = config.max_calls
        text = document.text
        # Scripts differ in bytes a character, and tokens follow the bytes.
        num_chars = config.window_tokens * BYTES_PER_TOKEN * len(text) // max(1, len(_encoded(text)))
        self.windows: list[Window] = windows(text, max_chars=max(1, num_chars), language=config.language)

    def messages(self, window: Window) -> list[Message]:
        return self._prompt.messages(title=self._document.title, passage=self._document.text[slice(*window)])

    def missing(self) -> list[Window]:
        """Return the windows that the cache cannot answer."""
        return [w for w in self.windows if self._cached(w) is None]

    def run(self, client: ChatClient, on_progress: OnProgress) -> list[_Outcome]:
        """Decompose all windows, a bounded number at a time, and return their outcomes in order."""
        pool = ThreadPoolExecutor(max_workers=self._config.concurrency, thread_name_prefix="atomizer")
        done: dict[Future[_Outcome], _Outcome] = {}
        try:
            futures = [pool.submit(self._decompose, client, w) for w in self.windows]
            for future in as_completed(futures):
                done[future] = future.result()
                on_progress(len(done), len(futures))
                self._check_hope(list(done.values()))
        except AtomizerError as error:
            kept = "" if self._config.cache_dir is None else ", kept in the cache"
            progress = f"{len(done)} of {len(self.windows)} windows done{kept}"
            raise type(error)(f"{error.message} ({progress})", hint=error.hint) from error
        finally:
            # After a fault or Ctrl-C the requests under way are not waited for.
            pool.shutdown(wait=False, cancel_futures=True)
        return [done[f] for f in futures]

    def _check_hope(self, outcomes: Sequence[_Outcome]) -> None:
        if len(outcomes) >= MAX_FAILURES_AT_START and not any(o.num_atoms for o in outcomes):
            raise DecompositionError(
                f"the first {len(outcomes)} windows all failed: {_commonest_failure(outcomes)}",
                hint="Check model and base_url, or use the backend `rules`.",
            )

    def _decompose(self, client: ChatClient, window: Window) -> _Outcome:
        """Ask for the atoms of a window, and where a reply was cut, for those of the text it did not reach."""
        start, end = window
        replies: tuple[_Reading, ...] = ()
        for _ in range(1 + MAX_CONTINUATIONS):
            outcome = self._ask(client, (start, end))
            replies += outcome.replies
            if outcome.failure:
                return _Outcome(replies=replies, failure=_with_place(outcome.failure, start, window))
            if not outcome.is_cut:
                return _Outcome(replies=replies)
            start = max(a.char_end for a in outcome.replies[0].located.atoms)
            if not any(c.isalnum() for c in self._document.text[start:end]):
                return _Outcome(replies=replies)
        failure = "the reply was cut again and again; raise max_output_tokens or lower window_tokens"
        return _Outcome(replies=replies, failure=_with_place(failure, start, window))

    def _ask(self, client: ChatClient, window: Window) -> _Outcome:
        """Return the outcome of one stretch of text, asking again where a reply is of no use."""
        cached = self._cached(window)
        if cached is not None:
            return cached
        messages = self.messages(window)
        useless = _Outcome()
        reason = ""
        for attempt in range(1 + MAX_REASKS):
            try:
                self._take_call()
                reply = client.complete(ask_again(messages, reason) if attempt else messages)
            except ReplyError as error:
                reason = str(error)
                if not error.is_worth_repeating:
                    break
                continue
            outcome = self._read(reply, window)
            if outcome.num_atoms:
                self._cache.put(self._key(messages), reply)
                return outcome
            useless = outcome
            reason = _why_useless(reply, outcome.replies[0].located)
        return _Outcome(replies=useless.replies, failure=reason)

    def _take_call(self) -> None:
        with self._lock:
            if self._num_calls_left == 0:
                reason = f"the budget of {self._config.max_calls} requests is used up"
                raise ReplyError(reason, is_worth_repeating=False)
            self._num_calls_left -= 1

    def _cached(self, window: Window) -> _Outcome | None:
        reply = self._cache.get(self._key(self.messages(window)))
        outcome = self._read(reply, window) if reply else None
        return outcome if outcome and outcome.num_atoms else None

    def _key(self, messages: list[Message]) -> str:
        config = self._config
        return ReplyCache.key(config.base_url or OFFICIAL_URL, config.model, config.max_output_tokens, messages)

    def _read(self, reply: Reply, window: Window) -> _Outcome:
        parsed = parse_atoms(reply.text, is_echo=self._prompt.is_echo)
        num_bytes = sum(len(_encoded(m["content"])) for m in self.messages(window))
        if 0 < reply.num_input_tokens * MAX_BYTES_PER_TOKEN < num_bytes:
            parsed.repaired["prompt that the server seems to have cut (its context is too short)"] += 1
        located = locate(parsed, self._document.text, char_start=window[0], char_end=window[1])
        found = {id(atom.draft) for atom in located.atoms}
        unlocated = tuple(draft for draft in parsed.drafts if id(draft) not in found)
        reading = _Reading(located=located, unlocated=unlocated)
        return _Outcome(replies=(reading,), is_cut=reply.finish_reason == "length")


def _atomization(
    document: Document, spans: Sequence[Window], outcomes: Sequence[_Outcome], *, annotator: str
) -> Atomization:
    failed = [(i, o.failure) for i, o in enumerate(outcomes) if o.failure]
    atoms, dropped, repaired = merge([r.located for o in outcomes for r in o.replies], document.text)
    if not atoms:
        raise DecompositionError(
            f"no window of {document.source} gave an atom ({len(spans)} tried): {_commonest_failure(outcomes)}",
            hint="Run the command again, or use another model or the backend `rules`.",
        )
    warnings = [
        f"window {i + 1} of {len(spans)} (page {document.page_at(spans[i][0]).label}): {failure}"
        for i, failure in failed
    ]
    warnings += [f"dropped {n} atoms: {reason}" for reason, n in sorted(dropped.items())]
    warnings += [f"{n} times: {reason}" for reason, n in sorted(repaired.items())]
    meta = AnnotationMeta(
        annotator=annotator,
        decomposition_status="partial" if failed else "ok",
        num_atoms=len(atoms),
        num_invalid_spans=dropped[SPAN_NOT_FOUND],
        num_windows=len(spans),
        num_failed_windows=len(failed),
        num_dropped=dropped.total(),
        warnings=tuple(warnings),
    )
    return Atomization(atoms=atoms, meta=meta)


def _with_unlocated(result: Atomization, outcomes: Sequence[_Outcome]) -> Atomization:
    """Add the atoms whose spans were not found, after all others, flagged and without relations."""
    drafts = [draft for o in outcomes for reading in o.replies for draft in reading.unlocated]
    flagged = tuple(
        Atom(
            atom_id=f"atom_{len(result.atoms) + number}",
            semantic_type=draft.semantic_type,
            content=draft.content,
            source_span=draft.source_spans[0],
            retrieval_text=draft.retrieval_text,
            is_answer_bearing=draft.is_answer_bearing,
            abstraction_level=draft.abstraction_level,
            confidence=draft.confidence,
            span_valid=False,
        )
        for number, draft in enumerate(drafts)
    )
    meta = replace(
        result.meta,
        num_atoms=len(result.atoms) + len(flagged),
        num_dropped=result.meta.num_dropped - len(flagged),
        warnings=tuple(w.replace("dropped", "flagged") if SPAN_NOT_FOUND in w else w for w in result.meta.warnings),
    )
    return Atomization(atoms=result.atoms + flagged, meta=meta)


def _with_place(failure: str, start: int, window: Window) -> str:
    """Name the part of the window that is missing, where it is not the whole."""
    return failure if start == window[0] else f"its last {window[1] - start} characters are missing: {failure}"


def _why_useless(reply: Reply, located: LocatedReply) -> str:
    if reply.finish_reason == "length":
        return "the reply was cut before its first complete atom; raise max_output_tokens"
    if located.dropped:
        reasons = ", ".join(f"{n} with {reason}" for reason, n in sorted(located.dropped.items()))
        return f"no usable atom ({reasons})"
    return "no atom in the reply"


def _commonest_failure(outcomes: Sequence[_Outcome]) -> str:
    return Counter(o.failure for o in outcomes if o.failure).most_common(1)[0][0]


def _num_tokens(text: str) -> int:
    return -(-len(_encoded(text)) // BYTES_PER_TOKEN)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
