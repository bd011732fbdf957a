"""Documents: their commands parse, their code runs, and their links exist."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedlit.cli.main import main, parse
from fedlit.experiment.choices import shipped

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "configs/**/*.md", "fedlit/*/*.md", "tests/benchmarks/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)


RECIPES = "docs/recipes.md"
PARSED = {"--fabric.devices", "--seed", "--federation.patience"}
"""Options of recipes' commands that no test runs: they need several GPUs, or the time of many rounds."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that a comment in its first line names, or ""."""
        named = re.match(r"# ([\w/]+\.py)$", self.text.partition("\n")[0])
        return named[1] if named else ""


@cache
def blocks(language: str) -> list[Block]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [Block(d, language, text) for d in DOCUMENTS for text in fence.findall((ROOT / d).read_text())]


def commands(document: str | None = None) -> list[list[str]]:
    """Return the words after ``fedlit`` of every command line that calls it, in one document or in all."""
    found = []
    for block in blocks("bash"):
        if document not in (None, block.document):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            starts = [i + 1 for i, word in enumerate(words) if word == "fedlit" or word.endswith("fedlit/__main__.py")]
            if starts and words[:2] != ["python", "-m"]:
                found.append(words[starts[0] :])
    return found


def trained_recipes() -> list[list[str]]:
    """Return the commands of the recipes that ``test_recipes`` runs."""
    return [words for words in commands(RECIPES) if not PARSED & set(words)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that contains only the files in the documents."""
    for block in blocks("python"):
        if block.file:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_project"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fedlit(*words: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--federation.workers", "1", "--fast_dev_run", "true"])
    return stopped.value.code


def test_there_are_commands_to_check():
    assert len(to_parse()) > 80
    assert ["fit", "--config", "configs/quickstart.yaml"] in commands()


def is_plain(words: Sequence[str]) -> bool:
    """Whether a command trains a shipped configuration as it is, which ``test_configs`` parses or trains, too."""
    return [*words[:2]] == ["fit", "--config"] and [*words[3:]] in ([], ["--data.root", "FOLDER"])


def to_parse() -> list[list[str]]:
    """The commands whose words are not all in another one but for numbers, without those that ``test_recipes`` runs."""
    distinct = {
        frozenset(re.sub(r"\d+(,\d+)*", "0", word) for word in words): words
        for words in commands()
        if not is_plain(words)
    }
    trained = trained_recipes()
    return [
        words for key, words in distinct.items() if words not in trained and not any(key < other for other in distinct)
    ]


def test_every_command_line_parses(project: Path, capsys: pytest.CaptureFixture):
    wrong = []
    for words in to_parse():
        try:
            parse(words)
        except SystemExit:
            wrong.append(f"{shlex.join(words)}: {capsys.readouterr().err}")
    assert wrong == []


def test_shipped_configurations_that_commands_name_are_there():
    assert [words for words in commands() if is_plain(words) and not (ROOT / words[2]).exists()] == []


def test_readme_is_short_and_begins_with_the_installation():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    first_screen = "\n".join(lines[:30])
    assert "pip install -e . && fedlit fit --config configs/quickstart.yaml\n" in first_screen
    assert "pip install -e '.[dev]' && pytest -n auto\n" in first_screen


def headings(file: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    """To files, and to headings of documents."""
    wrong = []
    for document in (*DOCUMENTS, "CHANGELOG.md"):
        file = ROOT / document
        for name, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", file.read_text()):
            target = file.parent / name if name else file
            if not target.exists() or (heading and heading not in headings(target)):
                wrong.append(f"{document}: {name}#{heading}")
    assert wrong == []


def test_the_benchmarks_are_listed():
    listed = (ROOT / "tests/benchmarks/README.md").read_text()
    names = [f"tests/benchmarks/{file.name}" for file in ROOT.glob("tests/benchmarks/*.py")]
    assert [name for name in names if name not in listed] == []


def test_every_document_can_be_reached_from_readme():
    reached, waiting = set(), ["README.md"]
    while waiting:
        document = waiting.pop()
        reached.add(document)
        links = re.findall(r"\]\((?!https?:)([^)#]+\.md)", (ROOT / document).read_text())
        targets = [str(((ROOT / document).parent / link).resolve().relative_to(ROOT)) for link in links]
        waiting += [target for target in targets if target not in reached]
    assert reached == {*DOCUMENTS, "CHANGELOG.md"}


def test_the_site_has_every_document():
    navigation = (ROOT / "mkdocs.yml").read_text()
    notebooks = [f"docs/{file.name}.md" for file in ROOT.glob("docs/*.ipynb")]
    pages = [*DOCUMENTS, "CHANGELOG.md", *notebooks]
    assert len(notebooks) >= 1
    assert [page for page in pages if f": {page}\n" not in navigation] == []


@pytest.mark.parametrize(
    ("axis", "document"),
    [("aggregators", "README.md"), ("data", "fedlit/data/README.md"), ("partitions", "fedlit/data/README.md")],
)
def test_the_documents_name_all_that_ships_and_nothing_else(axis: str, document: str):
    readme = (ROOT / document).read_text()
    assert [cls.__name__ for cls in shipped(axis) if f"`{cls.__name__}`" not in readme
            and cls.__name__ not in ("PhantomCXR", "NIHChestXray14")] == []  # fmt: skip
    if axis == "aggregators":
        cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", readme, re.MULTILINE)
        table = [name for cell in cells for name in re.findall(r"\w+", cell)]
        assert sorted(table) == [cls.__name__ for cls in shipped(axis)]


def test_the_momentum_of_readme_is_that_of_the_example_project():
    (shown,) = (b.text for b in blocks("python") if b.file == "my_project/server_momentum.py")
    file = ROOT / "tests" / "own_project" / "my_project" / "server_momentum.py"
    assert shown.partition("\n")[2].strip() == file.read_text().strip()


@pytest.mark.slow
def test_the_check_of_readme_passes(project: Path):
    (check,) = (b.text for b in blocks("python") if b.document == "README.md" and "check_aggregator" in b.text)
    exec(compile(check, "README.md", "exec"), {})


@pytest.mark.slow
def test_the_python_of_readme_trains(project: Path, capsys: pytest.CaptureFixture):
    (block,) = (b.text for b in blocks("python") if b.document == "README.md" and "fedlit.fit(" in b.text)
    assert len([line for line in block.splitlines() if line]) <= 12
    kept: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), kept)
    assert kept["fitted"].metrics["val/auroc_macro"].notna().sum() == 3
    assert kept["fitted"].predict(kept["images"](5)).shape == (5, 2)
    assert "Scaffold over 2 clients" in capsys.readouterr().out


def test_hospitals_of_readme_train(project: Path, capsys: pytest.CaptureFixture):
    rng = np.random.default_rng(0)
    (project / "ours" / "images").mkdir(parents=True)
    lines = ["image,patient,hospital,Edema,Mass"]
    for row in range(80):
        Image.fromarray(rng.integers(0, 256, (32, 32), dtype=np.uint8)).save(project / "ours" / "images" / f"{row}.png")
        lines.append(
            f"{row}.png,{row // 2:03d},{'north' if row % 40 < 20 else 'south'},{row % 2},{'' if row < 9 else 1}"
        )
    (project / "ours" / "labels.csv").write_text("\n".join(lines) + "\n")
    words = ["--data", "my_project.hospitals.OurHospitals", "--data.root", "ours", "--data.image_size", "32"]
    assert fedlit("fit", *words, "--model", "my_project.small_net.SmallNet", "--model.width", "2") == 0
    said = capsys.readouterr().out
    assert "north (" in said
    assert "south (" in said
    assert "Edema" in said
    (check,) = (b.text for b in blocks("python") if not b.file and "check_data_module" in b.text)
    exec(compile(check, "README.md", "exec"), {})


def test_the_arrays_of_the_data_manual_train(project: Path, capsys: pytest.CaptureFixture):
    words = "--data.images 20 --model.backbone small_cnn --federation.rounds 1 --logger false --federation.workers 1"
    assert fedlit("fit", "--data", "my_project.blobs.Blobs", *words.split()) == 0
    assert "north (20), south (20)" in capsys.readouterr().out
    assert fedlit("fit", "--data", "my_project.blobs.Blobs", "--data.pooled", "true", *words.split()) == 0
    assert "pooled (20)" in capsys.readouterr().out


def test_the_model_of_readme_trains(project: Path, capsys: pytest.CaptureFixture):
    torch.manual_seed(0)
    (words,) = (w for w in commands() if "my_project.small_net.SmallNet" in w)
    assert fedlit(*words, "--data.images", "200", "--data.image_size", "32", "--data.label_scheme", "split") == 0
    assert "mean over defined classes" in capsys.readouterr().out


def test_the_classes_of_contributing_train(project: Path, capsys: pytest.CaptureFixture):
    (words,) = (w for w in commands() if "my_project.margin.MarginBCE" in w)
    small = "--data.images 40 --data.image_size 32 --model.backbone small_cnn --federation.rounds 1 --logger false"
    with pytest.raises(SystemExit) as stopped:
        main([*words, *small.split(), "--federation.workers", "1"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert all(f"group-{number}" in said for number in (1, 2, 3))
    (metrics,) = project.glob("runs/*/*/metrics.csv")
    keys = {line.split(",")[1] for line in metrics.read_text().splitlines()}
    assert {"own/moved", "objective/margin/Mass"} <= keys


def test_versions_agree():
    from fedlit import __version__

    assert f'\nversion = "{__version__}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
