"""The wheel: what is installed from it works in an empty folder, with the configurations that it brings along."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import copy, copytree

import pytest

from fedlit.core.system.shipped import with_shipped

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")

PLAN = """experiment: small
config: [{base}]
set:
  data.images: 60
  data.image_size: 32
  model.backbone: small_cnn
  federation.rounds: 1
  federation.workers: 1
  logger: false
  federation.aggregators: [FedProx]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the content of the wheel, as pip leaves it."""
    source, built, site = (tmp_path_factory.mktemp(name) for name in ("source", "built", "site"))
    for name in FILES:
        copy(ROOT / name, source)
    for name in ("fedlit", "configs"):
        copytree(ROOT / name, source / name)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(built)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


LINES = {
    "fit -c quickstart.yaml --fast_dev_run true --data.images 60 --data.image_size 32 --model.backbone small_cnn":
        "fedlit 0.1.0",
    "sweep --config=configs/sweeps/compare.yaml --dry_run true": "scaffold",
    "reproduce fdam-table6 --dry_run true --seconds_per_step 1": "runs",
    "sweep --config plan.yaml": "small",
}  # fmt: skip
COMMANDS = """
import gc, sys
gc.disable()
import fedlit
from fedlit.cli.main import main

assert fedlit.__file__.startswith(sys.argv[1]), fedlit.__file__
for line in sys.argv[2:]:
    print("typed:", line, flush=True)
    try:
        main(line.split())
    except SystemExit as ended:
        assert not ended.code, line
"""


@pytest.mark.slow
def test_commands_work_in_an_empty_folder(installed, tmp_path):
    """One process of the installed package, in a folder without its source, types them one after the other."""
    (base,) = installed.glob("**/configs/quickstart.yaml")
    (tmp_path / "plan.yaml").write_text(PLAN.format(base=base))
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", COMMANDS, str(installed), *LINES]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = dict(text.split("\n", 1) for text in done.stdout.split("typed: ")[1:])
    assert [line for line, word in LINES.items() if word not in printed[line]] == []
    (result,) = tmp_path.glob("runs/small/*/result.json")
    assert "test/federation/auroc_macro" in json.loads(result.read_text())["metrics"]


@pytest.mark.slow
def test_types_come_along(installed):
    stubs = {path.relative_to(ROOT) for path in (ROOT / "fedlit").rglob("*.pyi")}
    assert [path for path in (*stubs, Path("fedlit/py.typed")) if not (installed / path).exists()] == []


def test_a_local_file_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = str(ROOT / "configs/quickstart.yaml")
    assert with_shipped(["fit", "-c", "quickstart.yaml"])[2] == shipped
    assert with_shipped(["fit", "--config=configs/quickstart.yaml"])[1] == f"--config={shipped}"
    Path("quickstart.yaml").touch()
    assert with_shipped(["fit", "--config", "quickstart.yaml"])[2] == "quickstart.yaml"
    unknown = ["fit", "quickstart.yaml", "-c", "nowhere.yaml", "--name", "tune.yaml", "-c"]
    assert with_shipped(unknown) == unknown


@pytest.mark.parametrize("text", ["", "experiment: " + 5000 * "x", "a\0b"], ids=["empty", "yaml", "null"])
def test_what_is_no_name_of_a_file_is_left_to_the_parser(text):
    assert with_shipped(["fit", "-c", text, f"--config={text}"]) == ["fit", "-c", text, f"--config={text}"]
