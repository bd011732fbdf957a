"""Imports of a command before its first output, and their memory."""

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ASKED = """
import gc, json, sys
gc.disable()
import fedlit
from fedlit.cli.main import main
assert "fit" in dir(fedlit)
codes = []
for words in {lines!r}:
    try:
        main(words)
    except SystemExit as stopped:
        codes.append(stopped.code or 0)
try:
    status = open("/proc/self/status").read()
    peak = int(status.partition("VmHWM:")[2].split()[0])
except OSError:
    peak = None
print(json.dumps([codes, sorted(sys.modules), peak]))
"""
"""A script that prints the exit code of each command, the modules, and on Linux the peak of memory in KiB."""

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("no torch here")

sys.meta_path.insert(0, Blocker())
"""

HEAVY = {"torch", "lightning", "numpy", "pandas", "scipy", "matplotlib", "torchvision", "timm", "mlflow"}


def answered(*lines: str, shows: str = "") -> tuple[list[int], set[str], int | None]:
    script = ASKED.format(lines=[shlex.split(line) for line in lines])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert shows in done.stdout
    codes, modules, peak = json.loads(done.stdout.splitlines()[-1])
    return codes, set(modules), peak


def test_the_package_and_what_needs_no_model_import_no_pytorch():
    of_data = ("data check NO_SUCH_FOLDER", "data check --help")
    codes, modules, peak = answered("--help", "--version", "fti", "--confg x.yaml", *of_data)
    assert codes == [0, 0, 2, 2, 2, 0]
    assert not HEAVY & modules
    assert peak is None or peak < 60 * 1024


@pytest.mark.slow
def test_what_takes_classes_imports_no_more_than_they_need():
    turn = "'[{class_path: torchvision.transforms.v2.RandomRotation, init_args: {degrees: 10}}]'"
    printed = f"fit --data CIFAR10 --data.root . --data.augment {turn} --print_config"
    codes, modules, _ = answered(printed, "fit --federation.round 3", "list", shows="      degrees: 10\n")
    assert codes == [0, 2, 0]
    assert "lightning" in modules
    assert not {"mlflow", "sklearn", "pydicom", "fedlit.tracking.figures"} & modules
    reports = {name for name in modules if name.startswith("fedlit.reports.")}
    assert reports <= {"fedlit.reports.table"}  # which commands print, and which needs only rich


def test_a_look_at_data_imports_no_pytorch(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(np.zeros((20, 20), np.uint8)).save(tmp_path / "images" / "1.png")
    (tmp_path / "Data_Entry_2017.csv").write_text("Image Index,Finding Labels,Patient ID\n1.png,Mass,1\n")
    codes, modules, _ = answered(f"data check {tmp_path}")
    assert codes == [0]
    assert "pandas" in modules
    assert not (HEAVY - {"numpy", "pandas"}) & modules


def test_wrong_paths_of_a_site_and_the_list_of_reproductions_need_no_pytorch():
    of_sites = (f"site {command} NO_SUCH_FOLDER" for command in ("check", "ledger", "model"))
    codes, modules, _ = answered(*of_sites, "list reproductions")
    assert codes == [1, 1, 1, 0]
    assert not {"torch", "lightning", "pandas", "matplotlib", "mlflow"} & modules


def test_fit_says_that_it_starts_before_it_imports_pytorch():
    """The first line is printed immediately."""
    blocked = BLOCKED + ASKED.format(lines=[["fit"]])
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("fedlit ")
    assert "no torch here" in done.stderr
