"""Imports of a command before its first output, and their memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ASKED = """
import json, sys
from fedlit.cli.main import main
try:
    main({words!r})
except SystemExit as stopped:
    code = stopped.code
try:
    status = open("/proc/self/status").read()
    peak = int(status.partition("VmHWM:")[2].split()[0])
except OSError:
    peak = None
print(json.dumps([code or 0, sorted(sys.modules), peak]))
"""
"""A script that prints the exit code, the modules, and on Linux the peak of memory in KiB."""

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("no torch here")

sys.meta_path.insert(0, Blocker())
"""

HEAVY = {
    "torch",
    "lightning",
    "numpy",
    "pandas",
    "scipy",
    "matplotlib",
    "torchvision",
    "timm",
    "mlflow",
    "torchmetrics",
}


def answered(words: list[str]) -> tuple[int, set[str], int | None]:
    done = subprocess.run(
        [sys.executable, "-c", ASKED.format(words=words)], capture_output=True, text=True, timeout=120
    )
    code, modules, peak = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules), peak


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["fti"], 2),
        (["--confg", "x.yaml"], 2),
        (["data", "check", "NO_SUCH_FOLDER"], 2),
        (["data", "check", "--help"], 0),
    ],
    ids=["help", "version", "a mistyped command", "a mistyped option", "no folder", "help of data check"],
)
def test_what_needs_no_model_imports_no_pytorch(words, code):
    found, modules, peak = answered(words)
    assert found == code
    assert not HEAVY & modules
    assert peak is None or peak < 60 * 1024


@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["fit", "--federation.round", "3"], 2, id="a mistyped option", marks=pytest.mark.slow),
        pytest.param(["list"], 0, id="list", marks=pytest.mark.slow),
    ],
)
def test_what_takes_classes_imports_no_more_than_they_need(words, code):
    found, modules, _ = answered(words)
    assert found == code
    assert "lightning" in modules
    assert not {"mlflow", "sklearn", "pydicom", "fedlit.tracking.figures"} & modules
    reports = {name for name in modules if name.startswith("fedlit.reports.")}
    assert reports <= {"fedlit.reports.table"}  # which commands print, and which needs only rich


def test_a_look_at_data_imports_no_pytorch(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(tmp_path / "images" / "1.png")
    (tmp_path / "Data_Entry_2017.csv").write_text("Image Index,Finding Labels,Patient ID\n1.png,Mass,1\n")
    found, modules, _ = answered(["data", "check", str(tmp_path)])
    assert found == 0
    assert "pandas" in modules
    assert not (HEAVY - {"numpy", "pandas"}) & modules


@pytest.mark.parametrize("command", ["check", "ledger", "model"])
def test_the_wrong_path_of_a_site_is_refused_without_pytorch(command):
    code, modules, _ = answered(["site", command, "NO_SUCH_FOLDER"])
    assert code == 1
    assert not {"torch", "lightning"} & modules


def test_fit_says_that_it_starts_before_it_imports_pytorch():
    """The first line is printed immediately."""
    blocked = BLOCKED + ASKED.format(words=["fit"])
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("fedlit ")
    assert "no torch here" in done.stderr


def test_the_package_alone_imports_no_pytorch_and_names_what_it_has():
    asked = (
        "import fedlit, sys; print('fit' in dir(fedlit), sorted({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "[]"], done.stderr


def test_the_numbers_of_torchvisions_transforms_are_written_to_the_config(tmp_path):
    """In a new process: other tests import modules that a command does not."""
    turn = "[{class_path: torchvision.transforms.v2.RandomRotation, init_args: {degrees: 10}}]"
    words = ["fit", "--data", "CIFAR10", "--data.root", ".", "--data.augment", turn, "--print_config"]
    command = [sys.executable, "-m", "fedlit", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    (written,) = [line.strip() for line in done.stdout.splitlines() if "degrees" in line]
    assert written == "degrees: 10"
