"""The job that a lead submits to NVFlare: a folder with configuration, and no code."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlit.core.errors import ConfigError
from fedlit.core.system import documents
from fedlit.sites.rules import CLASSES, SILENT

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


@dataclass(frozen=True)
class Submission:
    """A lead's request for a run."""

    config: str  # The resolved configuration, as JSON.
    name: str  # Name of a new run.
    resumes: str | None = None  # Experiment whose newest run is resumed; None for a new run.
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


def write_job(folder: Path, sites: Sequence[str], run: str, submission: Submission) -> Path:
    """Write the folder of a job, with configuration and no code; the configuration names a run without an id."""
    rounds = {"run": run, "name": submission.name, "sites": list(sites), "fresh": list(submission.fresh)}
    both = {"format_version": 2, "components": [], "task_data_filters": [], "task_result_filters": []}
    server = both | GRACE | {
        "server": {"heart_beat_timeout": SILENT, "task_request_interval": POLL},
        "workflows": [{"id": TASK, "path": CLASSES[0], "args": rounds}],
    }  # fmt: skip
    site = both | {"executors": [{"tasks": [TASK], "executor": {"path": CLASSES[1], "args": {}}}]}
    meta = {"name": JOB, "resource_spec": {}, "min_clients": len(sites), "mandatory_clients": list(sites)}
    meta["deploy_map"] = {"app_server": ["server"], "app_site": list(sites)}
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
