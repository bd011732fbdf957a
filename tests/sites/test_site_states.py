"""States of clients at a site: what a rejected round leaves, and the lines of the pages that remove old ones."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch
from refusals import refused

from fedlit.core.messages import ClientState
from fedlit.sites.ledger import DAY, Ledger, LedgerEntry
from fedlit.sites.storage import MissingState, SiteStates

PAGES = Path(__file__).parents[2] / "fedlit" / "sites"
OLD, NEW = "a" * 32, "b" * 32
JOBS = tuple(f"64fe4ce3-1867-44da-bfd3-51ac4f11bcd{number}" for number in (1, 2))


def aged(path: Path, days: float) -> None:
    for each in [*path.rglob("*"), path]:
        os.utime(each, (time.time() - days * DAY,) * 2)


def cron(page: str, root: Path) -> None:
    """Run the lines of a page for cron, in another folder."""
    lines = re.findall(r"^0 5 \* \* \* (find .*)$", (PAGES / page).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        subprocess.run(re.sub(r"/srv/\w+", str(root), line), shell=True, check=True)


def kept(folder: Path, run: str) -> SiteStates:
    """States of a client of a run."""
    states = SiteStates(folder, run, 0)
    states.keep("North", 1, ClientState(0, torch.zeros(0), torch.zeros(0), {}, []), accepted=True)
    return states


def test_the_pending_state_of_a_rejected_round_is_deleted(tmp_path):
    states = SiteStates(tmp_path, NEW, 0)
    for number, accepted in ((3, True), (4, False), (3, False)):  # round 3 came twice
        state = ClientState(10 * number + accepted, torch.zeros(0), torch.zeros(0), {}, [])
        states.keep("North", number, state, accepted)
    states.commit("North", 3, durable=[])
    assert [file.name for file in tmp_path.rglob("*.pt")] == ["round-000003.pt"]
    assert states.read("North", 3).batches == 31


@pytest.mark.skipif(os.name != "posix", reason="there is no cron")
def test_the_lines_for_cron_remove_old_states_and_jobs_of_a_site_only(tmp_path):
    state = tmp_path / "state"
    old, new = kept(state, OLD), kept(state, NEW)
    Ledger(state).note(LedgerEntry(1.0, verb="hello"))
    names = ("state/models/one", "state/2023/01", "startup", "local", *JOBS)
    others = [tmp_path / name for name in names]
    for each in others:
        each.mkdir(parents=True)
        (each / "a file").write_text("x")
    aged(tmp_path, 400)
    aged(tmp_path / JOBS[1], 364)
    os.utime(state / NEW / "North")  # a round has written a state there
    cron("hospital.md", tmp_path)
    assert [each.exists() for each in others] == [True, True, True, True, False, True]
    assert len((state / "ledger.jsonl").read_text().splitlines()) == 1
    assert new.read("North", 1) is not None
    with refused(MissingState, "restore it from a copy, or resume with --fresh_state,"):
        old.read("North", 1)


@pytest.mark.skipif(os.name != "posix", reason="there is no cron")
def test_the_line_for_cron_removes_old_jobs_of_the_server_only(tmp_path):
    jobs = [tmp_path / "store" / "jobs" / name for name in JOBS]
    for each in (*jobs, tmp_path / "runs"):
        each.mkdir(parents=True)
        (each / "meta").write_text("{}")
    aged(tmp_path, 400)
    aged(jobs[1], 364)
    cron("server.md", tmp_path)
    assert [each.exists() for each in (*jobs, tmp_path / "runs")] == [False, True, True]
