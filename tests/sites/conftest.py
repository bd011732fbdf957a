"""Sites in the process of the test."""

from collections.abc import Callable
from pathlib import Path

import pytest
from at_sites import TOYS, Ended, Sites, assert_same
from attacker import AttackerHere, write_site
from refusals import Printed

from fedlit.sites import experiment


@pytest.fixture
def sites(monkeypatch) -> Sites:
    made = Sites()
    monkeypatch.setattr(experiment, "Processes", made.transport)
    return made


@pytest.fixture
def attack(tmp_path: Path) -> Callable[..., AttackerHere]:
    """A function that starts a site with keys of its policy changed."""
    return lambda name="north", **policy: AttackerHere(write_site(tmp_path / name, **policy))


@pytest.fixture
def ran(fedlit_cli) -> Callable[[str], Printed]:
    """A function that runs a command line, which has to succeed; returns the output."""

    def run(line: str) -> Printed:
        ended = fedlit_cli(line)
        assert ended.code == 0, ended.err
        return ended

    return run


@pytest.fixture
def fit(fedlit_cli, sites, tmp_path: Path) -> Callable[..., Printed]:
    """A function that trains the toys, with their clients at so many sites, or here for 0 sites; returns the output."""

    def run(options: str = "", number: int = 3, path: str = "", code: int | None = 0) -> Printed:
        where = f"--sites loopback:{number}" if number else ""
        ended = fedlit_cli(f"{TOYS} {options} --run_dir {tmp_path / path} {where}")
        assert code in (None, ended.code), ended.err
        return ended

    return run


@pytest.fixture
def same_as_here(fit, tmp_path: Path) -> Callable[..., None]:
    """A function that trains the toys at sites and here, and compares the two bit for bit."""

    def run(options: str, number: int = 3) -> None:
        fit(options, number, "there")
        fit(options, 0, "here")
        assert_same(Ended(tmp_path / "there"), Ended(tmp_path / "here"))

    return run
