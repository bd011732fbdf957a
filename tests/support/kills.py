"""Kills of runs at chosen moments of their training, resumes, and comparisons with an uninterrupted run."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from runs import Command, Kept, Place

from fedlit.federation.callbacks import Callback, FitState
from fedlit.tracking.run import run_above

COMMON = (
    "--data awkward.NoisyData --data.clients 5 --model awkward.Slow --model.seconds 0.01 --model.momentum 0.9 "
    "--federation.optimizer_state keep --federation.aggregators+=Scaffold --federation.aggregators+=FedBN "
    "--federation.participation 0.7 --federation.rounds 10 --federation.checkpoint_every 2 "
    "--callbacks+=kills.Marker --name run"
)
PHASES = """\
phases:
- {name: warm-up, clients: [site-1, site-2], rounds: 5}
- {name: all-together, rounds: 3}
"""


class Marker(Callback):
    """Write that training has begun, and in which processes, so that start-up does not count; again in each phase."""

    marked: Path | None = None

    def on_round_start(self, state: FitState) -> None:
        directory = state.run.directory
        file = (run_above(directory) or directory) / f"training-{os.environ.get('RANK', '0')}.json"
        if self.marked != directory:
            self.marked = directory
            pids = [os.getpid(), *sorted(child.pid for child in multiprocessing.active_children())]
            draft = file.with_suffix(".draft")
            draft.write_text(json.dumps(pids))
            draft.rename(file)


@dataclass(frozen=True)
class Setting:
    """What is killed.

    Attributes:
        name: Its name in the table.
        options: Of the command line, beside those that all have.
        config: A YAML file, or "".
        ranks: Number of processes that a launcher starts.
        targets: What can die: ``group``, all processes at once; ``main``, the first one; ``worker``, the last one.
    """

    name: str
    options: str
    config: str = ""
    ranks: int = 1
    targets: tuple[str, ...] = ("group", "main", "worker")


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("pool", "--federation.workers 2"),
        Setting("ranks", "--fabric.accelerator cpu", ranks=2),
        Setting("phases", "--federation.workers 2", PHASES),
    )
}


@dataclass(frozen=True)
class Outcome:
    """What a kill led to.

    Attributes:
        differs: What is not as in the run that was left alone: tensors and metrics; empty if all is well.
        rounds: Completed rounds in the newest checkpoint at the time of the kill.
        left: Processes and folders in shared memory that the dead left behind when a resumed run has ended.
    """

    differs: list[str]
    rounds: int
    left: list[str]


class Killing:
    """Runs of one setting, in a folder.

    Args:
        setting: What is killed.
        folder: Where the runs go.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder = setting, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(setting.config)

    @cached_property
    def whole(self) -> tuple[Kept, float]:
        """The uninterrupted run, and how many seconds it trains."""
        place = self._place("whole")
        commands = self._start(place)
        self._pids(place, commands)
        began = time.monotonic()
        _expect(commands, {0})
        return place.run("run"), time.monotonic() - began

    def kill(self, target: str, moment: float) -> Outcome | None:
        """Kill a run at a moment of its training, 0 to 1, resume it, and compare.

        Returns:
            What came of it; None where the run had ended before the moment.
        """
        whole, seconds = self.whole
        place = self._place(f"{target}-{moment:.4f}")
        commands = self._start(place)
        self._pids(place, commands)
        time.sleep(moment * seconds)
        pids = self._pids(place, commands)
        folders = [folder for pid in pids for folder in _shared_folders(pid)]
        for pid in {"group": pids, "main": pids[:1], "worker": pids[-1:]}[target]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _expect(commands, {-signal.SIGKILL, 1, 0})
        if commands[0].process.exitcode == 0:  # it had ended, or its workers had done their part
            shutil.rmtree(place.path)
            return None
        kept = place.run("run")
        rounds = max((k.rounds[-1] for k in [kept, *_phases(kept)] if k.rounds), default=0)
        for file in kept.path.glob("training-*.json"):
            file.unlink()
        _expect(self._start(place, f"--ckpt_path {kept.path}"), {0})
        left = [str(pid) for pid in pids if _alive(pid)]
        left += sorted({str(folder) for folder in folders if folder.exists()})
        outcome = Outcome(differences(kept, whole), rounds, left)
        if not outcome.differs:
            shutil.rmtree(place.path)
        return outcome

    def _place(self, name: str) -> Place:
        config = f"--config {self.folder / 'config.yaml'}" if self.setting.config else ""
        return Place(self.folder / name, f"{config} {COMMON} {self.setting.options}")

    def _start(self, place: Place, options: str = "") -> list[Command]:
        return [place.fit(options)] if self.setting.ranks == 1 else place.ranks(options, self.setting.ranks)

    def _pids(self, place: Place, commands: list[Command]) -> list[int]:
        """The processes of a run, the main one first, as soon as all of them train."""
        files = [place.run("run").path / f"training-{rank}.json" for rank in range(self.setting.ranks)]
        deadline = time.monotonic() + 120
        while not all(file.exists() for file in files):
            assert commands[0].process.is_alive(), commands[0].output
            assert time.monotonic() < deadline, commands[0].output
            time.sleep(0.001)
        return [pid for file in files for pid in json.loads(file.read_text())]


def differences(one: Kept, other: Kept) -> list[str]:
    """Return the names of tensors and rows of metrics that differ between two runs, including their phases."""
    found = []
    for mine, theirs in zip([one, *_phases(one)], [other, *_phases(other)], strict=True):
        found += [] if mine.metrics() == theirs.metrics() else [f"{mine.path.name}: metrics.csv"]
        here, there = mine.tensors(), theirs.tensors()
        found += [f"{mine.path.name}: {name}" for name in here.keys() ^ there.keys()]
        found += [f"{mine.path.name}: {n}" for n in here.keys() & there.keys() if not torch.equal(here[n], there[n])]
    return found


def _phases(kept: Kept) -> list[Kept]:
    return [Kept(path) for path in sorted(kept.path.glob("phases/*"))]


def _expect(commands: list[Command], codes: set[int]) -> None:
    for command in commands:
        code = command.wait(120)
        assert code in codes, f"exit code {code}\n{command.output}"


def _shared_folders(pid: int) -> list[Path]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [Path(folder) for folder in re.findall(r"(/dev/shm/fedlit-[\w-]+)/", maps)]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
