"""The folder of a site: the states of its clients between rounds, and models.

``STATE/RUN/CLIENT/round-000003.pt`` is a client's state after round 3, which the server has accepted.
``pending-000004.pt`` is the state after round 4, before the site knows if it was accepted. A request for a round names
the state from which it starts: the pending state then becomes the accepted one, or is deleted. A round that is
requested twice therefore starts twice from the same state, and draws the same batches.

``STATE/models/RUN.safetensors`` is the model of a run, which the server sends at its end, in a file of ``fedlit
export``. ``RUN-CLIENT.safetensors`` is the model of a client that keeps a part of it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule
from safetensors.torch import load_file

from fedlit.core.checkpoints.stored_states import write_tensors
from fedlit.core.errors import ConfigError, FedlitError
from fedlit.core.measuring import objective_of
from fedlit.core.messages import ClientState
from fedlit.core.system.files import private, sync, whole
from fedlit.predictions.export import save_model
from fedlit.predictions.serving import file_notes
from fedlit.sites.envelope import InvalidMessageError
from fedlit.sites.messages import RUN, check_run
from fedlit.sites.plan import RunPlan
from fedlit.sites.policy import PolicyError

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


FOLDER, SUFFIX = "models", ".safetensors"

ARRIVES = (
    "a model arrives when its run ends, if verbs in the site's file include model, and models in the server's file is "
    "true"
)


def keep_model(
    folder: Path,
    run: str,
    client: str | None,
    most: int,
    module: LightningModule,
    plan: RunPlan,
    notes: Mapping[str, Any],
) -> None:
    """Write a client's own model of a run, or the federation's if no client is given, to the site's folder of states.

    Raises:
        PolicyError: If there are models of ``most`` runs already, or another model of this run.
        InvalidMessageError: If a value of the model is NaN.
        StateWriteError: If the file cannot be written.
    """
    check_run(run)
    if len({_run_of(file) for file in _models(folder)} - {run}) >= most:
        raise PolicyError(
            f"there are models of {most} runs in {FOLDER}/ of its folder, as many as limits.models allows; "
            "its administrator may delete some"
        )
    constants = objective_of(module)  # unknown for a class that no client labels
    fixed = set() if constants is None else {id(tensor) for tensor in constants.state_dict(keep_vars=True).values()}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in fixed and tensor.isnan().any():
            raise InvalidMessageError(f"the model's {name}: expected numbers, found NaN")
    config = yaml.safe_dump({"model": plan.model, "fabric": {"precision": plan.precision}}, sort_keys=False)
    file = folder / FOLDER / f"{run if client is None else f'{run}-{folder_name(client)}'}{SUFFIX}"
    try:
        private(file.parent)
        draft = file.with_name(f".{file.name}")
        save_model(module, config, client, notes, draft)
        if file.exists() and not _same_tensors(draft, file):
            draft.unlink()
            raise PolicyError(
                f"there is a model of the run in {FOLDER}/{file.name} of its folder, which is never replaced; its "
                "administrator may move it away"
            )
        draft.chmod(0o600)
        draft.replace(file)
    except OSError as error:
        raise StateWriteError(
            f"the model cannot be written to {file.parent}: {error.strerror or error}; free disk space there"
        ) from error


def _same_tensors(draft: Path, file: Path) -> bool:
    """Return whether two files of models have the same tensors."""
    new, old = load_file(draft), load_file(file)
    same = (
        name in old and old[name].dtype == value.dtype and torch.equal(old[name], value) for name, value in new.items()
    )
    return new.keys() == old.keys() and all(same)


def find_models(folder: Path, run: str | None) -> tuple[str, dict[Path, dict[str, Any]]]:
    """Return the id of a run with a model, and the notes of each of its models, by file.

    Args:
        folder: The site's folder of states.
        run: First characters of the run's id. By default the newest run with a model.

    Raises:
        ConfigError: If no run has a model, or the characters fit none of them or several.
    """
    files = _models(folder)
    runs = list(dict.fromkeys(_run_of(file) for file in reversed(files)))
    if not runs:
        raise ConfigError(f"{folder / FOLDER}: expected the model of a run, found none; {ARRIVES}")
    fitting = runs[:1] if run is None else [each for each in runs if each.startswith(run)]
    if len(fitting) != 1:
        advice = "type more characters" if fitting else ARRIVES
        raise ConfigError(
            f"{folder / FOLDER}: expected the first characters of one run's id, found {run!r}; the runs with a model "
            f"are {', '.join(runs)}; {advice}"
        )
    return fitting[0], {file: file_notes(file) for file in files if _run_of(file) == fitting[0]}


def download_model(
    folder: Path, run: str | None, client: str | None, output: Path | None
) -> tuple[Path, dict[str, Any]]:
    """Copy a model of a run to a file.

    Args:
        folder: The site's folder of states.
        run: As in ``find_models``.
        client: Client whose own model is copied; None if there is only one model.
        output: The file. By default one in the working directory, named for the first characters of the run's id.

    Returns:
        The file, and its notes.

    Raises:
        ConfigError: As in ``find_models``, or there is no model of the client, or more than one model and no client.
    """
    run, notes = find_models(folder, run)
    owners = [of_file.get("client") for of_file in notes.values()]
    wanted = [file for file, of_file in notes.items() if client is None or of_file.get("client", client) == client]
    if len(wanted) != 1:
        found = f"no model of client {client!r}" if client else "a model of each client"
        raise ConfigError(f"run {run}: there is {found}; give --client with one of {', '.join(map(str, owners))}")
    (file,) = wanted
    output = output or Path(f"model-{file.name[:8]}{file.name.removeprefix(run)}")
    if output.is_dir():
        raise ConfigError(
            f"--output: expected a file such as {output / 'model.safetensors'}, found the folder {output}"
        )
    with whole(output) as draft:
        draft.write_bytes(file.read_bytes())
    return output, notes[file] | {"run": run}


def _models(folder: Path) -> list[Path]:
    """Return the files of the models of runs, the oldest first; other files in the folder are the site's own."""
    files = (file for file in (folder / FOLDER).glob(f"*{SUFFIX}") if RUN.match(file.name))
    return sorted(files, key=lambda file: file.stat().st_mtime)


def _run_of(file: Path) -> str:
    return RUN.match(file.name)[0]
