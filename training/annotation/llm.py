"""Annotation by a language model behind any OpenAI-compatible endpoint.

Holds the three stages of a context, one after another, and what becomes of a stage that fails: without atoms
there is no sample, without probes only a warning, without labels a record of atoms alone. Client, cache and
repeated requests are those of `models.atomizer`.
Paper: appendix "Atomization Pipeline".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from models.atomizer import JobEstimate
from models.atomizer.cache import ReplyCache
from models.atomizer.chat import OFFICIAL_URL, ChatClient, ReplyError
from models.atomizer.llm import MAX_REASKS
from models.atomizer.prompts import Message, ask_again
from models.atomizer.spans import num_tokens
from models.atoms import AnnotationRecord, Atom
from models.config import AtomizerConfig
from training.annotation.adapters import ADAPTERS
from training.annotation.crosscheck import checked_record, labelled_questions, probe_item
from training.annotation.decomposition import build_decomposer
from training.annotation.prompts import PROBES, QUESTIONS, listed_atoms, listed_questions
from training.annotation.replies import parse_labels, parse_probes
from training.datasets.context import MODES, Context, QAItem

logger = logging.getLogger(__name__)

Parsed = TypeVar("Parsed", bound=Any)

MODE = "batch2step"
# For the preview: what a probe and a label weigh with their tags, and what all atoms weigh against their text.
OUTPUT_TOKENS_PER_PROBE = 25
OUTPUT_TOKENS_PER_QUESTION = 70
ATOM_TOKENS_PER_TOKEN = 2


class LLMAnnotator:
    """Asks a chat model for probes and roles, and for atoms too where `config.backend` is `openai`.

    Args:
        num_probes: Irrelevant probes a context; 0 asks for none.

    Raises:
        AtomizerError: The endpoint is no URL, or it is the official one and there is no key for it.
    """

    def __init__(self, config: AtomizerConfig, *, num_probes: int) -> None:
        self._config = config
        self._num_probes = num_probes
        self._cache = ReplyCache(config.cache_dir)
        self._client = ChatClient(config)
        self._decomposer = build_decomposer(config, client=self._client)
        self._prompts = {mode: QUESTIONS.adapted(ADAPTERS[mode].distractors) for mode in MODES}
        prompts = (PROBES.fingerprint, *(prompt.fingerprint for prompt in self._prompts.values()))
        shaping = (self._decomposer.fingerprint, config.base_url, config.max_output_tokens, num_probes, *prompts)
        self.fingerprint = f"llm/{config.model}/{ReplyCache.key(*shaping)[:12]}"
        self.concurrency = config.concurrency

    def estimate(self, contexts: Sequence[Context]) -> JobEstimate:
        """Return about what is left to ask.

        Decompositions and probes in the cache cost nothing. The question request is always counted, since what it
        will hold is only known once the others are answered.
        """
        num_calls = num_input = num_output = 0
        for context in contexts:
            first = self._decomposer.estimate(context)
            if first is not None:
                num_calls, num_input = num_calls + first.num_calls, num_input + first.num_input_tokens
                num_output += first.num_output_tokens
            probing = self._probe_messages(context)
            if self._num_probes and self._cache.get(self._key(probing)) is None:
                num_calls, num_input = num_calls + 1, num_input + _weight(probing)
                num_output += OUTPUT_TOKENS_PER_PROBE * self._num_probes
            num_questions = len(context.questions) + self._num_probes
            if num_questions:
                asking = self._question_messages(context, (), context.questions)
                num_calls += 1
                num_input += _weight(asking) + ATOM_TOKENS_PER_TOKEN * num_tokens(context.text)
                num_output += OUTPUT_TOKENS_PER_QUESTION * num_questions
        return JobEstimate(
            num_calls=num_calls,
            num_input_tokens=num_input,
            num_output_tokens=num_output,
            cost_usd=self._cost_usd(num_input, num_output),
        )

    def annotate(self, context: Context) -> AnnotationRecord:
        """Annotate a context in three stages.

        Raises:
            DiscardedSampleError: A part of it, or all of it, gave no atoms.
            AtomizerError: No request to this server can succeed before the user mends something.
        """
        atomization = self._decomposer.decompose(context)
        probes, warnings = self._probes(context)
        items = (*context.questions, *probes)
        bank = tuple(atom for atom in atomization.atoms if atom.span_valid)
        questions, status = [], "none"
        if items:
            try:
                labels = self._ask(self._question_messages(context, bank, items), parse_labels)
            except ReplyError as error:
                status = "failed"
                warnings.append(f"no question was annotated: {error}")
            else:
                questions, left_out = labelled_questions(context, probes, labels)
                status = "partial" if left_out else "ok"
                warnings += left_out
        meta = replace(atomization.meta, annotator=f"openai/{self._config.model}", mode=MODE, question_status=status)
        return checked_record(context, replace(atomization, meta=meta), questions, warnings)

    def close(self) -> None:
        """Send nothing more."""
        self._client.close()

    def _probes(self, context: Context) -> tuple[list[QAItem], list[str]]:
        """Return probes, and why there are none; probes are auxiliary, so that their failure is only noted."""
        if not self._num_probes:
            return [], []
        try:
            texts = self._ask(self._probe_messages(context), parse_probes)
        except ReplyError as error:
            logger.info("%s: no probes: %s", context.context_id, error)
            return [], [f"no irrelevant probes: {error}"]
        known = {item.question.casefold() for item in context.questions}
        fresh = [text for text in texts if text.casefold() not in known and not PROBES.is_echo(text)]
        return [probe_item(context, number, text) for number, text in enumerate(fresh[: self._num_probes])], []

    def _probe_messages(self, context: Context) -> list[Message]:
        return PROBES.messages(
            title=context.title,
            passage=context.text,
            questions="\n".join(item.question for item in context.questions),
            num_probes=str(self._num_probes),
        )

    def _question_messages(self, context: Context, bank: Sequence[Atom], items: Sequence[QAItem]) -> list[Message]:
        return self._prompts[context.mode].messages(
            title=context.title, atoms=listed_atoms(bank), questions=listed_questions(items)
        )

    def _ask(self, messages: list[Message], parse: Callable[[str], Parsed]) -> Parsed:
        """Return what could be read of a reply, asking again where nothing can be; only useful replies are kept.

        Raises:
            ReplyError: No reply was of use.
        """
        key = self._key(messages)
        cached = self._cache.get(key)
        if cached is not None and (parsed := parse(cached.text)):
            return parsed
        reason = ""
        for _ in range(1 + MAX_REASKS):
            try:
                reply = self._client.complete(ask_again(messages, reason) if reason else messages)
            except ReplyError as error:
                if not error.is_worth_repeating:
                    raise
                reason = str(error)
                continue
            if parsed := parse(reply.text):
                self._cache.put(key, reply)
                return parsed
            cut = reply.finish_reason == "length"
            reason = "the reply was cut; raise max_output_tokens" if cut else "nothing usable in the reply"
        raise ReplyError(reason, is_worth_repeating=False)

    def _key(self, messages: list[Message]) -> str:
        config = self._config
        return ReplyCache.key(config.base_url or OFFICIAL_URL, config.model, config.max_output_tokens, messages)

    def _cost_usd(self, num_input: int, num_output: int) -> float | None:
        input_usd, output_usd = self._config.price_per_million_input_usd, self._config.price_per_million_output_usd
        if input_usd is None or output_usd is None:
            return None
        return (num_input * input_usd + num_output * output_usd) / 1e6


def _weight(messages: Sequence[Message]) -> int:
    return sum(num_tokens(message["content"]) for message in messages)
