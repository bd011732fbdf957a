"""Models at a site, which the server sends at the end of a run, each in a file of ``fedlit export``.

``STATE/models/RUN.safetensors`` is the model of a run. ``RUN-CLIENT.safetensors`` is the model of a client that keeps a
part of it. They are kept when the states of the run are removed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch import LightningModule
from safetensors.torch import load_file

from fedlit.core.errors import ConfigError
from fedlit.core.measuring import objective_of
from fedlit.core.system.files import private, whole
from fedlit.predictions.export import save_model
from fedlit.predictions.serving import file_notes
from fedlit.sites.envelope import InvalidMessageError
from fedlit.sites.messages import RUN, check_run
from fedlit.sites.policy import PolicyError
from fedlit.sites.recipe import RunPlan
from fedlit.sites.states import StateWriteError, folder_name

FOLDER, SUFFIX = "models", ".safetensors"

ARRIVES = (
    "a model arrives when its run ends, if verbs in the site's file include model, and models in the server's file is "
    "true"
)


def keep(
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


def download(folder: Path, run: str | None, client: str | None, output: Path | None) -> tuple[Path, dict[str, Any]]:
    """Copy a model of a run to a file.

    Args:
        folder: The site's folder of states.
        run: First characters of the run's id. By default the newest run with a model.
        client: Client whose own model is copied; None if there is only one model.
        output: The file. By default one in the working directory, named for the first characters of the run's id.

    Returns:
        The file, and its notes.

    Raises:
        ConfigError: If no run has a model, the characters fit none of them or several, there is no model of the client,
            or there is more than one model and no client.
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
    notes = {file: file_notes(file) for file in files if _run_of(file) == fitting[0]}
    owners = [of_file.get("client") for of_file in notes.values()]
    wanted = [file for file, of_file in notes.items() if client is None or of_file.get("client", client) == client]
    if len(wanted) != 1:
        found = f"no model of client {client!r}" if client else "a model of each client"
        raise ConfigError(
            f"run {fitting[0]}: there is {found}; give --client with one of {', '.join(map(str, owners))}"
        )
    (file,) = wanted
    output = output or Path(f"model-{file.name[:8]}{file.name.removeprefix(fitting[0])}")
    if output.is_dir():
        raise ConfigError(
            f"--output: expected a file such as {output / 'model.safetensors'}, found the folder {output}"
        )
    with whole(output) as draft:
        draft.write_bytes(file.read_bytes())
    return output, notes[file] | {"run": fitting[0]}


def _models(folder: Path) -> list[Path]:
    """Return the files of the models of runs, the oldest first; other files in the folder are the site's own."""
    files = (file for file in (folder / FOLDER).glob(f"*{SUFFIX}") if RUN.match(file.name))
    return sorted(files, key=lambda file: file.stat().st_mtime)


def _run_of(file: Path) -> str:
    return RUN.match(file.name)[0]
