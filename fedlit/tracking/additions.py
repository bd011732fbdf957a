"""Files that are added to a run in MLflow after its end."""

import json
from collections.abc import Sequence
from pathlib import Path

from fedlit.tracking.addresses import absent, without_credentials
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.store import cause, connect


def noted_run(directory: Path, tracking_uri: str | None = None) -> tuple[str, str] | None:
    """Return the store and the id of a directory's run in MLflow, or None if it has none.

    ``tracking_uri`` replaces the same store without credentials, as which the directory contains it.
    """
    try:
        note = json.loads((directory / "mlflow_run.json").read_text())
        store, run_id = note["tracking_uri"], note["run_id"]
    except (OSError, ValueError, KeyError):  # a run without MLflow, or one that ended before MLflow answered
        return None
    return (tracking_uri if tracking_uri and without_credentials(tracking_uri) == store else store), run_id


def add_files(uri: str, run_id: str, files: Sequence[Path], folder: str) -> str | None:
    """Add files to a folder of a run's artifacts; return the reason if this fails, else None."""
    if not prepare():
        return "the package mlflow is not installed"
    if missing := absent(uri):
        return missing
    try:
        client = connect(uri)
        for file in files:
            client.log_artifact(run_id, str(file), folder)
    except Exception as error:
        return cause(error, uri)
    return None
