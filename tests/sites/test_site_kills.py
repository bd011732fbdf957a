"""Killed between any two writes: a site, the server, or both; the run that comes of it is the one without kills.

What writes is counted, and the n-th write never happens, nor anything after it in that process. Every n has its turn
after which the files, or the messages that came before, are others. So each state of the files is met once, at its last
moment: a temporary file lies there that would have taken a name. Of the server's, the sites die with it at every second
one.
"""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from at_sites import TOYS, Answer, Ended, Sites, assert_same, finished, remembering

from fedlit.experiment.parser import Parser
from fedlit.sites import experiment, own_data
from fedlit.sites.envelope import Envelope
from fedlit.sites.process import SiteCrashed
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.lock import HOLDER, LOCK

OPTIONS = (
    "--federation.rounds 3 --federation.aggregators='[Scaffold, FedBN]' --federation.participation 0.7 "
    "--federation.checkpoint_every 2 --federation.eval_every 2 --federation.monitor train/loss "
    "--federation.monitor_mode max --data.clients 3 --ckpt_path last"
)
"""The second round is best: its checkpoint lies behind the sites."""

SERVER = "server"
NOT_COUNTED = (LOCK, HOLDER, "leaves_a_site")
"""What keeps other processes away, which the system lets go of, and the ledger, of which nothing depends."""


@dataclass
class Killing:
    """Counts writes, and kills before one of them.

    Attributes:
        who: ``server``, or a site's name; "" kills nobody.
        before: Number of the write.
        writes: How many there were of each.
        dead: Whether it has been done: the process writes nothing any more.
        over: Whether it was done, and whoever it was lives again.
        folder: Where all of them write; "" looks at no files.
        messages: How many the server has sent.
        states: What was there before each write: the number of messages, and the files.
    """

    who: str = ""
    before: int = 0
    writes: dict[str, int] = field(default_factory=dict)
    dead: bool = False
    over: bool = False
    now: str = SERVER
    folder: Path | str = ""
    messages: int = 0
    states: dict[str, list[object]] = field(default_factory=lambda: defaultdict(list))

    def write(self) -> None:
        if self.over:
            return
        if self.dead and self.now == self.who:
            raise SiteCrashed
        number = self.writes[self.now] = self.writes.get(self.now, 0) + 1
        if self.folder:
            self.states[self.now].append((self.messages, files(self.folder)))
        if (self.now, number) == (self.who, self.before):
            self.dead = True
            raise SiteCrashed

    def between(self, name: str, envelope: Envelope, answer: Answer) -> bytes:
        """A site's turn; its reply is one more thing that may never happen."""
        self.now = name
        self.messages += 1
        try:
            reply = answer(envelope.to_bytes())
            self.write()
            return reply
        finally:
            self.now = SERVER
            if self.dead and self.who == name:
                self.over = True

    @contextmanager
    def watched(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        def before(function: Callable) -> Callable:
            def counted(*args, **options):
                if not any(word in str(args[0]) for word in NOT_COUNTED):
                    self.write()
                return function(*args, **options)

            return counted

        with patch.context() as patched:
            for owner, name in ((os, "replace"), (os, "unlink"), (os, "rename"), (os, "link"), (os, "mkdir"),
                                (shutil, "rmtree"), (MetricsFile, "append")):  # fmt: skip
                patched.setattr(owner, name, before(getattr(owner, name)))
            yield


def files(folder: Path | str) -> set[tuple[str, int, int]]:
    """Every file and folder by its path, with the time of its last change and its size.

    Without the ledgers, and without temporary files, which nobody reads.
    """
    paths = [path for path in Path(folder).rglob("*") if "ledger.jsonl" not in path.name and path.suffix != ".tmp"]
    return {(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.is_file()} | {
        (str(path), 0, 0) for path in paths
    }


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Ended:
    """The run without sites that all others must equal."""
    path = tmp_path_factory.mktemp("here")
    finished(f"{TOYS} {OPTIONS} --run_dir {path}")
    return Ended(path)


def played(fedlit_cli, sites: Sites, patch: pytest.MonkeyPatch, path: Path, killing: Killing, surviving: bool) -> Ended:
    """A run, gone on with after its server has died."""
    line = f"{TOYS} {OPTIONS} --run_dir {path} --sites loopback:2"
    sites.between, sites.surviving = killing.between, surviving
    patch.setattr(tempfile, "tempdir", str(path.parent))  # a dead process leaves its temporary folder
    with killing.watched(patch):
        try:
            code, _, err = fedlit_cli(line)
        except SiteCrashed:
            killing.over, killing.now = True, SERVER
            code, _, err = fedlit_cli(line)
    assert code == 0, err
    return Ended(path)


@pytest.fixture(scope="module")
def writes(tmp_path_factory) -> dict[str, list[int]]:
    """The numbers of the writes in a run without kills after which something has changed, and the last of all."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("counted")
        sites, killing = Sites(), Killing(folder=folder)
        patch.setattr(experiment, "Processes", sites.transport)
        patch.setattr(tempfile, "tempdir", str(folder))
        sites.between = killing.between
        with killing.watched(patch):
            finished(f"{TOYS} {OPTIONS} --run_dir {folder / 'runs'} --sites loopback:2")
        return {
            who: [n for n, state in enumerate(states, 1) if n == len(states) or state != states[n]]
            for who, states in killing.states.items()
        }


@pytest.mark.parametrize(("who", "share"), [("site-1", 0.3), (SERVER, 0.8)])
def test_killed_between_two_writes(fedlit_cli, sites, monkeypatch, tmp_path, here, writes, who, share):
    killing = Killing(who, writes[who][int(share * len(writes[who]))])
    ended = played(fedlit_cli, sites, monkeypatch, tmp_path, killing, surviving=False)
    assert killing.dead
    assert_same(ended, here)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("who", ["site-1", SERVER])
def test_killed_in_every_interval_between_two_writes(fedlit_cli, monkeypatch, tmp_path, here, writes, who):
    """All runs have the same path, so that their command line and the files of their sites are parsed once."""
    remembering(monkeypatch, Parser, "parse_args")
    remembering(monkeypatch, own_data, "settings_of")
    assert len(writes[who]) > 20
    for number, before in enumerate(writes[who]):
        sites = Sites()
        monkeypatch.setattr(experiment, "Processes", sites.transport)
        path, killing = tmp_path / "runs", Killing(who, before)
        ended = played(fedlit_cli, sites, monkeypatch, path, killing, surviving=number % 2 == 1)
        assert killing.dead or before > writes[who][-1] - 5  # a folder that the first run of a process makes
        assert_same(ended, here)
        shutil.rmtree(path)
