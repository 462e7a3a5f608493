"""Read the pickle of the official Doc-to-LoRA release without running what it names; a process of its own does it.

    python -m models.baselines.release_pickle PICKLE FOLDER

writes its tensors to `tensors.safetensors` and all else to `facts.json`. The release keeps configuration objects of
its own code and of peft beside the tensors. Those few classes are read as plain records, by torch's restricted
unpickler; any other one is refused by name before anything is unpickled. What the tensors mean is `release`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from models.errors import CheckpointError, D2AError

TENSORS, FACTS = "tensors.safetensors", "facts.json"
# Classes whose objects the release holds. None of them is imported.
_RECORDS = (
    "ctx_to_lora.configs.CtxEncoderArguments",
    "ctx_to_lora.modeling.aggregator.AGGREGATOR_TYPE",
    "ctx_to_lora.modeling.aggregator.AggregatorConfig",
    "ctx_to_lora.modeling.ctx_encoder.CTX_ENCODER_TYPE",
    "ctx_to_lora.modeling.hypernet.HypernetConfig",
    "ctx_to_lora.pooling.POOL_FN",
    "peft.tuners.lora.config.LoraConfig",
    "peft.tuners.lora.config.LoraRuntimeConfig",
    "peft.utils.peft_types.PeftType",
    "peft.utils.peft_types.TaskType",
)


class Record:
    """Stands for an object of a class that is not imported: its attributes, or what it was called with."""

    def __init__(self, *args: Any) -> None:
        self.args = args


def check_present(path: Path) -> None:
    """Refuse a file that is not there.

    Raises:
        CheckpointError: It is not there.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist", hint="Download the release yourself; nothing fetches it")


def read_pickle(path: Path) -> dict[str, Any]:
    """Return what the file holds, objects of the release's classes as `Record`.

    Raises:
        CheckpointError: Missing, not written by `torch.save`, or it names a class or function that is not one of the
            release's.
    """
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

    check_present(path)
    try:
        wanted = set(get_unsafe_globals_in_checkpoint(path))
        if unknown := sorted(wanted - {*_RECORDS, "builtins.range"}):
            raise CheckpointError(
                f"{path} wants to run {', '.join(unknown)}, which is no part of the release",
                hint="It is not loaded. Take the file from its authors",
            )
        with safe_globals([range, *((Record, name) for name in _RECORDS)]):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except D2AError:
        raise
    except (RuntimeError, ValueError, UnpicklingError, EOFError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint of torch: {str(error).splitlines()[0]}",
            hint="Download it again, and pass its pytorch_model.bin",
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, no weights", hint="Pass its pytorch_model.bin")
    return found


def extract(path: Path, folder: Path) -> None:
    """Write the tensors of a pickle and its plain facts into a folder, where no code can hide."""
    import torch
    from safetensors.torch import save_file

    found = read_pickle(path)
    tensors = {name: value.contiguous() for name, value in found.items() if isinstance(value, torch.Tensor)}
    facts = {name: _plain(value) for name, value in found.items() if name not in tensors}
    save_file(tensors, folder / TENSORS)
    (folder / FACTS).write_text(json.dumps(facts), "utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        attributes = dict(vars(value))
        args = attributes.pop("args", ())
        # A member of an enumeration is made of its value alone.
        return _plain(args[0]) if args else _plain(attributes)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else str(value)


if __name__ == "__main__":
    try:
        extract(Path(sys.argv[1]), Path(sys.argv[2]))
    except D2AError as error:
        sys.exit(json.dumps({"message": error.message, "hint": error.hint}))
