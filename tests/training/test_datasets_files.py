"""Files of sets: every packing gives the same rows, and what cannot be had says what to do."""

import gzip
import json
import sys
import types
import zipfile

import pytest

from training.datasets.files import HubFiles, download, read_data, sha256
from training.records import DataError

ROWS = [{"a": 1}, {"a": 2}]
LINES = '{"a": 1}\n{"a": 2}\n'
HUB = HubFiles(repo_id="someone/rows", patterns={"train": "data/train-*.json"})


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", json.dumps(ROWS)),
        ("x.json", "\ufeff" + json.dumps(ROWS)),
        ("x.jsonl", LINES),
        ("x.json", LINES),
        ("x.json", '{\n "a": 1\n}{\n "a": 2\n}'),
        ("x.jsonl.gz", gzip.compress(LINES.encode())),
        ("x.json.gzip", gzip.compress(LINES.encode())),
    ],
)
def test_all_packings_of_json_give_the_same_rows(tmp_path, name, content):
    assert read_data(write(tmp_path / name, content)) == ROWS


def test_one_json_line_is_a_list_and_one_json_object_is_not(tmp_path):
    assert read_data(write(tmp_path / "x.jsonl", '{"a": 1}\n')) == [{"a": 1}]
    assert read_data(write(tmp_path / "x.jsonl.gz", gzip.compress(b'{"a": 1}'))) == [{"a": 1}]
    assert read_data(write(tmp_path / "x.json", '{"a": 1}\n')) == {"a": 1}


def test_an_archive_gives_its_rows_and_joins_those_of_several_files(tmp_path):
    for name, members in {"one.zip": ("x.json",), "two.zip": ("x.jsonl", "y.jsonl")}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for member in (*members, "readme.txt"):
                archive.writestr(member, LINES)
    assert read_data(tmp_path / "one.zip") == ROWS
    assert read_data(tmp_path / "two.zip") == ROWS + ROWS


def test_tables_give_rows(tmp_path):
    assert read_data(write(tmp_path / "x.csv", 'a,b\n1,"two, three"\n')) == [{"a": "1", "b": "two, three"}]
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    assert read_data(tmp_path / "x.parquet") == ROWS
    parquet.write_table(pa.Table.from_pylist([{"a": {"b": 1, "c": 2}, "d": 3}]), tmp_path / "y.parquet")
    assert read_data(tmp_path / "y.parquet", columns=["a.b"]) == [{"a": {"b": 1}}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", "{oops"),
        ("x.json", b"\xff\xfe"),
        ("x.json.gz", b"\x1f\x8b broken"),
        ("x.zip", b"PK\x03\x04"),
        ("x.parquet", b"PAR1"),
    ],
)
def test_a_broken_file_is_named(tmp_path, name, content):
    with pytest.raises(DataError, match=rf"{name} cannot be read: .*Download"):
        read_data(write(tmp_path / name, content))


def test_a_missing_file_names_the_option_that_gives_the_folder(tmp_path):
    with pytest.raises(DataError, match=r"does not exist.*--data"):
        read_data(tmp_path / "none.json")


def test_a_fingerprint_is_sha256(tmp_path):
    # The digest of the empty string is the best known one.
    assert sha256(write(tmp_path / "x", "")).startswith("e3b0c44298fc1c149afbf4c8996fb924")


def fake_hub(monkeypatch, snapshot_download):
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))


def test_the_hub_is_asked_for_the_files_of_the_split_alone(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        (tmp_path / "data").mkdir()
        for number in (1, 0):
            write(tmp_path / "data" / f"train-{number}.json", "[]")
        return str(tmp_path)

    fake_hub(monkeypatch, snapshot_download)
    assert [p.name for p in download(HUB, "train", "rows")] == ["train-0.json", "train-1.json"]
    assert asked == {
        "repo_id": "someone/rows",
        "repo_type": "dataset",
        "revision": "main",
        "allow_patterns": "data/train-*.json",
    }


def test_a_hub_out_of_reach_is_one_line_that_offers_a_folder(monkeypatch):
    def snapshot_download(*_args, **_options):
        raise ConnectionError("no route to host\nwith a long story")

    fake_hub(monkeypatch, snapshot_download)
    with pytest.raises(DataError) as caught:
        download(HUB, "train", "rows")
    assert str(caught.value) == (
        "rows cannot be fetched from the Hugging Face hub: no route to host. "
        "Download https://huggingface.co/datasets/someone/rows elsewhere and pass its folder with --data"
    )


def test_a_missing_hub_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"rows: huggingface_hub is not installed. Install huggingface_hub"):
        download(HUB, "train", "rows")


def test_a_repository_without_the_files_and_an_unknown_split_are_refused(monkeypatch, tmp_path):
    fake_hub(monkeypatch, lambda *_args, **_options: str(tmp_path))
    with pytest.raises(DataError, match="someone/rows has no files data/train"):
        download(HUB, "train", "rows")
    with pytest.raises(DataError, match=r"split must be one of \['train'\], got 'dev'"):
        download(HUB, "dev", "rows")
