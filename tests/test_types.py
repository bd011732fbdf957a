"""The types of the classes and functions that a user's code imports."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from fedlit.aggregators import Aggregator
from fedlit.federation.settings import Options, Settings

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_public_packages_and_a_users_project_type_check():
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    command = [sys.executable, "-m", "mypy", "--cache-dir", os.devnull]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout


def test_the_options_of_fit_are_the_settings_without_those_of_a_yaml_file_and_sites():
    shown, settings = get_type_hints(Options), get_type_hints(Settings)
    assert settings.keys() - shown.keys() == {"clients", "quorum", "deadline", "on_site_error"}
    assert {name: settings[name] for name in shown} == shown | {"aggregators": list[Aggregator] | None}
