"""Small files of sets, written and read back as contexts."""

import json

import pytest

from training.datasets import load


def read(name, path, data):
    lines = "".join(json.dumps(row) + "\n" for row in data) if path.name.endswith(".jsonl") else json.dumps(data)
    path.write_text(lines, "utf-8")
    return list(load(name, path))


def spans(context, item):
    return [context.text[start:stop] for start, stop in item.evidence]


def table(path, rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path
