"""The files of models at a site, found by run without importing PyTorch.

``STATE/models/RUN.safetensors`` is the model of a run. ``RUN-CLIENT.safetensors`` is the model of a client that keeps a
part of it. They are kept when the states of the run are removed.
"""

from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.sites.messages import RUN

FOLDER, SUFFIX = "models", ".safetensors"

ARRIVES = (
    "a model arrives when its run ends, if verbs in the site's file include model, and models in the server's file is "
    "true"
)


def model_files(folder: Path) -> list[Path]:
    """Return the files of the models of runs, the oldest first; other files in the folder are the site's own."""
    files = (file for file in (folder / FOLDER).glob(f"*{SUFFIX}") if RUN.match(file.name))
    return sorted(files, key=lambda file: file.stat().st_mtime)


def run_of(file: Path) -> str:
    """Return the id of the run of a model's file."""
    return RUN.match(file.name)[0]


def files_of_run(folder: Path, run: str | None) -> list[Path]:
    """Return the files of the models of the run whose id begins with ``run``; by default the newest with a model.

    Raises:
        ConfigError: If no run has a model, or if the characters fit none of them or several.
    """
    files = model_files(folder)
    runs = list(dict.fromkeys(run_of(file) for file in reversed(files)))
    if not runs:
        raise ConfigError(f"{folder / FOLDER}: expected the model of a run, found none; {ARRIVES}")
    fitting = runs[:1] if run is None else [each for each in runs if each.startswith(run)]
    if len(fitting) != 1:
        advice = "type more characters" if fitting else ARRIVES
        raise ConfigError(
            f"{folder / FOLDER}: expected the first characters of one run's id, found {run!r}; the runs with a model "
            f"are {', '.join(runs)}; {advice}"
        )
    return [file for file in files if file.name.startswith(fitting[0])]
