"""Annotation records as JSON lines."""

import gzip
import json

import pytest

from models.atoms import AnnotationRecord
from tests.training.samples import river_and_town
from training.records import DataError, read_records, write_records


@pytest.mark.parametrize("name", ["r.jsonl", "deep/r.jsonl.gz"])
def test_records_come_back_as_they_were_written(tmp_path, name):
    records = river_and_town()
    write_records(tmp_path / name, records)
    assert read_records(tmp_path / name) == records


def test_compressed_records_are_gzip(tmp_path):
    write_records(tmp_path / "r.jsonl.gz", river_and_town())
    with gzip.open(tmp_path / "r.jsonl.gz", "rt") as file:
        assert AnnotationRecord.from_dict(json.loads(next(file))).title == "Oland"


@pytest.mark.parametrize(
    ("name", "content"),
    [("r.jsonl", b'{"context": "x"}\n'), ("r.jsonl", b"no"), ("r.jsonl.gz", b"{}\n"), ("r.jsonl", b"\xff")],
)
def test_what_holds_no_records_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: not annotation records"):
        read_records(tmp_path / name)


def test_missing_records_name_the_command_that_makes_them(tmp_path):
    with pytest.raises(DataError, match=r"does not exist.*training\.prepare"):
        read_records(tmp_path / "none.jsonl")
