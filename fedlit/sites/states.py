"""What a site keeps of its clients between rounds: in files of its own, and exactly once.

``STATE/RUN/PHASE/CLIENT/round-000003.pt`` is a client's state after round 3, as the server has accepted it, and
``pending-000004.pt`` is that after round 4, of which the site does not know yet. Whoever asks for a round names the
state from which it starts: a pending state becomes the accepted one by that, or goes. So a round that is asked for
twice begins twice with the same state, and draws the same batches.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedlit.core.checkpoints.stored_states import write_tensors
from fedlit.core.messages import ClientState
from fedlit.core.system.files import sync, whole
from fedlit.sites.ledger import DAY
from fedlit.sites.messages import RUN, check_run

FILE = re.compile(r"(round|pending)-(\d{6})\.pt")

JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names of the folders in which NVFlare keeps its jobs."""


class MissingState(ValueError):
    """The state that the server wants is not here."""

    public = "the state of a client that is wanted is not there; it may be restored from a copy"


class NotKept(ValueError):
    """The state after a round cannot be written."""

    public = "what the site keeps cannot be written"


def forget(folder: Path, days: float, now: float, named: re.Pattern[str] = RUN) -> list[str]:
    """Remove the folders of runs, or of jobs, in which nothing has been written for some time.

    A run whose states are removed can only be resumed with ``fresh``.

    Args:
        folder: The site's folder of states, or a folder of NVFlare's jobs.
        days: Days since the newest file was written.
        now: Seconds since 1970.
        named: Pattern of the names of the folders that may be removed: `RUN` or `JOB`.

    Returns:
        The names of the removed folders.
    """
    forgotten = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not named.fullmatch(entry.name) or entry.is_symlink() or not entry.is_dir():
            continue
        newest = max(file.lstat().st_mtime for file in (entry, *entry.rglob("*")))
        if now - newest > days * DAY:
            shutil.rmtree(entry)
            forgotten.append(entry.name)
    return forgotten


@dataclass(frozen=True)
class SiteStates:
    """The states of a site's clients in one phase of one run.

    Args:
        folder: The site's folder of states.
        run: The run, by its id.
        phase: The phase; "" for the main part.
        aggregators: How many the phase has.
    """

    folder: Path
    run: str
    phase: str
    aggregators: int

    def read(self, client: str, accepted: int | None, fresh: bool = False) -> ClientState | None:
        """Read a state, and leave every file as it is.

        Args:
            client: Whose.
            accepted: Round after which the server has accepted it; None where there is none yet.
            fresh: Whether the client starts afresh where the state is missing.

        Returns:
            The state; None where the client starts afresh.

        Raises:
            MissingState: It is not here, or cannot be read.
        """
        file = self._find(client, accepted, fresh)
        if file is None:
            return None
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
            return ClientState.from_tensors(tensors, self.aggregators)
        except Exception as error:  # whatever torch raises of a file that somebody has changed
            raise MissingState(
                f"{file} cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
            ) from error

    def settle(self, client: str, accepted: int | None, durable: Sequence[int], fresh: bool = False) -> None:
        """Learn what the server has accepted: the pending state becomes the client's own or goes, and so do others.

        Kept are the accepted state, and those to which a checkpoint of the server goes back.

        Args:
            client: Whose.
            accepted: Round of the state that the server has accepted; None where there is none yet.
            durable: Rounds of the states of the server's checkpoints.
            fresh: Whether the client starts afresh where the state is missing.

        Raises:
            MissingState: The accepted state is not here.
        """
        self._find(client, accepted, fresh)
        for number in {accepted, *durable} - {None}:
            file, own = self._file(client, "pending", number), self._file(client, "round", number)
            if file.exists() and not own.exists():
                file.replace(own)
                sync(file.parent)
        for kind, number, other in self._files(client):
            if kind == "pending" or (number != accepted and number not in durable):
                other.unlink(missing_ok=True)

    def keep(self, client: str, number: int, state: ClientState, accepted: bool = False) -> None:
        """Write the state after a round, of which the server has not heard yet.

        Args:
            client: Whose.
            number: Completed rounds.
            state: The state.
            accepted: Whether it is the client's own at once, as at the start of a phase.

        Raises:
            NotKept: It cannot be written.
        """
        file = self._file(client, "round" if accepted else "pending", number)
        try:
            with whole(file, durable=True) as draft:
                write_tensors(state.tensors(), draft)
                draft.chmod(0o600)
            sync(file.parent)
        except (OSError, RuntimeError) as error:  # torch wraps what the disk says
            reason = error if isinstance(error, OSError) else error.__context__ or error
            raise NotKept(
                f"the state of client {client!r} cannot be written to {file.parent}: "
                f"{getattr(reason, 'strerror', None) or reason}; make room there"
            ) from error

    def _find(self, client: str, accepted: int | None, fresh: bool) -> Path | None:
        if accepted is None:
            return None
        for kind in ("round", "pending"):
            file = self._file(client, kind, accepted)
            if file.exists():
                return file
        if fresh:
            return None
        there = [f"{kind} {number}" for kind, number, _ in self._files(client)]
        raise MissingState(
            f"the state of client {client!r} after round {accepted} is not in {self._file(client, 'round', accepted).parent}, "
            f"where there {'is ' + ', '.join(there) if there else 'is none'}; restore it from a copy, or go on without what the "
            "client has kept so far"
        )

    def _files(self, client: str) -> list[tuple[str, int, Path]]:
        folder = self._file(client, "round", 0).parent
        found = [(FILE.fullmatch(path.name), path) for path in sorted(folder.glob("*.pt"))]
        return [(match[1], int(match[2]), path) for match, path in found if match]

    def _file(self, client: str, kind: str, number: int) -> Path:
        check_run(self.run)
        folder = self.folder / self.run / folder_name(self.phase or "main part") / folder_name(client)
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise MissingState(f"{folder} is not in {self.folder}")
        return folder / f"{kind}-{number:06d}.pt"


def folder_name(name: str) -> str:
    """Give a name as that of a folder: names of clients are different as such."""
    return re.sub(r"[^\w.\- ]+", "_", name.strip()).lstrip(".") or "_"
