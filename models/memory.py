"""`DocumentMemory`: ingest documents, ask questions, forget. The public Python API, and all that the CLI uses.

    memory = DocumentMemory(MemoryConfig(bank=Path("bank")))
    memory.ingest(["paper.pdf"])
    print(memory.ask("Who built the tower?").text)

Importing this module loads neither torch nor lancedb; each is loaded when it is first needed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from models.atomizer import JobEstimate, build_atomizer
from models.bank import Bank, BankIdentity
from models.bank_check import RECOMPILE, BankFault, bank_faults
from models.bank_files import check_identity, read_identity
from models.checkpoint import CheckpointMeta, find_checkpoint, read_meta
from models.citations import cite
from models.config import MemoryConfig
from models.errors import BankError, CheckpointError, ConfigError
from models.ingestion import Ingestion, OnProgress, backup_of, recompile, swap_folders
from models.presets import load_preset
from models.readers import discover, read
from models.results import Answer, DocumentInfo, ExportReport, IngestReport, MemoryStatus, RoutedAtom, StoredAtom
from models.startup import collector_paused

if TYPE_CHECKING:
    from models.engine import Engine, RoutedRows

REFUSAL = "unanswerable"
# Text of a document that goes into the prompt with `--context document`, around the heaviest atom.
DOCUMENT_WINDOW_CHARS = 4000
# Atoms with less weight do not go into the prompt with `--context atoms`.
CONTEXT_WEIGHT = 1e-3


class DocumentMemory:
    """Documents as parametric memory on disk, with the frozen model that reads it.

    Args:
        config: Where the bank is, which preset and checkpoint, and how to answer.

    Raises:
        ConfigError: An unknown preset or recipe.
    """

    def __init__(self, config: MemoryConfig) -> None:
        self.config = config
        self.preset = load_preset(config.preset)
        self._engine: Engine | None = None
        self._bank: Bank | None = None

    @cached_property
    def _checkpoint(self) -> Path:
        return find_checkpoint(self.preset, self.config.checkpoint)

    @cached_property
    def _meta(self) -> CheckpointMeta:
        meta = read_meta(self._checkpoint)
        if meta.preset != self.preset.name:
            raise ConfigError(
                f"checkpoint {self._checkpoint} is for preset {meta.preset}, not {self.preset.name}",
                hint=f"Use --model {meta.preset}",
            )
        return meta

    def ingest(
        self,
        sources: Sequence[str],
        *,
        password: str | None = None,
        stdin: bytes | None = None,
        on_progress: OnProgress | None = None,
        rebuild: bool = False,
    ) -> IngestReport:
        """Compile documents into the bank; unchanged ones are skipped, changed ones replaced.

        Args:
            sources: Files, folders, globs, `-` for standard input.
            password: Opens encrypted PDFs.
            rebuild: Decompose and compile also what is unchanged.

        Returns:
            What became of each source. A document that cannot be read does not stop the others.

        Raises:
            BankError, CheckpointError, BaseModelError: Bank, memory or base cannot be used at all.
        """
        bank = self._open_bank(create=True)
        ingestion = Ingestion(
            bank,
            build_atomizer(self.config.atomizer),
            self._load,
            again=rebuild,
            on_progress=on_progress or (lambda _: None),
        )
        return ingestion.run(discover(sources), password=password, stdin=stdin)

    def estimate(
        self, sources: Sequence[str], *, password: str | None = None, stdin: bytes | None = None
    ) -> JobEstimate | None:
        """Return what the atomizer would ask of its endpoint for these sources, None where that costs nothing."""
        atomizer = build_atomizer(self.config.atomizer)
        if self.config.atomizer.backend == "rules":
            return None
        known = {d.content_hash for d in self.documents() if d.status == "ok"}
        found = []
        for source in discover(sources):
            try:
                document = read(source, password=password, stdin=stdin)
            except ValueError:
                continue  # `ingest` reports it
            if document.content_hash not in known and (estimate := atomizer.estimate(document)) is not None:
                found.append(estimate)
        costs = [e.cost_usd for e in found]
        return JobEstimate(
            num_calls=sum(e.num_calls for e in found),
            num_input_tokens=sum(e.num_input_tokens for e in found),
            num_output_tokens=sum(e.num_output_tokens for e in found),
            cost_usd=None if None in costs else sum(costs),
        )

    def ask(
        self,
        question: str,
        *,
        on_token: Callable[[str], None] | None = None,
        on_routed: Callable[[tuple[RoutedAtom, ...]], None] | None = None,
    ) -> Answer:
        """Answer a question from the memory, or refuse.

        Args:
            on_token: Called with each piece of the answer as it comes.
            on_routed: Called once with all candidates, the selected ones first.

        Raises:
            ConfigError: An empty question.
            BankError: There is no bank, or nothing in it.
        """
        begin = time.perf_counter()
        if not question.strip():
            raise ConfigError("the question is empty", hint='Ask one: d2a ask "Who wrote it?"')
        bank, engine = self._open_both()
        from models.routing import route_question

        loaded = time.perf_counter()
        stored, routed, selected = route_question(bank, engine, question, top_k=self.config.top_k)
        if on_routed:
            on_routed(selected)
        routed_at = time.perf_counter()
        chosen = [stored[i] for i in routed.rows]
        adapter = engine.compose(routed, bank.load_shard_rows([a.uid for a in chosen]))
        started = engine.start(question, adapter, context=self._context(bank, chosen, routed))
        answerability = engine.answerability(routed, started, num_atoms=bank.num_atoms)
        composed_at = time.perf_counter()
        threshold = engine.gate.threshold if self.config.threshold is None else self.config.threshold
        refused = answerability < threshold
        if refused and self.config.on_irrelevant == "base":
            started = engine.start(question, None)
        text, num_tokens, first_s = REFUSAL, 0, 0.0
        if not refused or self.config.on_irrelevant == "base":
            text, num_tokens, first_s = engine.finish(
                started, max_new_tokens=self.config.max_new_tokens, on_token=on_token
            )
        done = time.perf_counter()
        said_no = text.strip(" .").casefold() in (REFUSAL, "")
        citations, supported = (
            ((), False) if refused or said_no else self._cite(bank, text, selected[: len(chosen)], chosen)
        )
        return Answer(
            question=question,
            status="unanswerable" if said_no else "answered",
            text=REFUSAL if said_no else text,
            answerability=answerability,
            threshold=threshold,
            refused_by="gate" if refused else "model" if said_no else None,
            supported=supported,
            citations=citations,
            atoms=selected,
            context=self.config.context,
            recipe=engine.spec.recipe,
            reranker=self._reranker_note(engine),
            timings={
                "load_ms": 1e3 * (loaded - begin),
                "route_ms": 1e3 * (routed_at - loaded),
                "compose_ms": 1e3 * (composed_at - routed_at),
                "first_token_ms": 1e3 * (composed_at - begin + first_s),
                "generate_ms": 1e3 * (done - composed_at),
                "total_ms": 1e3 * (time.perf_counter() - begin),
            },
            num_tokens=num_tokens,
        )

    def documents(self) -> list[DocumentInfo]:
        """Return every document of the bank, and the sources whose ingest failed or was cut off."""
        bank = self._listing(required=False)
        return bank.documents() if bank else []

    def document(self, ref: str) -> DocumentInfo:
        """Return the document that an id prefix, path, file name or title stands for."""
        return self._listing().resolve(self._as_source(ref))

    def atoms(self, ref: str) -> list[StoredAtom]:
        """Return a document's atoms in their order."""
        bank = self._listing()
        return bank.atoms(bank.resolve(self._as_source(ref)).document_id)

    def forget(self, ref: str) -> DocumentInfo:
        """Remove a document with everything that was made of it, and return what it was."""
        bank = self._listing()
        return bank.forget(bank.resolve(self._as_source(ref)).document_id)

    def export(self, folder: Path, *, question: str | None = None, atom_uid: str | None = None) -> ExportReport:
        """Write a micro-LoRA as a folder that PEFT loads: a question's composed one, or one atom's own.

        Micro-KV has no PEFT form and is left out.

        Raises:
            ConfigError: Neither or both of question and atom, or a folder that is not empty.
            BankError: There is no bank, nothing in it, or no such atom.
        """
        import torch

        from models.export import single_atom, write_peft
        from models.routing import route_question

        if (question is None) == (atom_uid is None):
            raise ConfigError("export: give either a question or an atom", hint="Pass --question TEXT or --atom UID")
        bank, engine = self._open_both()
        if atom_uid is not None:
            uids, routed = [atom_uid], single_atom()
        else:
            stored, routed, _ = route_question(bank, engine, question, top_k=self.config.top_k)
            uids = [stored[i].uid for i in routed.rows]
        # In full, for who loads it may compute above the precision of this base.
        adapter = engine.compose(routed, bank.load_shard_rows(uids), with_kv=False, dtype=torch.float32)
        rank = write_peft(folder, adapter, engine.base, engine.spec, base_name=self.preset.base)
        shared = engine.spec.lora == "static"
        return ExportReport(path=str(folder), rank=rank, atom_uids=tuple(uids), question=question, shared=shared)

    def rebuild(self, *, on_progress: OnProgress | None = None) -> IngestReport:
        """Compile every stored atom anew under the present base and checkpoint, without the atomizer.

        The new bank takes the old one's place when it is complete.
        """
        old = self._listing()
        path = self.config.bank.absolute()
        scratch = path.with_name(f"{path.name}.rebuilding")
        identity = self._identity(old.identity if self._meta.spec.lora == "atom" else None)
        with old.locked():  # what another process stored meanwhile would be lost in the swap
            shutil.rmtree(scratch, ignore_errors=True)
            new = Bank.open(scratch, identity, create=True)
            report = recompile(old, new, self._load(), on_progress or (lambda _: None))
            self._bank = None
            swap_folders(scratch, path)
        return report

    def status(self) -> MemoryStatus:
        """Return what the bank holds and what it was made with; loads no model."""
        bank = self._listing(required=False)
        documents = bank.documents() if bank else []
        mismatch = self._mismatch(bank) if bank else None
        counts: dict[str, int] = {}
        for document in documents:
            counts[document.status] = counts.get(document.status, 0) + 1
        return MemoryStatus(
            bank=str(self.config.bank),
            exists=bank is not None,
            preset=self.preset.name,
            recipe=self._meta.spec.recipe,
            base_fingerprint=self._meta.base_fingerprint,
            checkpoint_fingerprint=self._meta.fingerprint,
            checkpoint=str(self._checkpoint),
            bank_base_fingerprint=bank.identity.base_fingerprint if bank else None,
            bank_checkpoint_fingerprint=bank.identity.checkpoint_fingerprint if bank else None,
            store=(bank.identity if bank else self._identity(None)).store,
            num_documents=counts.get("ok", 0) + counts.get("partial", 0),
            num_atoms=bank.num_atoms if bank else 0,
            bank_bytes=bank.bank_bytes if bank else 0,
            documents_by_status=counts,
            mismatch=str(mismatch) if mismatch else None,
        )

    def bank_faults(self) -> list[BankFault]:
        """Return what in the bank's files does not fit its tables, with the repairs; loads no model."""
        bank = self._listing(required=False)
        if bank is None:
            return []
        try:
            mismatch = self._mismatch(bank)
        except CheckpointError:
            mismatch = None  # a preset without a memory has its own fault
        whole = [BankFault(message=mismatch.message, next_step=RECOMPILE, harmful=True)] if mismatch else []
        return [*whole, *bank_faults(bank)]

    def warm_up(self) -> None:
        """Load base and checkpoint now, so that the first question need not."""
        self._load()

    def _load(self) -> Engine:
        if self._engine is None:
            meta = self._meta  # a missing checkpoint is told before seconds of loading
            with collector_paused():
                from models.engine import Engine

                self._engine = Engine.load(self.config, self.preset, self._checkpoint)
            assert self._engine.meta.fingerprint == meta.fingerprint
        return self._engine

    def _open_both(self) -> tuple[Bank, Engine]:
        """Open the bank first: what is wrong with it is told before seconds of loading a model.

        Opening both in threads gained nothing: the imports of torch and LanceDB hold the interpreter.
        """
        bank = self._open_bank(create=False)
        if bank.num_atoms == 0:
            raise BankError(f"bank {self.config.bank} holds no atoms", hint="Run `d2a ingest FILE` first")
        return bank, self._load()

    def _open_bank(self, *, create: bool) -> Bank:
        self._restore_interrupted_swap()
        stored = read_identity(self.config.bank.absolute())
        # Another process may have rebuilt the bank under another checkpoint since.
        if self._bank is None or self._bank.identity != stored:
            self._bank = Bank.open(self.config.bank, self._identity(stored), create=create)
            self._bank.lexical()
        return self._bank

    def _listing(self, *, required: bool = True) -> Bank | None:
        self._restore_interrupted_swap()
        if not required and read_identity(self.config.bank.absolute()) is None:
            return None
        return Bank.open(self.config.bank, None, create=False)

    def _restore_interrupted_swap(self) -> None:
        path = self.config.bank.absolute()
        if not path.exists() and backup_of(path).exists():
            backup_of(path).rename(path)

    def _mismatch(self, bank: Bank) -> BankError | None:
        """Return what this bank would be refused with under the present settings, None where it fits."""
        try:
            check_identity(bank.path, bank.identity, self._identity(bank.identity))
        except BankError as error:
            return error
        return None

    def _identity(self, stored: BankIdentity | None) -> BankIdentity:
        meta = self._meta
        # Where all atoms share a LoRA `full` adds nothing: no new bank is called so, and no old one refused over it.
        asked = self.config.store if meta.spec.lora == "atom" else None
        return BankIdentity(
            preset=self.preset.name,
            base_fingerprint=meta.base_fingerprint,
            checkpoint_fingerprint=meta.fingerprint,
            recipe=meta.spec.recipe,
            store=asked or (stored.store if stored else "compact"),
            key_dim=meta.spec.d_key,
            kv_store=meta.spec.kv.kept_as,
        )

    def _context(self, bank: Bank, chosen: Sequence[StoredAtom], routed: RoutedRows) -> str | None:
        if self.config.context == "none":
            return None
        if self.config.context == "atoms":
            return " ".join(a.atom.content for a, w in zip(chosen, routed.weight, strict=True) if w > CONTEXT_WEIGHT)
        top = chosen[0]
        text = bank.text(top.document_id)
        middle = (top.atom.char_start + top.atom.char_end) // 2
        start = max(0, min(middle - DOCUMENT_WINDOW_CHARS // 2, len(text) - DOCUMENT_WINDOW_CHARS))
        return text[start : start + DOCUMENT_WINDOW_CHARS]

    def _cite(self, bank: Bank, text: str, routed: Sequence[RoutedAtom], chosen: Sequence[StoredAtom]) -> tuple:
        documents = {d.document_id: d for d in bank.documents()}
        texts: dict[str, str] = {}
        return cite(
            text,
            routed,
            chosen,
            text_of=lambda i: texts.setdefault(i, bank.text(i)),
            document_of=documents.__getitem__,
        )

    def _reranker_note(self, engine: Engine) -> str:
        if engine.reranker is not None:
            return engine.reranker.name
        return "absent" if float(engine.network.router.rerank) != 0.0 else "off"

    def _as_source(self, ref: str) -> str:
        path = Path(ref)
        return str(path.absolute()) if path.exists() else ref
