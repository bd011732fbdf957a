"""States of old runs and folders of old jobs are removed after a time that the file sets, and nothing else is."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
import yaml
from certificates import Authority, packed
from refusals import refused

from fedlit.core.errors import ConfigError
from fedlit.core.messages import ClientState
from fedlit.data import HeldAtSites
from fedlit.sites import serving
from fedlit.sites.hosting import Hosted
from fedlit.sites.ledger import DAY, Ledger, LedgerEntry
from fedlit.sites.loopback import SitesInProcess
from fedlit.sites.retention import forget, holds_states
from fedlit.sites.settings import SiteSettings
from fedlit.sites.site import ResidentSite
from fedlit.sites.states import MissingState, SiteStates
from fedlit.sites.submitted import ServerSettings

OLD, NEW = "a" * 32, "b" * 32


def kept(folder: Path, run: str, days: float) -> SiteStates:
    """States of a run whose newest file is so many days old."""
    states = SiteStates(folder, run, 0)
    states.keep("North", 1, ClientState(0, torch.zeros(0), torch.zeros(0), {}, []), accepted=True)
    for file in [folder / run, *(folder / run).rglob("*")]:
        os.utime(file, (1000 * DAY - days * DAY,) * 2)
    return states


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Ledger(tmp_path).note(LedgerEntry(1.0, verb="hello"))
    (tmp_path / "key").write_text("secret")
    (tmp_path / "copy of the states").mkdir()
    os.utime(tmp_path / "copy of the states", (0, 0))
    return tmp_path


def test_states_of_runs_that_have_written_none_for_some_time_are_removed(folder):
    old, new = kept(folder, OLD, 31), kept(folder, NEW, 29)
    (folder / ("c" * 32)).symlink_to(folder / "copy of the states")
    patient = folder / ("d" * 32)  # images of a patient, in a folder that is named by a hash
    (patient / "series").mkdir(parents=True)
    (patient / "series" / "1.dcm").write_text("image")
    for path in (patient, *patient.rglob("*")):
        os.utime(path, (0, 0))
    others = {path.name for path in folder.iterdir()} - {OLD}
    assert forget(folder, 30, 1000 * DAY, holds_states) == [OLD]
    assert {path.name for path in folder.iterdir()} == others
    assert new.read("North", 1) is not None
    with refused(MissingState, "restore it from a copy, or resume with --fresh_state,"):
        old.read("North", 1)


def test_the_pending_state_of_a_rejected_round_is_deleted(tmp_path):
    states = SiteStates(tmp_path, NEW, 0)
    for number, accepted in ((3, True), (4, False), (3, False)):  # round 3 came twice
        state = ClientState(10 * number + accepted, torch.zeros(0), torch.zeros(0), {}, [])
        states.keep("North", number, state, accepted)
    states.commit("North", 3, durable=[])
    assert [file.name for file in tmp_path.rglob("*.pt")] == ["round-000003.pt"]
    assert states.read("North", 3).batches == 31


def test_one_new_file_keeps_a_run(folder):
    kept(folder, OLD, 31)
    os.utime(next((folder / OLD).rglob("*.pt")), (1000 * DAY,) * 2)
    assert forget(folder, 30, 1000 * DAY, holds_states) == []


def test_a_symbolic_link_in_old_states_does_not_lead_out_of_them(folder):
    kept(folder, OLD, 31)
    linked = folder / OLD / "South"
    linked.symlink_to(folder / "copy of the states")
    os.utime(linked, (0, 0), follow_symlinks=False)
    os.utime(linked.parent, (0, 0))
    assert forget(folder, 30, 1000 * DAY, holds_states) == []  # fedlit makes no links
    assert (folder / "copy of the states").exists()


def test_states_that_cannot_be_removed_are_reported_and_the_site_starts(folder, monkeypatch):
    kept(folder, OLD, 31)

    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", denied)
    settings = SiteSettings("north", HeldAtSites(["Edema"]), str(folder), state_days=30)
    with pytest.warns(UserWarning, match=rf"{OLD}: is older than 30 days and cannot be removed \(Permission denied\)"):
        ResidentSite(settings, now=lambda: 1000 * DAY)


@pytest.mark.parametrize(("days", "left"), [(None, {OLD, NEW}), (30, {NEW})])
def test_a_site_that_starts_removes_them_where_its_file_says_so(folder, capsys, days, left):
    kept(folder, OLD, 31)
    kept(folder, NEW, 1)
    settings = SiteSettings("north", HeldAtSites(["Edema"]), str(folder), state_days=days)
    ResidentSite(settings, now=lambda: 1000 * DAY)
    assert {path.name for path in folder.iterdir() if path.name in (OLD, NEW)} == left
    assert (f"removed the states of run {OLD} after 30 days" in capsys.readouterr().err) == (days == 30)


def test_no_days_are_refused(folder):
    with refused(ConfigError, "found 0"):
        SiteSettings("north", HeldAtSites(["Edema"]), str(folder), state_days=0)


def of_a_job(folder: Path, number: int, days: float, name: str, content: str) -> Path:
    """A folder of a job of NVFlare whose newest file is so many days old, with a file of NVFlare."""
    job = folder / f"64fe4ce3-1867-44da-bfd3-51ac4f11bcd{number}"
    (job / "app_north").mkdir(parents=True)
    (job / "log.txt").write_text("a round")
    (job / name).write_text(content)
    for file in (job, *job.rglob("*")):
        os.utime(file, (time.time() - days * DAY,) * 2)
    return job


@pytest.mark.parametrize("days", [None, 30])
def test_a_site_that_starts_removes_folders_of_old_jobs(tmp_path, days):
    packed(tmp_path, authority := Authority(), authority.pair("north"), 8002)
    old, new = (of_a_job(tmp_path, age % 10, age, "fl_app.txt", "app_site") for age in (31, 29))
    other = of_a_job(tmp_path, 5, 31, "notes.txt", "a folder of the hospital")
    file = tmp_path / "local" / "fedlit-site.yaml"
    file.parent.mkdir()
    data = {"class_path": "toys.ToyData"}
    file.write_text(yaml.safe_dump({"name": "north", "data": data, "state": "state", "state_days": days}))
    serving.answering(file)
    assert (old.exists(), new.exists(), other.exists()) == (days is None, True, True)
    assert (tmp_path / "startup").exists()
    assert file.exists()


@pytest.mark.parametrize("days", [None, 30])
def test_a_job_at_the_server_removes_copies_of_old_jobs_that_have_ended(tmp_path, days):
    jobs = tmp_path / "store" / "jobs"
    old, new = (of_a_job(jobs, age % 10, age, "meta", '{"status": "FINISHED:COMPLETED"}') for age in (31, 29))
    running = of_a_job(jobs, 5, 31, "meta", '{"status": "RUNNING"}')
    other = of_a_job(jobs, 6, 31, "meta", "not NVFlare's")
    file = tmp_path / "local" / "fedlit-server.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump({"home": str(tmp_path), "job_days": days}))
    Hosted(tmp_path / "none.json", "", "one", SitesInProcess({}), server=file).train()
    assert (old.exists(), new.exists()) == (days is None, True)
    assert running.exists()
    assert other.exists()


def test_no_days_are_refused_at_the_server(tmp_path):
    (tmp_path / "fedlit-server.yaml").write_text("job_days: 0")
    with refused(ConfigError, "found 0"):
        ServerSettings.read(tmp_path / "fedlit-server.yaml")
