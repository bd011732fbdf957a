"""``fedlit site init``: the folder of a site, of the server or of a lead, with rules for NVFlare.

The folder has the files of the role in ``templates/``, with names filled in, and NVFlare's rules: no code in jobs, two
classes of fedlit, no logs sent, short timeouts.
"""

import getpass
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import yaml

from fedlit.core.errors import ConfigError
from fedlit.core.system.files import private, whole

CLASSES = ("fedlit.sites.flare.Rounds", "fedlit.sites.flare.Site")
"""The only classes that a job may name: one runs at the server, the other at a site."""

APPS = "fedlit.sites.jobs.Apps"
"""Component of the server and of sites that accepts only jobs that fedlit writes."""

SILENT = 25
"""Seconds without a heartbeat after which a site counts as gone; sites send one every ten seconds."""

RESOURCES, AUTHORIZATION = "resources.json", "authorization.json"
"""Names of the files."""

PEOPLE = ("project_admin", "org_admin", "lead", "member")

_NVFLARE = "nvflare.app_common"


def server_rules(storage: Path) -> dict[str, dict[str, Any]]:
    """Return the files of a server, by name; its list of jobs is in a folder of its own."""
    storage = Path(storage).absolute()
    server = {"admin_storage": "transfer", "max_num_clients": 100, "heart_beat_timeout": SILENT, "admin_timeout": 10.0}
    manager, jobs = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", str(storage / "jobs")
    return {
        RESOURCES: _classes(server=True)
        | {
            "servers": [server],
            "snapshot_persistor": {
                "path": f"{_NVFLARE}.state_persistors.storage_state_persistor.StorageStatePersistor",
                "args": {
                    "uri_root": "/",
                    "storage": _storage({"root_dir": str(storage / "snapshots"), "uri_root": "/"}),
                },
            },
            "components": [
                _part("job_scheduler", f"{_NVFLARE}.job_schedulers.job_scheduler.DefaultJobScheduler", max_jobs=4),
                _part("job_manager", manager, uri_root=jobs, job_store_id="job_store"),
                {"id": "job_store"} | _storage({}),
                _part("process_launcher", f"{_NVFLARE}.job_launcher.server_process_launcher.ServerProcessJobLauncher"),
            ],
        },
        AUTHORIZATION: authorization(),
    }


def site_rules() -> dict[str, dict[str, Any]]:
    """Return the files of a site, by name."""
    launcher = f"{_NVFLARE}.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    manager = f"{_NVFLARE}.resource_managers.gpu_resource_manager.GPUResourceManager"
    consumer = f"{_NVFLARE}.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"
    return {
        RESOURCES: _classes(server=False)
        | {
            "allow_log_streaming": False,
            "client": {"retry_timeout": 30},
            "components": [
                _part("resource_manager", manager, num_of_gpus=0, mem_per_gpu_in_GiB=0, expiration_period=300),
                _part("resource_consumer", consumer),
                _part("process_launcher", launcher),
            ],
        },
        AUTHORIZATION: authorization(),
    }


def authorization() -> dict[str, Any]:
    """Return the rights of each role: leads submit jobs; nobody sends code or reads a site's files.

    Whoever may operate the server may also disable the sites of others: only the administrator of its organisation.
    """
    never = {right: "none" for right in ("byoc", "shell_commands", "server-predeployed-flwr")}
    own_jobs = {right: "n:submitter" for right in ("manage_job", "download_job", "app_command")} | {"clone_job": "none"}
    view = {"view": "any"}
    rights = {
        "project_admin": {"submit_job": "none", "manage_job": "any", "download_job": "any", "clone_job": "none"}
        | {"operate": "any", "app_command": "any"},
        "org_admin": {"submit_job": "none", "operate": "o:site"}
        | own_jobs
        | {"manage_job": "o:submitter", "app_command": "none"},
        "lead": {"submit_job": "any", "operate": "none"} | own_jobs,
        "member": {},
    }
    return {"format_version": "1.0", "permissions": {role: rights[role] | view | never for role in PEOPLE}}


def _classes(server: bool) -> dict[str, Any]:
    allowed = {"class_list_enforcement_mode": "enforce", "class_allow_list": list(CLASSES)}
    return {"format_version": 2, "app_validator": {"path": APPS, "args": {"server": server}}} | allowed


def _storage(args: dict[str, str]) -> dict[str, Any]:
    return {"path": f"{_NVFLARE}.storages.filesystem_storage.FilesystemStorage", "args": args}


def _part(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}


TEMPLATES = Path(__file__).parent / "templates"

ROLES = ("site", "server", "lead")
"""Roles in a federation: a hospital with its data, the server, and a lead, who starts runs."""

