"""Removal of a run from MLflow."""

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from fedlit.core.errors import ConfigError
from fedlit.tracking.addresses import absent, without_credentials
from fedlit.tracking.mlflow import prepare
from fedlit.tracking.names import IS_PARENT
from fedlit.tracking.store import PARENT_ID, cause, connect, error_code, noted_run

OTHERWISE = "repeat the command when it answers, name the store with --tracking_uri, or delete the folder by hand"


def remove_from_mlflow(directory: Path, tracking_uri: str | None = None) -> str:
    """Delete the MLflow run of a run directory, and its artifacts if they are on this machine.

    MLflow keeps deleted runs in its database until ``mlflow gc``. A parent run without other runs is deleted as well.

    Returns:
        The end of a sentence on what was deleted; "" if the run has no MLflow run.

    Raises:
        ConfigError: MLflow is not installed or cannot be reached.
    """
    if (noted := noted_run(directory)) is None:
        return ""
    uri, run_id = tracking_uri or noted[0], noted[1]
    if not prepare():
        raise ConfigError(f"{directory}: its MLflow run needs the package mlflow; install it, or delete the folder")
    if missing := absent(uri):
        raise ConfigError(f"{directory}: MLflow at {without_credentials(uri)}: {missing}; {OTHERWISE}")
    try:
        return _delete(connect(uri), run_id)
    except Exception as error:
        if error_code(error) == "RESOURCE_DOES_NOT_EXIST":
            return "; MLflow no longer had it"
        reason = f"MLflow at {without_credentials(uri)}: {cause(error, uri)}"
        raise ConfigError(f"{directory}: {reason}; {OTHERWISE}") from error


def _delete(client: Any, run_id: str) -> str:
    run = client.get_run(run_id)
    if run.info.lifecycle_stage == "active":
        client.delete_run(run_id)
    place = urlparse(run.info.artifact_uri)
    if local := place.scheme == "file":
        shutil.rmtree(Path(url2pathname(place.path)), ignore_errors=True)
    parent = run.data.tags.get(PARENT_ID)
    if parent is not None and IS_PARENT in client.get_run(parent).data.tags:
        siblings = f"tags.`{PARENT_ID}` = '{parent}'"
        if not client.search_runs([run.info.experiment_id], filter_string=siblings, max_results=1):
            client.delete_run(parent)
    return " and its run in MLflow" + (" with its artifacts" if local else ", whose artifacts `mlflow gc` removes")
