"""The frozen-feature cache: everything below the memory layers, and the teacher, computed once.

It holds what `LiveFeatures` would compute and answers alike. Of atoms it keeps the states that enter the first memory
layer, or, with `cache_atom_layers`, those of every memory layer, which spares a pass over the atoms in every step.
States of targets are kept without repetition: the prompts' common head once, each question's own part once, and the
replies; a row is put together when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from models.base import FrozenBase
from models.microkv import layer_inputs
from models.presets import MemorySpec
from training.config import TrainConfig
from training.features.live import LiveFeatures, Targets, Teacher
from training.features.ragged import Ragged, batches, gather, mask_of, offsets, take
from training.features.store import Layout, allocate, choose_home, claimed, is_complete, new_file, num_bytes, open_file
from training.features.texts import Texts, cache_key, keeps_layers
from training.losses import TeacherTopK

ToInputs = Callable[[Tensor], Tensor]

# What grows with tokens has the home that was chosen; the rest is small, or read whole in every step.
HOMED = ("atom_state", "target_state", "teacher_token", "teacher_log_p", "teacher_log_tail")


class FeatureCache:
    """Frozen features of a set of atoms and questions.

    Args:
        tensors: As `layout` names them.
        home: `device`, `pinned` or `disk`, where the large tensors stay; the others go to `device`. The dict is
            emptied on the way, so that nothing is held twice.
        to_inputs: `models.microkv.layer_inputs` of the base, where the tensors have the atoms' entry states alone.
    """

    def __init__(self, tensors: dict[str, Tensor], *, home: str, device: torch.device, to_inputs: ToInputs) -> None:
        t = {n: _housed(tensors.pop(n), home if n in HOMED else "device", device) for n in list(tensors)}
        self.home, self.num_bytes = home, sum(x.nbytes for x in t.values())
        self.atom_pooled_ND, self.question_pooled_QD = t["atom_pooled"], t["question_pooled"]
        self._atoms, self._to_inputs = Ragged(flat_TD=t["atom_state"], offset_N1=t["atom_offset"]), to_inputs
        self._state_TD, self._token_T = t["target_state"], t["target_token"]
        self._places = Places(t["head"], t["own_offset"], t["reply_offset"], t["question_of_reply"])
        self._refusal_Q = t["refusal"]
        self._teacher = [t[n] for n in HOMED[2:]]
        self._teacher_offset_Q1 = t["teacher_offset"]

    def atom_pooled(self, row_U: Tensor) -> Tensor:
        """Return the mean states of some atoms after the encoder's layers, `[U, D]`, float32."""
        return self.atom_pooled_ND[row_U]

    def question_pooled(self, row_B: Tensor) -> Tensor:
        """Return the mean states of some questions, `[B, D]`, float32."""
        return self.question_pooled_QD[row_B]

    def atom_inputs(self, row_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return what enters the attention of every memory layer, `[M, U, S, D]`, and the lengths `[U]`."""
        state, length_U = self._atoms.padded(row_U)
        inputs_MUSD = state.permute(2, 0, 1, 3) if state.dim() == 4 else self._to_inputs(state)
        return inputs_MUSD, length_U

    def target_rows(self, question_B: Tensor, refuse_B: Tensor) -> Tensor:
        """Return the target rows of some questions, the refusal's where `refuse_B`."""
        return torch.where(refuse_B, self._refusal_Q[question_B], question_B)

    def answer_length(self, row_B: Tensor) -> Tensor:
        """Return how many answer tokens some targets have, the one that ends them included."""
        return self._places.reply_length(row_B)

    def is_taught(self, row_B: Tensor) -> Tensor:
        """Return which targets have a teacher: all but the added refusals."""
        return row_B < len(self._refusal_Q)

    def targets(self, row_B: Tensor) -> Targets:
        """Return prompts with answers as the upper layers see them."""
        place_BL, mask_BL, answer_BL = self._places.of(row_B)
        return Targets(
            state_BLD=gather(self._state_TD, place_BL, mask_BL),
            token_BL=gather(self._token_T, place_BL, mask_BL).long(),
            mask_BL=mask_BL,
            answer_BL=answer_BL,
        )

    def teacher(self, row_B: Tensor) -> Teacher:
        """Return the teacher's targets at the answer tokens of some targets."""
        assert len(self._teacher_offset_Q1) > 1, "features without contexts have no teacher"
        taught_B = self.is_taught(row_B)
        rows = Ragged(flat_TD=self._teacher[0], offset_N1=self._teacher_offset_Q1)
        place_T = rows.places(row_B[taught_B])
        token_TK, log_p_TK, log_tail_T = (take(flat, place_T) for flat in self._teacher)
        return Teacher(
            best=TeacherTopK(token_TK=token_TK.long(), log_p_TK=log_p_TK, log_tail_T=log_tail_T),
            taught_A=taught_B.repeat_interleave(self.answer_length(row_B)),
        )


class Places:
    """Where each token of a target lies in the flat states: common head, the question's own part, the reply."""

    def __init__(self, head: Tensor, own_offset_Q1: Tensor, reply_offset_R1: Tensor, question_R: Tensor) -> None:
        self.head = int(head)
        self.own_offset_Q1, self.reply_offset_R1, self.question_R = own_offset_Q1, reply_offset_R1, question_R

    def reply_length(self, row_B: Tensor) -> Tensor:
        """Return how many answer tokens some targets have."""
        return self.reply_offset_R1[row_B + 1] - self.reply_offset_R1[row_B]

    def of(self, row_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the places `[B, L]`, the mask of real tokens, and that of the answer's."""
        question_B = self.question_R[row_B]
        own_B, reply_B = self.own_offset_Q1[question_B], self.reply_offset_R1[row_B]
        start_B = self.head + self.own_offset_Q1[question_B + 1] - own_B
        mask_BL = mask_of(start_B + self.reply_length(row_B))
        step_L = torch.arange(mask_BL.shape[1], device=row_B.device)
        in_answer = step_L >= start_B[:, None]
        place_BL = torch.where(in_answer, (reply_B - start_B)[:, None], (own_B - self.head)[:, None]) + step_L
        return torch.where(step_L < self.head, step_L, place_BL), mask_BL, mask_BL & in_answer


def build_cache(
    base: FrozenBase,
    spec: MemorySpec,
    config: TrainConfig,
    *,
    atoms: Sequence[str],
    questions: Sequence[str],
    answers: Sequence[str],
    contexts: Sequence[str] | None = None,
    home: str = "device",
    folder: Path | None = None,
    share: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> FeatureCache:
    """Run the frozen base over everything once, or find what an earlier run left.

    Args:
        answers: One target a question; unanswerable ones give the refusal.
        contexts: The document that the teacher reads, one a question; None for no teacher.
        home: Where the large tensors stay: `device`, `pinned`, `disk`, or `auto` by size against free memory.
        folder: Where feature files are found and, where the home is on disk, kept, each under the key of its contents.
        share: Keep a file whatever the home, so that of several processes one computes.
        on_progress: Called with the name of each finished part.

    Raises:
        ConfigError: An unknown home, or a folder that is missing where it is needed or cannot be written.
    """
    texts = Texts(atoms=atoms, questions=questions, answers=answers, contexts=contexts)
    key, about = cache_key(base, spec, config, texts)
    path = None if folder is None else folder / f"{key}.safetensors"
    live = cache(lambda: LiveFeatures(base, spec, config, texts))  # tokenising is not free either
    to_inputs = partial(layer_inputs, base, spec)
    if path is None or not (share or is_complete(path)):
        chosen = choose_home(home, num_bytes(layout(live())), base.device, on_disk=path is not None)
        if chosen != "disk":
            tensors = allocate(layout(live()), chosen, base.device)
            _fill(tensors, live(), on_progress)
            return FeatureCache(tensors, home=chosen, device=base.device, to_inputs=to_inputs)
    with claimed(path):
        if not is_complete(path):
            with new_file(path, layout(live()), about) as tensors:
                _fill(tensors, live(), on_progress)
    chosen = choose_home(home, path.stat().st_size, base.device, on_disk=True)
    return FeatureCache(open_file(path), home=chosen, device=base.device, to_inputs=to_inputs)


def layout(live: LiveFeatures) -> Layout:
    """Return the shape and type of every tensor of a cache, known before anything is computed."""
    tokens, width, dtype = live.tokens, live.base.hidden_size, live.base.dtype
    num_atoms, num_questions, num_replies = (len(r.length_N) for r in (tokens.atom, tokens.prompt, tokens.reply))
    num_states = len(tokens.atom.flat_TD) if live.spec.kv.source == "tokens" else 0
    state = (live.spec.num_memory_layers, width) if keeps_layers(live.spec, live.config) else (width,)
    num_targets = tokens.head + int((tokens.prompt.length_N - tokens.head).sum()) + len(tokens.reply.flat_TD)
    num_taught = 0 if tokens.teacher is None else int(tokens.reply.length_N[:num_questions].sum())
    return {
        "atom_pooled": ((num_atoms, width), torch.float32),
        "question_pooled": ((num_questions, width), torch.float32),
        "atom_state": ((num_states, *state), dtype),
        "atom_offset": ((num_atoms + 1,), torch.int64),
        "target_state": ((num_targets, width), dtype),
        "target_token": ((num_targets,), torch.int32),
        "head": ((1,), torch.int64),
        "own_offset": ((num_questions + 1,), torch.int64),
        "reply_offset": ((num_replies + 1,), torch.int64),
        "question_of_reply": ((num_replies,), torch.int64),
        "refusal": ((num_questions,), torch.int64),
        "teacher_token": ((num_taught, live.teacher_top_k), torch.int32),
        "teacher_log_p": ((num_taught, live.teacher_top_k), torch.float32),
        "teacher_log_tail": ((num_taught,), torch.float32),
        "teacher_offset": ((num_questions + 1 if tokens.teacher else 1,), torch.int64),
    }


def _fill(tensors: dict[str, Tensor], live: LiveFeatures, on_progress: Callable[[str], None]) -> None:
    """Compute all features and write each batch where it belongs."""
    _fill_index(tensors, live)
    for part, fill in (("atoms", _fill_atoms), ("questions", _fill_questions), ("targets", _fill_targets)):
        fill(tensors, live)
        on_progress(part)
    if live.tokens.teacher is not None:
        _fill_teacher(tensors, live)
        on_progress("teacher")
    if live.base.device.type == "cuda":
        torch.cuda.empty_cache()


def _fill_index(tensors: dict[str, Tensor], live: LiveFeatures) -> None:
    tokens = live.tokens
    own_offset_Q1 = tokens.head + offsets(tokens.prompt.length_N - tokens.head)
    tensors["head"].fill_(tokens.head)
    tensors["atom_offset"].copy_(tokens.atom.offset_N1)
    tensors["own_offset"].copy_(own_offset_Q1)
    tensors["reply_offset"].copy_(own_offset_Q1[-1] + tokens.reply.offset_N1)
    tensors["question_of_reply"].copy_(tokens.question_R)
    tensors["refusal"].copy_(tokens.refusal_Q)
    taught = tokens.reply.offset_N1[: len(tensors["teacher_offset"])]
    tensors["teacher_offset"].copy_(taught)


def _fill_atoms(tensors: dict[str, Tensor], live: LiveFeatures) -> None:
    with_entry = live.spec.kv.source == "tokens"
    for rows, pooled_UD, entry_USD, mask_US in _encoded(live, live.tokens.atom, with_entry=with_entry):
        _put(tensors["atom_pooled"], rows, pooled_UD)
        if with_entry:
            state = entry_USD
            if keeps_layers(live.spec, live.config):
                state = layer_inputs(live.base, live.spec, entry_USD).permute(1, 2, 0, 3)
            _put(tensors["atom_state"], live.tokens.atom.places(rows), state[mask_US])


def _fill_questions(tensors: dict[str, Tensor], live: LiveFeatures) -> None:
    for rows, pooled_BD, _, _ in _encoded(live, live.tokens.question, with_entry=False):
        _put(tensors["question_pooled"], rows, pooled_BD)


def _encoded(live: LiveFeatures, ids: Ragged, *, with_entry: bool) -> Iterator[tuple[Tensor, ...]]:
    for rows in batches(ids.length_N, live.config.cache_batch_tokens):
        yield rows, *live.encode(ids, rows, with_entry=with_entry)


def _fill_targets(tensors: dict[str, Tensor], live: LiveFeatures) -> None:
    tokens = live.tokens
    index = ("own_offset", "reply_offset", "question_of_reply")
    places = Places(torch.tensor(tokens.head), *(tensors[name].cpu() for name in index))
    for rows in batches(tokens.target_length_R, live.config.cache_batch_tokens):
        targets = live.targets(rows)
        place_BL, mask_BL, answer_BL = places.of(rows)
        # The head is written by the first row, a prompt's own part by its first reply: each once, so runs repeat.
        in_head = place_BL < tokens.head
        first_B1 = (rows < len(tokens.refusal_Q))[:, None]
        wanted_BL = mask_BL & torch.where(in_head, rows[:, None] == 0, answer_BL | first_B1)
        wanted = wanted_BL.to(live.base.device)
        _put(tensors["target_state"], place_BL[wanted_BL], targets.state_BLD[wanted])
        _put(tensors["target_token"], place_BL[wanted_BL], targets.token_BL[wanted])


def _fill_teacher(tensors: dict[str, Tensor], live: LiveFeatures) -> None:
    tokens, reply = live.tokens, live.tokens.reply
    num_questions = len(tokens.refusal_Q)
    for rows in batches(tokens.teacher.length_N + reply.length_N[:num_questions], live.config.cache_batch_tokens):
        best = live.teacher(rows).best
        for name, values in zip(HOMED[2:], (best.token_TK, best.log_p_TK, best.log_tail_T), strict=True):
            _put(tensors[name], reply.places(rows), values)


def _put(flat_TD: Tensor, place_X: Tensor, values_XD: Tensor) -> None:
    flat_TD[place_X.to(flat_TD.device)] = values_XD.to(flat_TD.device, flat_TD.dtype)


def _housed(tensor: Tensor, home: str, device: torch.device) -> Tensor:
    if home == "device":
        return tensor.to(device)
    return tensor.pin_memory() if home == "pinned" and torch.cuda.is_available() else tensor
