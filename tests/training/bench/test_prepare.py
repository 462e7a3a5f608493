"""What one machine prepares is all that a run on another one reads."""

import json

import pytest

import training.bench.records
from tests.training.bench.sets import squad, write
from training.bench.bank import SuiteBank
from training.bench.prepare import main
from training.bench.run import BenchRequest, load_suites

TOWN = "Ilse Kant was born in Marn. She built nine bridges there in 1920."
HARBOUR = "The harbour of Marn was dug in 1802. Ships carried wool to the north."
ZOO = "Otters live in lake Tor. The zoo keeps forty otters."


@pytest.mark.parametrize(("bank", "limit"), [("document", None), ("document", 1), ("all", 1)])
def test_a_run_without_the_atomizer_finds_what_was_prepared(bank, limit, base, tmp_path, monkeypatch, capsys):
    articles = (
        ("Marn", [(TOWN, [("a", "Who was born in Marn?", "Ilse Kant")]), (HARBOUR, [("b", "What was dug?")])]),
        ("Zoo", [(ZOO, [("c", "Where do otters live?", "lake Tor")]), ("Hens sit.", [])]),
    )
    data = write(tmp_path / "eval" / "squad" / "dev-v2.0.json", squad(*articles)).parent.parent
    options = ["--data", str(data), "--bank", bank, *(["--limit", str(limit)] if limit else [])]
    assert main(["squad_v2", "refusal", *options]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["suite"] for row in told] == ["squad_v2", "refusal/squad_v2"]
    assert told[0]["documents"] == {("document", None): 3, ("document", 1): 2, ("all", 1): 4}[bank, limit]

    def missing():
        raise ModuleNotFoundError("No module named 'sentencex'")

    monkeypatch.setattr(training.bench.records, "_annotator", missing)
    request = BenchRequest(suites=("squad_v2", "refusal"), data=data, limit=limit, bank=bank, out=tmp_path)
    banks = [SuiteBank(base, None, suite, kind=bank, top_k=1) for suite in load_suites(request)]
    assert [bank.num_atoms for bank in banks] == [row["atoms"] for row in told]


def test_data_that_is_not_there_is_said_in_a_line(tmp_path, capsys):
    assert main(["squad", "--data", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.endswith("does not exist. Pass the folder of the data with --data\n")
