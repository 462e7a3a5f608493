import pytest

from models.errors import D2AError
from tests.training.bench.rows import row
from training.bench.journal import Journal

PARTS = [("squad", "doc2atom", ["a", "b", "c"]), ("squad", "blind", ["a", "b", "c"])]


def journal(path, *, chunk=2, resume=True, parts=PARTS):
    return Journal(path / "predictions.jsonl", parts, chunk=chunk, resume=resume)


def filled(path, *names):
    found = journal(path)
    for system, sample in names:
        found.write([row(sample, 0.5, system=system)])
    return path / "predictions.jsonl"


def test_what_is_left_of_a_chunk_is_dropped(tmp_path):
    path = filled(tmp_path, ("doc2atom", "a"), ("doc2atom", "b"), ("doc2atom", "c"), ("blind", "a"))
    again = journal(tmp_path)
    # The last chunk of doc2atom is c alone and complete; blind has one of the two of its first chunk.
    assert (again.done("squad", "doc2atom"), again.done("squad", "blind")) == (3, 0)
    assert path.read_bytes().count(b"\n") == 3


def test_a_line_without_its_end_is_dropped(tmp_path):
    path = filled(tmp_path, ("doc2atom", "a"), ("doc2atom", "b"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"suite": "squad", "sys')
    assert journal(tmp_path).done("squad", "doc2atom") == 2
    assert path.read_bytes() == whole


def test_words_with_line_separators_are_one_row(tmp_path):
    found = journal(tmp_path)
    rows = [row(name, 0.5, prediction="a\u2028b\x85c\nd\x0ce") for name in "ab"]
    found.write(rows)
    assert journal(tmp_path).done("squad", "doc2atom") == 2


def test_starting_over_empties_the_file(tmp_path):
    path = filled(tmp_path, ("doc2atom", "a"))
    assert journal(tmp_path, resume=False).done("squad", "doc2atom") == 0
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "names, reason",
    [
        ([("doc2atom", "b")], "squad doc2atom b stands where squad doc2atom a should"),
        ([("doc2atom", n) for n in "abc"] + [("doc2atom", "a")], "squad doc2atom a stands where squad blind a should"),
        ([(s, n) for s in ("doc2atom", "blind", "doc2atom") for n in "abc"], "it has more rows"),
    ],
)
def test_rows_of_another_plan_are_refused_and_kept(tmp_path, names, reason):
    path = filled(tmp_path, *names)
    before = path.read_bytes()
    with pytest.raises(D2AError, match=f"holds another run: {reason}.*--no-resume"):
        journal(tmp_path)
    assert path.read_bytes() == before
