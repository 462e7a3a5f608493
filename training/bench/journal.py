"""The file of rows as a run writes it: in the order of its plan, chunk by chunk, cut back to whole chunks to go on.

A chunk is what is computed together, and is written at once. What a kill leaves of one is dropped, so that it is
computed again as a whole: batches, and with them every rounding, are those of a run that was never killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from models.errors import D2AError
from training.bench.samples import Row, Suite

Part = tuple[str, str, Sequence[str]]


def parts_of(suites: Sequence[Suite], systems: Sequence[str]) -> list[Part]:
    """Return suite, system and the ids of the samples, for each pair in the order of a run."""
    return [(s.name, system, [sample.sample_id for sample in s.samples]) for s in suites for system in systems]


class Journal:
    """Rows of a run on disk.

    Args:
        chunk: Samples that are computed together.
        resume: Keep the rows that an earlier run of the same plan left; False starts over.

    Raises:
        D2AError: The rows that are there belong to another plan.
    """

    def __init__(self, path: Path, parts: Sequence[Part], *, chunk: int, resume: bool) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(path) if resume and path.is_file() else []
        self._done = self._kept(lines, parts, chunk)
        size = sum(len(line) for line in lines[: sum(self._done.values())])
        with path.open("ab") as file:
            file.truncate(size)

    def done(self, suite: str, system: str) -> int:
        """Return how many samples have a row, the first ones."""
        return self._done.get((suite, system), 0)

    def write(self, rows: Sequence[Row]) -> None:
        """Append the rows of a chunk."""
        text = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
        with self.path.open("ab") as file:
            file.write(text.encode("utf-8", "replace"))
        for row in rows:
            key = (row.suite, row.system)
            self._done[key] = self._done.get(key, 0) + 1

    def _kept(self, lines: Sequence[bytes], parts: Sequence[Part], chunk: int) -> dict[tuple[str, str], int]:
        """Return how many rows to keep of each part: all of those that are complete, whole chunks of the next one."""
        found: Iterator[tuple[str, str, str]] = map(self._name, lines)
        kept: dict[tuple[str, str], int] = {}
        for suite, system, sample_ids in parts:
            number = 0
            for sample_id, name in zip(sample_ids, found, strict=False):
                if name != (suite, system, sample_id):
                    raise self._another(f"{' '.join(name)} stands where {suite} {system} {sample_id} should")
                number += 1
            if number < len(sample_ids):
                return {**kept, (suite, system): number - number % chunk}
            kept[suite, system] = number
        if next(found, None):
            raise self._another("it has more rows than this run would write")
        return kept

    def _name(self, line: bytes) -> tuple[str, str, str]:
        try:
            row = json.loads(line)
            return row["suite"], row["system"], row["sample_id"]
        except (ValueError, TypeError, KeyError) as error:
            raise self._another(f"a line is not a row, {error}") from error

    def _another(self, reason: str) -> D2AError:
        return D2AError(
            f"{self.path} holds another run: {reason}", hint="Pass another --out, or start over: --no-resume"
        )


def _whole_lines(path: Path) -> list[bytes]:
    """Return the lines with their ends; a last one without belongs to a run that was killed while it wrote."""
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
