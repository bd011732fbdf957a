"""A network of NVFlare on this machine: a server and sites, each with certificates, a folder and a process group."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import yaml
from runs import free_port

from fedlit.sites.folders import server_rules, site_rules

SERVER, LEAD = "localhost", "lead@example.org"


def provision(folder: Path, sites: Sequence[str], port: int) -> Path:
    """Make folders with keys and certificates under one root, as ``nvflare provision`` does; returns where they lie."""
    from nvflare.lighter.provision import provision

    built = "nvflare.lighter.impl"
    project = {
        "api_version": 3,
        "name": "fedlit",
        "description": "a federation of one machine",
        "participants": [
            {"name": SERVER, "type": "server", "org": "tests", "fed_learn_port": port, "admin_port": port},
            *({"name": site, "type": "client", "org": "tests"} for site in sites),
            {"name": LEAD, "type": "admin", "org": "tests", "role": "lead"},
        ],
        "builders": [
            {"path": f"{built}.workspace.WorkspaceBuilder", "args": {}},
            {"path": f"{built}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "grpc"}},
            {"path": f"{built}.cert.CertBuilder", "args": {}},
            {"path": f"{built}.signature.SignatureBuilder", "args": {}},
        ],
    }
    provision(SimpleNamespace(gen_scripts=False), project, "", str(folder))
    return folder / "fedlit" / "prod_00"


@dataclass
class Network:
    """A server and its sites.

    Attributes:
        folder: Where the folders of all of them lie.
        sites: Names of the sites.
        processes: Those that run, by name.
    """

    folder: Path
    sites: tuple[str, ...]
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    @classmethod
    def provision(cls, folder: Path, sites: Sequence[str] = ("site-1", "site-2")) -> "Network":
        """Make the folders, with the rules that fedlit asks for, and with the lead's list of sites."""
        network = cls(provision(folder, sites, free_port()), tuple(sites))
        written = {SERVER: server_rules(network.workspace(SERVER) / "store")}
        for name, files in (written | {site: site_rules() for site in sites}).items():
            for file, content in files.items():
                (network.workspace(name) / "local" / file).write_text(json.dumps(content, indent=2) + "\n")
        (network.lead / "local").mkdir(exist_ok=True)
        (network.lead / "local" / "fedlit-lead.yaml").write_text(yaml.safe_dump({"sites": list(sites)}))
        return network

    @property
    def lead(self) -> Path:
        """The lead's folder, for ``--sites``."""
        return self.folder / LEAD

    def workspace(self, name: str) -> Path:
        """The folder of a site, or of the server."""
        return self.folder / name

    def write_site(self, name: str, **values) -> None:
        """Write the own file of a site."""
        (self.workspace(name) / "local" / "fedlit-site.yaml").write_text(yaml.safe_dump({"name": name} | values))

    def start(self, *names: str) -> None:
        """Start the server and all sites, or some of them: each is the parent of the processes of its jobs."""
        for name in names or (SERVER, *self.sites):
            kind, own = ("server", []) if name == SERVER else ("client", [f"uid={name}"])
            workspace = self.workspace(name)
            command = [
                sys.executable, "-u", "-m", f"nvflare.private.fed.app.{kind}.{kind}_train", "-m", str(workspace),
                "-s", f"fed_{kind}.json", "--set", "secure_train=true", *own, "org=tests", "config_folder=config",
            ]  # fmt: skip
            with (workspace / "console.txt").open("ab") as console:
                self.processes[name] = subprocess.Popen(
                    command, cwd=workspace, stdout=console, stderr=subprocess.STDOUT, start_new_session=True,
                    env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                )  # fmt: skip

    def jobs(self, name: str) -> list[int]:
        """Numbers of the processes of a site's or the server's jobs."""
        return [pid for pid, words in _processes() if str(self.workspace(name)) in words and _of_a_job(words)]

    def kill(self, name: str) -> None:
        """Kill a site's or the server's process, and leave those of its jobs to themselves."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """Kill all that runs in these folders."""
        for name in list(self.processes):
            self.kill(name)
        deadline = time.monotonic() + 10
        while (
            left := [pid for pid, words in _processes() if str(self.folder) in words]
        ) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def _of_a_job(words: str) -> bool:
    return "runner_process" in words or "worker_process" in words


def _processes() -> list[tuple[int, str]]:
    """All others of this user, with their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words and int(entry.name) != os.getpid() and "python" in words.split()[0]:
                found.append((int(entry.name), words))
    return found
