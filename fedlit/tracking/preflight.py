"""Check of a store before training: a deleted experiment, and a database that cannot be written."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import unwritable
from fedlit.tracking.addresses import absolute, without_credentials
from fedlit.tracking.store import ARTIFACTS, WEB_SERVERS, experiment_key, was_deleted

OTHERWISE = "name another store with --logger.tracking_uri, or run without MLflow: --logger false"

SECONDS = 2.0
"""Longest wait for a server. One that does not answer stops no run, and the thread reports it."""


def check_store(uri: str, experiment: str, artifact_location: str | None = None) -> None:
    """Refuse files that cannot be written, and an experiment that was deleted in a SQLite file or at a server.

    MLflow itself is not imported, which would take seconds.

    Raises:
        ConfigError: No run of the experiment can be logged to the store.
    """
    kind, value = experiment_key(experiment)
    if uri.startswith("sqlite:///"):
        found = _in_database(absolute(uri), kind, value)
    elif uri.startswith(WEB_SERVERS):
        found = _at_server(uri, kind, value)
    else:
        return
    folder = artifact_location or ("" if uri.startswith(WEB_SERVERS) else ARTIFACTS)
    if found is None and folder and "://" not in folder and (reason := unwritable(Path(folder))):
        raise ConfigError(f"artifact_location: cannot create {folder}: {reason}")
    if found is not None and found[1] == "deleted":
        raise ConfigError(f"MLflow at {without_credentials(uri)}: {was_deleted(value, found[0])}; or {OTHERWISE}")


def _in_database(uri: str, kind: str, value: str) -> tuple[str, str] | None:
    """Return an experiment's id and its state, or None if it does not exist or the file is locked."""
    file = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if uri.startswith(("sqlite:///:memory:", "sqlite:///file:")):
        return None
    if reason := "" if file.exists() else unwritable(file.parent):
        raise ConfigError(f"tracking_uri: cannot create {file}: {reason}; {OTHERWISE}")
    if not file.exists():
        return None
    column = {"experiment_name": "name", "experiment_id": "CAST(experiment_id AS TEXT)"}[kind]
    query = f"SELECT CAST(experiment_id AS TEXT), lifecycle_stage FROM experiments WHERE {column} = ?"
    try:
        with closing(sqlite3.connect(file, timeout=SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")  # refused if the file or its folder is read-only
            return database.execute(query, (value,)).fetchone()
    except sqlite3.DatabaseError as error:
        if "locked" in str(error) or "no such table" in str(error):  # of another run, or a new database
            return None
        raise ConfigError(
            f"tracking_uri: expected a SQLite database that can be written, found {file}: {error}; {OTHERWISE}"
        ) from error


def _at_server(uri: str, kind: str, value: str) -> tuple[str, str] | None:
    """Return an experiment's id and its state, or None if it does not exist or the server does not say."""
    import requests

    call = {"experiment_name": "get-by-name", "experiment_id": "get"}[kind]
    address = f"{uri.rstrip('/')}/api/2.0/mlflow/experiments/{call}?{kind}={quote(value, safe='')}"
    user, password, token = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD", "TOKEN"))
    headers = {"Authorization": f"Bearer {token}"} if token else None
    try:
        login = (user, password) if user and password else None
        answer = requests.get(address, headers=headers, auth=login, timeout=SECONDS)
        experiment = answer.json()["experiment"]
        return experiment["experiment_id"], experiment["lifecycle_stage"]
    except (OSError, ValueError, KeyError, TypeError):  # down, slow, a login page, or an experiment to be created
        return None
