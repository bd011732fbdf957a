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
from fedlit.core.system.imports import uncollected

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
