"""The states of a site's clients between rounds, in files, where each accepted round counts exactly once.

``STATE/RUN/CLIENT/round-000003.pt`` is a client's state after round 3, which the server has accepted.
``pending-000004.pt`` is the state after round 4, before the site knows if it was accepted. A request for a round names
the state from which it starts: the pending state then becomes the accepted one, or is deleted. A round that is
requested twice therefore starts twice from the same state, and draws the same batches.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedlit.core.checkpoints.stored_states import write_tensors
from fedlit.core.errors import FedlitError
from fedlit.core.messages import ClientState
from fedlit.core.system.files import sync, whole
from fedlit.sites.messages import check_run

FILE = re.compile(r"(round|pending)-(\d{6})\.pt")


class MissingState(FedlitError, ValueError):
    """Error of a state that the server needs and the site does not have."""

    public = "the required state of a client is missing; it may be restored from a copy"


class StateWriteError(FedlitError, ValueError):
    """Error of a file of the site that cannot be written."""

    public = "what the site keeps cannot be written"


@dataclass(frozen=True)
class SiteStates:
    """States of a site's clients in a run.

    ``accepted`` is the round of a client's accepted state, or None if there is none yet. If that state is missing, the
    client starts afresh with ``fresh``.
    """

    folder: Path  # The site's folder of states.
    run: str  # Id of the run.
    aggregators: int  # Number of aggregators of the run.

    def read(self, client: str, accepted: int | None, fresh: bool = False) -> ClientState | None:
        """Read a state, without changing any file; None if the client starts afresh.

        Raises:
            MissingState: If it does not exist, or cannot be read.
        """
        file = self._find(client, accepted, fresh)
        if file is None:
            return None
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
            return ClientState.from_tensors(tensors, self.aggregators)
        except Exception as error:  # torch raises any error for a file that was changed
            raise MissingState(
                f"{file} cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
            ) from error

    def commit(self, client: str, accepted: int | None, durable: Sequence[int], fresh: bool = False) -> None:
        """Commit or delete the pending state, and delete all states but the accepted and the durable ones.

        The durable ones are those of the rounds that the server's checkpoints need.

        Raises:
            MissingState: If the accepted state does not exist.
        """
        self._find(client, accepted, fresh)
        for number in {accepted, *durable} - {None}:
            file, committed = self._file(client, "pending", number), self._file(client, "round", number)
            if file.exists() and not committed.exists():
                file.replace(committed)
                sync(file.parent)
        for kind, number, other in self._files(client):
            if kind == "pending" or (number != accepted and number not in durable):
                other.unlink(missing_ok=True)

    def keep(self, client: str, number: int, state: ClientState, accepted: bool = False) -> None:
        """Write the state after a number of rounds, before the server knows of it.

        Where a client starts afresh it is accepted immediately.

        Raises:
            StateWriteError: If it cannot be written.
        """
        file = self._file(client, "round" if accepted else "pending", number)
        try:
            with whole(file, durable=True) as draft:
                write_tensors(state.tensors(), draft)
                draft.chmod(0o600)
            sync(file.parent)
        except (OSError, RuntimeError) as error:  # torch wraps errors of the disk
            reason = error if isinstance(error, OSError) else error.__context__ or error
            raise StateWriteError(
                f"the state of client {client!r} cannot be written to {file.parent}: "
                f"{getattr(reason, 'strerror', None) or reason}; free disk space there"
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
            f"the state of client {client!r} after round {accepted} is not in "
            f"{self._file(client, 'round', accepted).parent}, which has {', '.join(there) or 'no states'}; restore it "
            "from a copy, or resume with --fresh_state, without what the client has kept so far"
        )

    def _files(self, client: str) -> list[tuple[str, int, Path]]:
        folder = self._file(client, "round", 0).parent
        named = [(FILE.fullmatch(path.name), path) for path in sorted(folder.glob("*.pt"))]
        return [(match[1], int(match[2]), path) for match, path in named if match]

    def _file(self, client: str, kind: str, number: int) -> Path:
        check_run(self.run)
        folder = self.folder / self.run / folder_name(client)
        if not folder.resolve().is_relative_to(self.folder.resolve()):
            raise MissingState(f"{folder} is not in {self.folder}")
        return folder / f"{kind}-{number:06d}.pt"


def folder_name(name: str) -> str:
    """Return a client's name as that of a folder; different clients have different folders."""
    return re.sub(r"[^\w.\- ]+", "_", name.strip()).lstrip(".") or "_"
