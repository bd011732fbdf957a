"""The job that a lead submits to NVFlare: a folder with configuration, and no code."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.sites.folders import CLASSES, SILENT

LEAD_FILE, ADMIN_FILE = "local/fedlit-lead.yaml", "startup/fed_admin.json"
"""Files of the lead's folder: which sites take part, and who the lead is."""

CONFIG = "fedlit.json"
"""Name of the configuration in a job."""

JOB = TASK = TOPIC = "fedlit"
"""Name of a job, of its task for sites, and of the lead's command to a running job."""

POLL = 0.05
"""Seconds after which a site asks for its next task; NVFlare's default of two seconds would slow every round."""

GRACE = {"dead_client_grace_period": 5.0, "dead_client_check_lead_time": 5.0}
"""Seconds for which a site that was reported dead may come back, and for which NVFlare does not check a new task."""

SERVER_APP = ("config/config_fed_server.json", f"config/{CONFIG}")
SITE_APP = ("config/config_fed_client.json",)
"""Files of a job for the server and for a site; NVFlare reads the first of each."""

JOB_FILES = ("meta.json", *(f"app_server/{name}" for name in SERVER_APP), f"app_site/{SITE_APP[0]}")
"""Files of a job."""

NOTHING = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
SITE = NOTHING | {"executors": [{"tasks": [TASK], "executor": {"path": CLASSES[1], "args": {}}}]}
"""What NVFlare reads at a site: the same in every job."""

META = {"name": JOB, "resource_spec": {}}
"""The part of a job's description that is the same in every job."""

ANEW = "install the same fedlit as there, and submit with `fedlit fit --sites`"


@dataclass(frozen=True)
class Submission:
    """A lead's request for a run."""

    config: str  # The resolved configuration, as JSON.
    name: str  # Name of a new run.
    resumes: str | None = None  # Experiment whose newest run is resumed; None for a new run.
    resumed_name: str | None = None  # Name of the run that is resumed, if the lead gives one.
    fresh: Sequence[str] = ()  # Sites whose clients start afresh if their state is missing.


@dataclass(frozen=True)
class Lead:
    """The folder of a lead."""

    folder: Path  # The folder, with NVFlare's `startup`.
    user: str  # Name in the certificate.
    sites: tuple[str, ...]  # Names of the sites that take part.
    server: str = "localhost"  # Name of the server's machine.

    @classmethod
    def read(cls, folder: Path) -> "Lead":
        """Read a folder.

        Raises:
            ConfigError: If it is not the folder of a lead, or does not name the sites.
        """
        admin, sites_file = folder / ADMIN_FILE, folder / LEAD_FILE
        if not admin.exists():
            raise ConfigError(
                f"--sites {folder}: expected loopback: and a number of sites, or a lead's folder with {ADMIN_FILE}, "
                "found no such file"
            )
        if not sites_file.exists():
            raise ConfigError(
                f"--sites {folder}: write {sites_file} with the names of the sites, such as: sites: [north, south]"
            )
        values = documents.load(sites_file)
        sites = values.get("sites") if isinstance(values, dict) and values.keys() == {"sites"} else None
        if not isinstance(sites, list) or not sites or not all(isinstance(name, str) for name in sites):
            raise ConfigError(
                f"{sites_file}: expected sites: and a list of their names, such as: sites: [north, south]"
            )
        if len(set(sites)) < len(sites):
            raise ConfigError(f"{sites_file}: sites: a name appears twice; remove one")
        try:
            user = documents.parse_json(documents.text_of(admin))["admin"]
            name, host = str(user["username"]), str(user.get("host", cls.server))
        except (ConfigError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{admin} cannot be read ({error}): repeat `nvflare package`") from error
        return cls(folder.absolute(), name, tuple(sites), host)

    def reaching(self, summary: str) -> str:
        """Replace the server's local addresses, or commands, in the summary of a run by those that others can use."""
        summary = re.sub(r"(?<=//)(127\.0\.0\.1|localhost)(?=[:/])", self.server, summary)
        command = (
            f"charts, by this command at {self.server}: "
            f"mlflow ui --host {self.server} --allowed-hosts {self.server}:5000 "
        )
        return re.sub(r"^mlflow ui ", command, summary)


def write_job(folder: Path, sites: Sequence[str], submission: Submission) -> Path:
    """Write the folder of a job, with configuration and no code."""
    rounds = {"name": submission.name, "sites": list(sites), "fresh": list(submission.fresh)}
    meta = META | {"min_clients": len(sites), "mandatory_clients": list(sites)}
    meta["deploy_map"] = {"app_server": ["server"], "app_site": list(sites)}
    texts = (json.dumps(meta, indent=2), json.dumps(_server(rounds), indent=2), submission.config, json.dumps(SITE))
    for name, text in zip(JOB_FILES, texts, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def _server(rounds: object) -> dict[str, Any]:
    """Return what NVFlare reads at the server, with the arguments of ``Rounds``."""
    settings = {"heart_beat_timeout": SILENT, "task_request_interval": POLL}
    return NOTHING | GRACE | {"server": settings, "workflows": [{"id": TASK, "path": CLASSES[0], "args": rounds}]}


def check_meta(found: object) -> None:
    """Check that a job's description has only the keys that ``write_job`` writes.

    Raises:
        ConfigError: If it has others.
    """
    keys = {*META, "min_clients", "mandatory_clients", "deploy_map"}
    if not isinstance(found, dict) or found.keys() != keys or {key: found[key] for key in META} != META:
        raise ConfigError(f"meta.json: expected the keys {', '.join(sorted(keys))} as fedlit writes them; {ANEW}")


def check_site(found: object) -> None:
    """Check that what NVFlare reads at a site is what ``write_job`` writes.

    Raises:
        ConfigError: If it is anything else.
    """
    if found != SITE:
        raise ConfigError(f"config_fed_client.json: expected what fedlit writes, found something else; {ANEW}")


def check_server(found: object) -> None:
    """Check that what NVFlare reads at the server is what ``write_job`` writes, without names that NVFlare replaces.

    Raises:
        ConfigError: If it is anything else.
    """
    try:
        rounds = found["workflows"][0]["args"]
        names = [rounds["name"], *rounds["sites"], *rounds["fresh"]]
    except (TypeError, KeyError, IndexError):
        names = []
    if not names or found != _server(rounds) or rounds.keys() != {"name", "sites", "fresh"}:
        raise ConfigError(f"config_fed_server.json: expected what fedlit writes, found something else; {ANEW}")
    if wrong := [name for name in names if not isinstance(name, str) or re.search(r"[{}$]", name)]:
        raise ConfigError(f"config_fed_server.json: expected names without {{, }} and $, found {wrong[0]!r}")
