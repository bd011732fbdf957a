"""Files that are added to a run in MLflow after its end."""

from collections.abc import Sequence
from pathlib import Path

from fedlit.tracking.addresses import absent
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.store import cause, connect


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
