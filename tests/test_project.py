"""The project as a whole: what ships, what it is called, what its files may not say."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("d2a_cli", "models", "training")


def tracked_files() -> list[Path]:
    """Return the files under version control that are still there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the names inside a wheel built from the working tree."""
    builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling comes with the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(built).namelist()


def test_wheel_holds_every_tracked_file_of_the_packages(wheel_names: list[str]) -> None:
    tracked = {path.relative_to(ROOT).as_posix() for path in tracked_files()}
    shipped = {name for name in tracked if name.split("/")[0] in PACKAGES}
    assert len(shipped) > 10
    assert shipped <= set(wheel_names)


def test_wheel_holds_nothing_but_the_packages_and_its_metadata(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert not [name for name in wheel_names if "test" in Path(name).name or name.endswith(".pyc")]


def test_wheel_and_pieces_of_the_checkpoint_stay_small(wheel_names: list[str]) -> None:
    pieces = [path for path in (ROOT / "models" / "checkpoints").rglob("*.safetensors") if path.is_file()]
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in pieces}
    assert sizes.keys() <= set(wheel_names)
    assert all(size <= 16 * 2**20 for size in sizes.values()), sizes
    assert sum(sizes.values()) <= 30 * 2**20, sizes


def test_installed_metadata_names_the_command_and_the_python_it_needs() -> None:
    try:
        installed = metadata.distribution("d2a")
    except metadata.PackageNotFoundError:
        pytest.skip("d2a is not installed; `make test` installs it")
    (script,) = (entry for entry in installed.entry_points if entry.group == "console_scripts")
    assert (script.name, script.value) == ("d2a", "d2a_cli.app:main")
    assert installed.metadata["Requires-Python"] == ">=3.11"
    assert installed.version == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_every_import_of_the_packages_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "dev"}
    lines = [*project["dependencies"], *(line for given in extras.values() for line in given)]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in lines}
    distributions = metadata.packages_distributions()
    undeclared = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text("utf-8"), flags=re.MULTILINE):
            owners = {owner.lower().replace("-", "_") for owner in distributions.get(name, ())}
            if owners and not owners & declared and name not in PACKAGES:
                undeclared[name] = path.relative_to(ROOT).as_posix()
    assert not undeclared


def test_every_shipped_toml_can_be_read() -> None:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.toml")]
    assert {"smollm2.toml", "gemma.toml", "qwen.toml"} <= {path.name for path in paths}
    for path in paths:
        assert tomllib.loads(path.read_text("utf-8")), path


def test_readme_draws_the_memory_that_ships_and_says_which_presets_differ() -> None:
    from models.checkpoint import find_checkpoint, read_meta
    from models.presets import load_preset

    readme = (ROOT / "README.md").read_text("utf-8")
    shipped = read_meta(find_checkpoint(load_preset("smollm2"), ROOT / "models" / "checkpoints" / "smollm2")).spec
    assert (shipped.recipe, shipped.lora, shipped.kv.source, shipped.kv.store) == ("d2a", "static", "tokens", "int6")
    assert "beside the one LoRA that all atoms share" in readme and "keeps in 6 bits" in readme
    both = [load_preset(name).spec("d2a") for name in ("gemma", "qwen")]
    assert [(spec.lora, spec.kv.source) for spec in both] == [("atom", "tokens")] * 2
    assert "`gemma` and `qwen` under `d2a` have both" in readme
    paper = load_preset("smollm2").spec("paper")
    assert (paper.lora, paper.kv.source) == ("atom", "none")
    assert "Under recipe `paper` each atom has a micro-LoRA" in readme


def test_no_tracked_text_names_a_folder_of_this_machine() -> None:
    # The folder of the checkout and the one that holds it, derived so that this file does not name them either.
    # The system's folder for temporary files is no secret of one machine.
    own = {ROOT, ROOT.parent, Path.home()} - {Path(tempfile.gettempdir())}
    machine_folders = {str(folder) for folder in own if len(folder.parts) > 1}
    patterns = [re.compile(rf"(?<![\w.]){re.escape(folder)}(?![\w-])") for folder in machine_folders]
    found = []
    for path in tracked_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a PDF, a tensor file
        found += [f"{path.relative_to(ROOT)}: {m[0]}" for pattern in patterns for m in pattern.finditer(text)]
    assert not found


def test_example_pdf_is_what_its_text_builds(tmp_path: Path) -> None:
    pytest.importorskip("reportlab", reason="reportlab comes with the dev extra")
    from pypdf import PdfReader

    from examples.build_pdf import build

    built = tmp_path / "eddystone.pdf"
    build((ROOT / "examples" / "eddystone.md").read_text("utf-8"), built)
    texts = [
        [page.extract_text() for page in PdfReader(path).pages] for path in (built, ROOT / "examples" / built.name)
    ]
    assert texts[0] == texts[1], "run `make example`"
    build((ROOT / "examples" / "eddystone.md").read_text("utf-8"), tmp_path / "again.pdf")
    assert built.read_bytes() == (tmp_path / "again.pdf").read_bytes()


def test_example_questions_are_answered_by_their_evidence() -> None:
    text = (ROOT / "examples" / "eddystone.md").read_text("utf-8")
    questions = json.loads((ROOT / "examples" / "questions.json").read_text("utf-8"))
    assert len({q["question"] for q in questions}) == len(questions)
    for q in questions:
        assert q["kind"] in ("one_atom", "two_atoms", "near_miss", "off_topic")
        assert all(sentence in text for sentence in q["evidence"]), q
        if q["kind"].endswith(("_atom", "_atoms")):
            assert any(answer in " ".join(q["evidence"]) for answer in q["answers"]), q
        else:
            assert not q["answers"] and not q["evidence"], q


def test_demo_asks_one_question_of_each_kind_from_the_tuned_set() -> None:
    questions = json.loads((ROOT / "examples" / "questions.json").read_text("utf-8"))
    kinds = {q["question"]: q["kind"] for q in questions}
    asked = re.findall(r'^ask "(.+)"$', (ROOT / "examples" / "demo.sh").read_text("utf-8"), flags=re.MULTILINE)
    one, two, none = (kinds[question] for question in asked)
    assert (one, two) == ("one_atom", "two_atoms")
    assert none in ("near_miss", "off_topic")