NAMES = {
    "site": (r"[A-Za-z0-9_-]{1,64}", "letters, digits, - and _, 64 at most"),
    "server": (r"[A-Za-z0-9.-]{1,64}", "the name of its machine, such as fl.example.org"),
    "lead": (r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}", "an email address"),
}
"""Pattern of the names in certificates, by role; NVFlare refuses other names."""

WORD = (r"[A-Za-z0-9_]+", "letters, digits and _")
PROJECT = (r"[A-Za-z0-9][A-Za-z0-9_-]*", "letters, digits, - and _")

OWN_DATA = {"class_path": "ImageTable", "init_args": {"table": "/data/cases.csv", "root": "/data/images"}}
"""Default of ``data``, for the site to replace."""

ABOUT = {
    RESOURCES: [
        "Rules of NVFlare on this machine. No job changes this file; it is read when the process starts.",
        "class_allow_list: a job may name only two classes of the fedlit that is installed here.",
        "Logs stay on this machine: no component sends them, and allow_log_streaming is off.",
    ],
    AUTHORIZATION: [
        "What people may do on this machine, by the role in their certificates. The server and each site set their "
        "own rules.",
        "submit_job: only leads start runs. byoc: nobody sends code. shell_commands: nobody reads files from outside.",
    ],
}
"""Explanations in the JSON files, which cannot have comments."""


@dataclass(frozen=True)
class MemberFolder:
    """The folder of a site, of the server or of a lead.

    Raises:
        ConfigError: If a certificate cannot have a name, or an option belongs to another role.
    """

    path: Path  # Where the folder is written.
    name: str  # Name of the site, name of the server's machine, or email address of the lead.
    org: str  # The organisation, as one word.
    role: str = "site"  # `site`, `server` or `lead`.
    project: str = "fedlit"  # Name of the federation, the same for all.
    port: int | None = None  # Port of the server; only for a server.
    data: Mapping[str, Any] | None = None  # The key `data` of a site's file.
    share: str | None = None  # Which clients of the data belong to the site.
    sites: list[str] = field(default_factory=list)  # Names of the sites that a lead's runs wait for.

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path.expanduser().absolute())
        for option, value, (pattern, words) in (
            ("--name", self.name, NAMES[self.role]),
            ("--org", self.org, WORD),
            ("--project", self.project, PROJECT),
            *(("--sites", site, NAMES["site"]) for site in self.sites),
        ):
            if not re.fullmatch(pattern, value):
                raise ConfigError(f"{option}: expected {words}, found {value!r}")
        for option, value, role in (
            ("--data", self.data, "site"),
            ("--share", self.share, "site"),
            ("--port", self.port, "server"),
            ("--sites", self.sites, "lead"),
        ):
            if value not in (None, []) and role != self.role:
                raise ConfigError(
                    f"{option}: expected only with --role {role}, found with --role {self.role}; leave it out"
                )
        if self.role == "lead" and not self.sites:
            raise ConfigError("--sites: expected the names of the sites that take part, such as --sites north south")
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigError(f"--port: expected a number up to 65535, found {self.port}")
        if re.search(r"[\s%$\"'\\]", str(self.path)):
            raise ConfigError(
                f"{self.path}: NVFlare's scripts and systemd need a path without spaces, quotes, %, $ or backslashes; "
                "choose another folder"
            )

    def write(self) -> list[Path]:
        """Write the files.

        Returns:
            The paths of the files, sorted.

        Raises:
            ConfigError: If one of the files exists; then none is written.
        """
        texts = self._texts()
        if there := [str(self.path / name) for name in texts if (self.path / name).exists()]:
            raise ConfigError(
                f"{', '.join(there)}: exists already and was not changed; choose another folder, or remove it"
            )
        private(self.path)  # other users must not read its keys and states
        for name, text in texts.items():
            private((self.path / name).parent)
            with whole(self.path / name, replace=False) as draft:
                draft.write_text(text)
                draft.chmod(0o600)
        return [self.path / name for name in texts]

    def _texts(self) -> dict[str, str]:
        root, filled = TEMPLATES / self.role, self._filled()
        texts = {
            str(file.relative_to(root)): Template(file.read_text()).substitute(filled)
            for file in root.rglob("*")
            if file.is_file()
        }
        asked = {"site": site_rules, "server": lambda: server_rules(self.path / "store"), "lead": dict}
        for name, content in asked[self.role]().items():
            texts[f"local/{name}"] = json.dumps({"about": ABOUT[name]} | content, indent=2) + "\n"
        return dict(sorted(texts.items()))

    def _filled(self) -> dict[str, str]:
        share = f"share: {self.share}       # which of its clients belong to this site" if self.share else ""
        return {
            "folder": str(self.path),
            "name": self.name,
            "org": self.org,
            "project": self.project,
            "port": str(self.port or 8002),
            "data": _in_a_line(self.data or OWN_DATA),
            "share": share,
            "sites": _in_a_line(list(self.sites)),
            "user": getpass.getuser(),
            "path": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        }


def _in_a_line(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()
