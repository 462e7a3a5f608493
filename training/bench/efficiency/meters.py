"""Clocks and memory: how long a call takes until the device is done, and how much memory it needs on top.

Every reading synchronises the device before and after. Device memory is the allocator's peak minus what was allocated
at the start. On a CPU it is the growth of the resident set, which Linux alone tells: memory that earlier calls left
to the process counts for nothing there, so that it is a lower bound.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

MIB = 2**20
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class Memory(Protocol):
    """Tells how much memory a call needs at most, beyond what is taken when it starts."""

    kind: str
    is_exact: bool

    def start(self) -> None:
        """Take what is in use now as the baseline."""

    def added_bytes(self) -> int | None:
        """Return the peak since the start minus the baseline, None where nobody knows."""


class DeviceMemory:
    """The CUDA allocator's peak."""

    kind = "peak of the CUDA allocator minus what was allocated before"
    is_exact = True

    def __init__(self, device: torch.device) -> None:
        self.device, self._before = device, 0

    def start(self) -> None:
        """Take what is in use now as the baseline."""
        torch.cuda.reset_peak_memory_stats(self.device)
        self._before = torch.cuda.memory_allocated(self.device)

    def added_bytes(self) -> int | None:
        """Return the peak since the start minus the baseline."""
        return torch.cuda.max_memory_allocated(self.device) - self._before


class ProcessMemory:
    """The resident set, whose peak Linux lets a process reset."""

    kind = "growth of the resident set, a lower bound: memory that the process holds already is used again"
    is_exact = False

    def __init__(self) -> None:
        self._before = 0

    def start(self) -> None:
        """Take what is resident now as the baseline."""
        _CLEAR.write_text(_RESET_PEAK)
        self._before = _resident("VmRSS")

    def added_bytes(self) -> int | None:
        """Return the peak since the start minus the baseline."""
        return max(0, _resident("VmHWM") - self._before)


class UnknownMemory:
    """Stands where nothing counts memory."""

    kind = "not known on this system"
    is_exact = False

    def start(self) -> None:
        """Do nothing."""

    def added_bytes(self) -> int | None:
        """Return None."""


def pick_memory(device: torch.device) -> Memory:
    """Return what counts memory on a device."""
    if device.type == "cuda":
        return DeviceMemory(device)
    try:
        ProcessMemory().start()
    except (OSError, ValueError):
        return UnknownMemory()
    return ProcessMemory()


def _resident(field_name: str) -> int:
    found = re.search(rf"^{field_name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{_STATUS} names no {field_name}")
    return 1024 * int(found[1])


@dataclass(kw_only=True)
class Reading:
    """One call: its seconds, those of its named parts, and the memory that it added."""

    seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    added_bytes: int | None = None


class Meter:
    """Measures calls on one device.

    Args:
        clock: Seconds from any origin.
    """

    def __init__(
        self, device: torch.device, *, clock: Callable[[], float] = time.perf_counter, memory: Memory | None = None
    ) -> None:
        self.device, self.clock = device, clock
        self.memory = memory or pick_memory(device)
        self._parts: dict[str, float] = {}

    def now(self) -> float:
        """Return the time when the device has done everything that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as a part of the call that is measured; the same name adds up."""
        begin = self.now()
        yield
        self._parts[name] = self._parts.get(name, 0.0) + self.now() - begin

    def once(self, action: Callable[[], object]) -> Reading:
        """Measure one call."""
        self._parts = {}
        self.memory.start()
        begin = self.now()
        action()
        seconds = self.now() - begin
        return Reading(seconds=seconds, parts=dict(self._parts), added_bytes=self.memory.added_bytes())

    def repeat(
        self,
        actions: Sequence[Callable[[], object]],
        *,
        budget_s: float,
        least: int = 3,
        most: int = 30,
        warm_up: int = 1,
    ) -> list[Reading]:
        """Measure calls one after the other and over again, after the first ones that warm up.

        Args:
            actions: What is called in turn.
            budget_s: No call starts after so many seconds, the warm-up included, but the `least` first.
            warm_up: Calls before those that count.
        """
        begin = self.now()
        for action in actions[:warm_up]:
            action()
        readings: list[Reading] = []
        while len(readings) < most and (len(readings) < least or self.now() - begin < budget_s):
            readings.append(self.once(actions[len(readings) % len(actions)]))
        return readings

    def repeat_each(
        self, actions: Sequence[Callable[[], object]], *, budget_s: float, least: int = 3, most: int = 30
    ) -> tuple[list[Reading], list[Reading]]:
        """Measure calls as `repeat` does, where one call does not warm up another: their shapes differ.

        Returns:
            The first reading of each call, which is made right before the one that counts, and those that count.
        """
        begin = self.now()
        first: list[Reading] = []
        readings: list[Reading] = []
        while len(readings) < most and (len(readings) < least or self.now() - begin < budget_s):
            action = actions[len(readings) % len(actions)]
            if len(first) < len(actions):
                first.append(self.once(action))
            readings.append(self.once(action))
        return first, readings


def times(seconds: Sequence[float]) -> dict[str, float]:
    """Return number, mean and percentiles, in milliseconds."""
    ms = 1e3 * np.asarray(seconds, dtype=float)
    p50, p95 = np.percentile(ms, [50, 95])
    return {
        "n": len(ms),
        "mean_ms": round(float(ms.mean()), 4),
        "p50_ms": round(float(p50), 4),
        "p95_ms": round(float(p95), 4),
    }


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """Return the times of calls and of their parts, and the most memory that one of them added."""
    names = list(dict.fromkeys(name for r in readings for name in r.parts))
    added = [r.added_bytes for r in readings if r.added_bytes is not None]
    found: dict[str, Any] = times([r.seconds for r in readings])
    if names:
        found["parts"] = {name: times([r.parts.get(name, 0.0) for r in readings]) for name in names}
    found["added_mib"] = round(max(added) / MIB, 2) if added else None
    return found
