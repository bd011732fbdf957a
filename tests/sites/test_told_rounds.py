"""What happens at a site is reported in the round in which it happens, each time that it does."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from at_sites import Answer, Sites, dying, is_train

from fedlit.sites import server
from fedlit.sites.envelope import Envelope
from fedlit.sites.own_data import OwnData
from fedlit.sites.process import SitesInProcess
from fedlit.sites.server import Evictions, Hosted
from fedlit.sites.transport import NoReply

CLIENT = "site 'site-2', client 'site-1'"


def in_turn(sites: Sites, now: list[str]) -> Callable[[str, Envelope, Answer], bytes]:
    """In rounds 2 to 5 of the second site: its process dies, it is another one, its data change, and change back."""
    left = {1: dying, 2: sites.anew}

    def between(name: str, envelope: Envelope, answer: Answer) -> bytes:
        if is_train(envelope, 3):
            now[:] = ["other"]
        if is_train(envelope, 4):
            now[:] = []
        index = envelope.content["asked"]["index"] if envelope.verb == "train" and name == "site-2" else None
        fault = left.pop(index, None)
        return fault(envelope, answer) if fault else answer(envelope.to_bytes())

    return between


def test_each_event_is_reported_before_the_line_of_its_round(fit, sites, monkeypatch):
    """Each of two deadlines too that are missed one after the other, in rounds 6 and 7."""
    of, now, collect = OwnData.fingerprint, [], SitesInProcess.collect

    def late(transport, tickets):
        asked = {ticket: Envelope.from_bytes(transport._sent[ticket]) for ticket in tickets}
        for ticket, answer in collect(transport, tickets):
            missed = ticket.site == "site-2" and any(is_train(asked[ticket], index) for index in (5, 6))
            yield ticket, NoReply("no reply within the deadline") if missed else answer

    main = sys.modules["fedlit.cli.main"]
    monkeypatch.setattr(main, "_show_warning", lambda message, *place: print(f"warning: {message}"))
    monkeypatch.setattr(OwnData, "fingerprint", lambda data, client: f"{client} {now}" if now else of(data, client))
    monkeypatch.setattr(SitesInProcess, "collect", late)
    sites.between = in_turn(sites, now)
    out = fit("--federation.rounds 8 --federation.monitor train/loss --federation.on_site_error skip").out
    said = [[]]
    for line in out.splitlines():
        if line.startswith("warning: ") and "site 'site-2'" in line:
            said[-1].append(line.removeprefix("warning: "))
        if line.startswith("round "):
            said.append([])
    changed = "its data have changed; from now on its results are for other images or labels"
    assert said == [
        [],
        [f"round 2: {CLIENT} (train): its process died and is being restarted; continuing with 2 of 3"],
        ["round 3: site 'site-2': its process was started again; asking again"],
        [f"round 4: {CLIENT}: {changed}"],
        [f"round 5: {CLIENT}: {changed}"],
        [f"round 6: {CLIENT} (train): no reply within the deadline; continuing with 2 of 3"],
        [f"round 7: {CLIENT} (train): no reply within the deadline; continuing with 2 of 3"],
        [],
        [],
    ], out


@pytest.fixture
def log(tmp_path) -> Path:
    file = tmp_path / "log.txt"
    file.write_text("Connection 1 is evicted for 2 from endpoint south for exceeding limit 1\n")
    return file


def evicted(log: Path, *names: str) -> None:
    with log.open("a") as opened:
        for name in names:
            opened.write(f"INFO - Connection 3 is evicted for [CN2 N/A] from endpoint {name} for exceeding limit 1\n")


def test_connections_that_push_each_other_out_are_counted_by_site(log):
    seen = Evictions(log)
    assert not seen.new(("north", "south"))
    evicted(log, "north", "north", "north.4f2", "east")
    assert seen.new(("north", "south")) == {"north": 2}
    assert not seen.new(("north", "south"))
    log.write_text("")  # a new file in the place of a full one
    evicted(log, "south")
    assert seen.new(("north", "south")) == {"south": 1}
    log.unlink()
    assert not seen.new(("north", "south"))


def test_a_log_that_is_huge_or_hostile_is_read_in_a_moment(log, monkeypatch):
    monkeypatch.setattr(server, "READ", 10_000)
    seen = Evictions(log)
    with log.open("ab") as opened:
        opened.truncate(2**40)  # a file without content that says that it is a terabyte
    evicted(log, "south")
    assert seen.new(("north", "south")) == {"south": 1}
    monkeypatch.undo()
    with log.open("ab") as opened:
        opened.write(b"is evicted for " * 60_000 + b"\xff\x00\n")  # every start of a match, and no end
    evicted(log, "north")
    before = time.process_time()
    assert seen.new(("north", "south")) == {"north": 1}
    assert time.process_time() - before < 5


def test_a_copy_of_a_site_that_is_started_is_reported_to_the_lead(log, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: now[0]))
    transport = SitesInProcess({"north": None})
    hosted = Hosted(tmp_path / "x.json", "one", transport, server=tmp_path / "local" / "x.yaml")

    def lines(seconds: float, evictions: int) -> list[str]:
        now[0] += seconds
        evicted(log, *["north"] * evictions)
        seen = len(hosted.lines.since(0))
        return hosted.progress({"since": seen})["lines"]

    assert lines(0, 0) == lines(1, 1) == lines(1, 1) == []  # as many as a link that breaks brings
    assert lines(server.RECENT, 1) == []
    (line,) = [*lines(50, 1), *lines(50, 1)]
    assert line.startswith("warning: site 'north': another process connects under its name")
    assert lines(1, 1) == []
    assert lines(1, 2) == [line]
