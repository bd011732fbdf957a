"""Imports without collecting garbage."""

import subprocess
import sys
from pathlib import Path

import pytest


def printed(code: str, folder: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


OLD = """
import gc
from fedlit.core.imports import uncollected

{before}
with uncollected():
    within, made = gc.isenabled(), [[]]
print(within, gc.isenabled(), any(each is made for each in gc.get_objects(2)), gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("before", "found"),
    [
        ("", ["False", "True", "True", "False"]),
        ("gc.disable()", ["False", "False", "False", "False"]),
        ("gc.freeze()", ["False", "True", "False", "True"]),
    ],
    ids=["as it is", "disabled", "frozen"],
)
def test_what_has_been_imported_is_old_at_once(tmp_path, before: str, found: list[str]):
    assert printed(OLD.format(before=before), tmp_path) == found


def test_large_packages_are_imported_without_collecting_after_fedlit(tmp_path):
    package = tmp_path / "timm"
    package.mkdir()
    (package / "__init__.py").write_text("import gc\nprint('within', gc.isenabled())\n")
    (package / "models.py").write_text("import gc\nprint('models', gc.isenabled())\n")
    code = "import gc, fedlit, importlib.util; importlib.util.find_spec('timm')\n"  # as who asks whether it is there
    code += "import timm, timm.models; print(gc.isenabled(), timm.__spec__.origin)"
    assert printed(code, tmp_path) == ["within", "False", "models", "True", "True", str(package / "__init__.py")]


def test_an_import_that_fails_leaves_collecting_on_and_may_be_tried_again(tmp_path):
    (tmp_path / "timm.py").write_text("import sys\nif not sys.argv[1:]:\n    raise ImportError('not yet')\n")
    code = (
        "import gc, sys, fedlit\ntry:\n    import timm\nexcept ImportError as error:\n    print(error, gc.isenabled())\n"
        "sys.argv.append('now')\nimport timm; print(timm.__name__)"
    )
    assert printed(code, tmp_path) == ["not", "yet", "True", "timm"]


def test_a_package_that_is_not_there_is_missed_as_before(tmp_path):
    code = (
        "import sys, fedlit\nsys.path[:] = [sys.path[0]]\ntry:\n    import mlflow\n"
        "except ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert printed(code, tmp_path) == ["mlflow"]
