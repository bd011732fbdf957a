"""NVFlare's rules at a server and at a site: no code in jobs, two classes of fedlit, no logs sent, short timeouts.

They are files of the folder ``local/`` of each. Writing them does not need NVFlare.
"""

from pathlib import Path
from typing import Any

CLASSES = ("fedlit.sites.flare.Rounds", "fedlit.sites.flare.Site")
"""The only classes that a job may name: one runs at the server, the other at a site."""

APPS = "fedlit.sites.jobs.Apps"
"""Component of the server and of sites that accepts only jobs that fedlit writes."""

SILENT = 25
"""Seconds without a heartbeat after which a site counts as gone; sites send one every ten seconds."""

RESOURCES, AUTHORIZATION = "resources.json", "authorization.json"
"""Names of the files."""

ROLES = ("project_admin", "org_admin", "lead", "member")

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
    return {"format_version": "1.0", "permissions": {role: rights[role] | view | never for role in ROLES}}


def _classes(server: bool) -> dict[str, Any]:
    allowed = {"class_list_enforcement_mode": "enforce", "class_allow_list": list(CLASSES)}
    return {"format_version": 2, "app_validator": {"path": APPS, "args": {"server": server}}} | allowed


def _storage(args: dict[str, str]) -> dict[str, Any]:
    return {"path": f"{_NVFLARE}.storages.filesystem_storage.FilesystemStorage", "args": args}


def _part(name: str, path: str, **args: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}
