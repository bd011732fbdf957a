"""What a lead submits to NVFlare: the folder of a job, which holds configuration and nothing that could be run."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.sites.rules import CLASSES, SILENT

LEAD_FILE, ADMIN_FILE = "local/fedlit-lead.yaml", "startup/fed_admin.json"
"""In the lead's folder: which sites take part, and who the lead is."""

CONFIG = "fedlit.json"
"""Name of the configuration in a job."""

JOB = TASK = TOPIC = "fedlit"
"""Name of a job, of what a site is asked to do in it, and of what a lead asks a running one."""

POLL = 0.05
"""Seconds after which a site asks for its next task; NVFlare's own two set the pace of everything."""

GRACE = {"dead_client_grace_period": 5.0, "dead_client_check_lead_time": 5.0}
"""Seconds for which a site that was reported dead may come back, and a task has not to be looked at."""


@dataclass(frozen=True)
class Resumed:
    """Which run is to be gone on with: the newest of an experiment.

    Attributes:
        experiment: Its name.
    """

    experiment: str


@dataclass(frozen=True)
class Submission:
    """What is to be run.

    Attributes:
        config: The resolved configuration, as JSON.
        name: Name of a new run.
        resumes: Which run it goes on with; None for a new one.
        fresh: Sites whose clients go on without a state that is missing.
    """

    config: str
    name: str
    resumes: Resumed | None = None
    fresh: Sequence[str] = ()


@dataclass(frozen=True)
class Lead:
    """The folder of somebody who may submit.

    Attributes:
        folder: As NVFlare has made it, with ``startup``.
        user: Name in the certificate.
        sites: Names of the sites that take part.
        server: Name of the server's machine.
    """

    folder: Path
    user: str
    sites: tuple[str, ...]
    server: str = "localhost"

    @classmethod
    def read(cls, folder: Path) -> "Lead":
        """Read a folder.

        Raises:
            ConfigError: It is none of a lead, or does not name the sites.
        """
        admin, own = folder / ADMIN_FILE, folder / LEAD_FILE
        if not admin.exists():
            raise ConfigError(
                f"--sites {folder}: there is no {ADMIN_FILE}: expected loopback: and a number of sites, or the folder that a lead has "
                "got for NVFlare, which has that file"
            )
        if not own.exists():
            raise ConfigError(
                f"--sites {folder}: write {own} with the names of the sites, such as: sites: [north, south]"
            )
        values = documents.load(own)
        sites = values.get("sites") if isinstance(values, dict) and values.keys() == {"sites"} else None
        if not isinstance(sites, list) or not sites or not all(isinstance(name, str) for name in sites):
            raise ConfigError(f"{own}: expected sites: and a list of their names, such as: sites: [north, south]")
        if len(set(sites)) < len(sites):
            raise ConfigError(f"{own}: sites: a name is there twice")
        own = json.loads(admin.read_text())["admin"]
        return cls(folder.absolute(), str(own["username"]), tuple(sites), str(own.get("host", cls.server)))

    def reaching(self, summary: str) -> str:
        """Replace the addresses by which the server knows itself by those by which others reach it.

        Args:
            summary: Where the charts of a run are: an address, or a command for the server and an address.
        """
        summary = re.sub(r"(?<=//)(127\.0\.0\.1|localhost)(?=[:/])", self.server, summary)
        command = f"charts, by this command at {self.server}: mlflow ui --host {self.server} --allowed-hosts {self.server}:5000 "
        return re.sub(r"^mlflow ui ", command, summary)


def write_job(folder: Path, sites: Sequence[str], run: str, submission: Submission) -> Path:
    """Write the folder of a job: configuration, and nothing that could be run.

    Args:
        folder: Where.
        sites: Names of the sites.
        run: The run's id; "" for the one that the configuration names.
        submission: What is to be run.
    """
    rounds = {"run": run, "name": submission.name, "sites": list(sites), "fresh": list(submission.fresh)}
    server = {
        "format_version": 2,
        "server": {"heart_beat_timeout": SILENT, "task_request_interval": POLL},
        "workflows": [{"id": TASK, "path": CLASSES[0], "args": rounds}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
        **GRACE,
    }
    site = {
        "format_version": 2,
        "executors": [{"tasks": [TASK], "executor": {"path": CLASSES[1], "args": {}}}],
        "components": [],
        "task_data_filters": [],
        "task_result_filters": [],
    }
    meta = {
        "name": JOB,
        "resource_spec": {},
        "deploy_map": {"app_server": ["server"], "app_site": list(sites)},
        "min_clients": len(sites),
        "mandatory_clients": list(sites),
    }
    files = {
        "meta.json": json.dumps(meta, indent=2),
        "app_server/config/config_fed_server.json": json.dumps(server, indent=2),
        f"app_server/config/{CONFIG}": submission.config,
        "app_site/config/config_fed_client.json": json.dumps(site, indent=2),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
