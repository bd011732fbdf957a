"""States of old runs at a site go after a time that the site sets, and nothing else does."""

import os
from pathlib import Path

import pytest
import torch

from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientState
from fedlit.data import HeldAtSites
from fedlit.sites.ledger import DAY, Entry, Ledger
from fedlit.sites.settings import SiteSettings
from fedlit.sites.site import Site
from fedlit.sites.states import MissingState, SiteStates, forget

OLD, NEW = "a" * 32, "b" * 32


def kept(folder: Path, run: str, days: float) -> SiteStates:
    """States of a run whose newest file is so many days old."""
    states = SiteStates(folder, run, "", 0)
    states.keep("North", 1, ClientState(0, torch.zeros(0), torch.zeros(0), {}, []), accepted=True)
    for file in [folder / run, *(folder / run).rglob("*")]:
        os.utime(file, (1000 * DAY - days * DAY,) * 2)
    return states


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Ledger(tmp_path).note(Entry(1.0, verb="hello"))
    (tmp_path / "key").write_text("secret")
    (tmp_path / "copy of the states").mkdir()
    os.utime(tmp_path / "copy of the states", (0, 0))
    return tmp_path


def test_states_of_runs_that_have_written_none_for_some_time_are_removed(folder):
    old, new = kept(folder, OLD, 31), kept(folder, NEW, 29)
    (folder / ("c" * 32)).symlink_to(folder / "copy of the states")
    others = {path.name for path in folder.iterdir()} - {OLD}
    assert forget(folder, 30, 1000 * DAY) == [OLD]
    assert {path.name for path in folder.iterdir()} == others
    assert new.read("North", 1) is not None
    with pytest.raises(MissingState, match="restore it from a copy, or go on without what the client has kept so far"):
        old.read("North", 1)


def test_one_new_file_keeps_a_run(folder):
    kept(folder, OLD, 31)
    os.utime(next((folder / OLD).rglob("*.pt")), (1000 * DAY,) * 2)
    assert forget(folder, 30, 1000 * DAY) == []


@pytest.mark.parametrize(("days", "left"), [(None, {OLD, NEW}), (30, {NEW})])
def test_a_site_that_starts_removes_them_where_its_file_says_so(folder, capsys, days, left):
    kept(folder, OLD, 31)
    kept(folder, NEW, 1)
    settings = SiteSettings("north", HeldAtSites(["Edema"]), str(folder), state_days=days)
    Site(settings, now=lambda: 1000 * DAY)
    assert {path.name for path in folder.iterdir() if path.name in (OLD, NEW)} == left
    assert (f"states of run {OLD} are removed after 30 days" in capsys.readouterr().err) == (days == 30)


def test_no_days_are_refused(folder):
    with pytest.raises(ConfigError, match="state_days: expected a number of days above 0, or null, found 0"):
        SiteSettings("north", HeldAtSites(["Edema"]), str(folder), state_days=0)
