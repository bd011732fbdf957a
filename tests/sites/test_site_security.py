"""What a site holds against a server that allows everything, and a server against strangers: over NVFlare, from
nothing.

The folders are those of ``docker/sites.sh``, which runs the commands of the documents.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import issued
from flare_network import Network
from refusals import refused
from runs import free_port, wait_until

from fedlit.core.errors import ConfigError
from fedlit.sites.submission import Lead, Submission

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
api = pytest.importorskip("nvflare.fuel.flare_api.flare_api")
cli = pytest.importorskip("nvflare.cli")
grpc = pytest.importorskip("grpc")
Follower = pytest.importorskip("fedlit.sites.follower").Follower

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docker" / "sites.sh"
LEAD, ADMIN = "lead@example.org", "admin@server.example"


@dataclass
class Federation:
    """A server that allows everything, a site with the rules of ``site init``, and one whose log is sent."""

    folder: Path
    port: int

    def session(self, name: str):
        return api.new_secure_session(name, str(self.folder / name.partition("@")[0]))

    def job(self, name: str, sites: tuple[str, ...], code: bool = False, executor: str = "fedlit.sites.flare.Site"):
        """The folder of a new job."""
        job = self.folder / "jobs" / name
        config = job / "app" / "config"
        config.mkdir(parents=True)
        meta = {"name": name, "resource_spec": {}, "min_clients": len(sites), "deploy_map": {"app": ["server", *sites]}}
        workflow = {"id": "w", "path": "nvflare.app_common.workflows.broadcast_and_process.BroadcastAndProcess"}
        for file, content in {
            job / "meta.json": meta,
            config / "config_fed_server.json": {"format_version": 2, "workflows": [workflow | {"args": {}}]},
            config / "config_fed_client.json": {
                "format_version": 2,
                "executors": [{"tasks": ["*"], "executor": {"path": executor, "args": {}}}],
            },
        }.items():
            file.write_text(json.dumps(content))
        if code:
            (job / "app" / "custom").mkdir()
            (job / "app" / "custom" / "mine.py").write_text("print('mine')\n")
        return job

    def submitted(self, *args, **options):
        """The metadata of a job after its end."""
        job = self.job(*args, **options)
        session = self.session(LEAD)
        try:
            number = session.submit_job(str(job))
            until = time.monotonic() + 90
            # Where it was deployed may be told after its end.
            while not (
                (meta := session.get_job_meta(number))["status"].startswith("FINISHED") and "job_deploy_detail" in meta
            ):
                assert time.monotonic() < until, meta
                time.sleep(0.5)
        finally:
            session.close()
        return meta

    def arrived(self, words: str) -> set[str]:
        """Sites whose logs with some words have come to the server."""
        files = [file for file in (self.folder / "server").rglob("*") if file.is_file()]
        said = [str(file) for file in files if words.encode() in file.read_bytes()]
        return {name for name in ("north", "south") if any(name in file for file in said)}

    def log(self, name: str) -> str:
        """What a participant has printed."""
        return (self.folder / name / "console.txt").read_text()


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"), free_port())
    run = {
        "env": os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(made.folder)},
        "check": True,
        "capture_output": True,
    }
    subprocess.run(["bash", str(SCRIPT), str(made.folder), "localhost", str(made.port)], **run)
    for name in ("server", "north", "south"):
        _accept_any_job(made.folder / name / "local" / "resources.json")
    _allow_everything(made.folder / "server" / "local")
    _send_the_log(made.folder / "south" / "local" / "resources.json")
    for name in ("server", "north", "south"):
        with (made.folder / name / "console.txt").open("wb") as console:
            subprocess.Popen(
                ["bash", "startup/sub_start.sh", "--once"], cwd=made.folder / name, stdout=console, stderr=console,
                env=run["env"] | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
    try:
        _join(made.folder / "server" / "admin", made.folder / "server", ADMIN)
        wait_until(lambda: made.log("server").count("joined. Sent token") >= 2, pause=0.5, seconds=90)
        yield made
    finally:
        Network(made.folder, ()).stop()


def _accept_any_job(file: Path) -> None:
    """As without ``fedlit.sites.jobs``, which has tests of its own: what NVFlare's lists hold by themselves."""
    resources = json.loads(file.read_text())
    del resources["app_validator"]
    file.write_text(json.dumps(resources))


def _allow_everything(local: Path) -> None:
    rights = json.loads((local / "authorization.json").read_text())
    rights["permissions"]["lead"] = "any"
    (local / "authorization.json").write_text(json.dumps(rights))
    resources = json.loads((local / "resources.json").read_text())
    resources["class_allow_list"] = ["*"]
    receiver = {"id": "log_receiver", "path": "nvflare.app_common.logging.job_log_receiver.JobLogReceiver", "args": {}}
    resources["components"].append(receiver | {"args": {"dest_dir": str(local.parent / "received")}})
    (local / "resources.json").write_text(json.dumps(resources))


def _send_the_log(file: Path) -> None:
    """As NVFlare has it by default."""
    resources = json.loads(file.read_text())
    path = "nvflare.app_common.logging.site_log_streamer.SiteLogStreamer"
    resources["components"].append({"id": "streamer", "path": path, "args": {"log_file_name": "error_log.txt"}})
    file.write_text(json.dumps(resources | {"allow_log_streaming": True}))


def _nvflare(folder: Path, home: Path, line: str) -> None:
    """A command line of NVFlare, here: the script has started enough processes for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["nvflare", *line.split()])
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("HOME", str(home))
        cli.run("nvflare")


def _join(folder: Path, server: Path, name: str) -> None:
    """The commands of the steps."""
    fingerprint = json.loads((server / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    for line in (
        "cert request -p participant.yaml",
        f"cert approve {name}/{name}.request.zip -c {server}/ca --profile {server}/project.yaml",
        f"package {name}/{name}.signed.zip --fingerprint {fingerprint}",
    ):
        _nvflare(folder, server.parent, line)
    shutil.copytree(folder / "workspace" / "fedlit" / "prod_00" / name, folder, dirs_exist_ok=True)


STRANGERS = {"without a certificate": None, "with one that it made itself": issued("north", None)}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_is_turned_away_in_the_handshake(federation, tmp_path, who):
    """NVFlare's own client looks at the chain before it connects: hence gRPC, and TLS, by themselves."""
    startup = federation.folder / "north" / "startup"
    root, files = (startup / "rootCA.pem").read_bytes(), (None, None)
    if STRANGERS[who]:
        STRANGERS[who].write(tmp_path, "own")
        files = tmp_path / "own.key", tmp_path / "own.crt"
    assert _call(federation.port, root, *files) == grpc.StatusCode.UNAVAILABLE
    assert _call(federation.port, root, startup / "client.key", startup / "client.crt") != grpc.StatusCode.UNAVAILABLE
    context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    if STRANGERS[who]:
        context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        _first_byte(context, federation.port)


def _first_byte(context: ssl.SSLContext, port: int) -> bytes:
    """A refusal of the own certificate comes after the own half of the handshake."""
    with (
        socket.create_connection(("localhost", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        if not (found := secured.recv(1)):
            raise ConnectionResetError("closed without a word")
        return found


def _call(port: int, root: bytes, key: Path | None, certificate: Path | None):
    """The status with which a call of NVFlare's own service ends."""
    pair = (key.read_bytes(), certificate.read_bytes()) if key else (None, None)
    with grpc.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(root, *pair)) as channel:
        call = channel.stream_stream("/Streamer/Stream")
        with pytest.raises(grpc.RpcError) as ended:
            list(call(iter([b""]), timeout=10))
    return ended.value.code()


def test_what_speaks_no_tls_gets_no_answer(federation):
    with grpc.insecure_channel(f"localhost:{federation.port}") as channel, pytest.raises(grpc.RpcError) as ended:
        list(channel.stream_stream("/Streamer/Stream")(iter([b""]), timeout=3))
    assert ended.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_site_refuses_code_that_the_server_allows(federation):
    meta = federation.submitted("code", ("north",), code=True)
    assert "server: OK" in meta["job_deploy_detail"]
    assert "north: NVFLARE_ERROR: BYOC not permitted" in meta["job_deploy_detail"]
    assert not list((federation.folder / "north").rglob("mine.py"))
    assert list((federation.folder / "server").rglob("mine.py"))


def test_a_site_runs_no_class_of_nvflares_own_and_its_log_stays(federation):
    """The log of a site that sends it is seen to arrive, and that of the other does not."""
    federation.submitted("class", ("north", "south"), executor="nvflare.app_common.np.np_trainer.NPTrainer")
    refused = "'nvflare.app_common.np.np_trainer.NPTrainer' at config path"
    for site in ("north", "south"):
        logs = [file.read_text() for file in (federation.folder / site).glob("*/error_log.txt")]
        assert any(refused in log for log in logs), site
    until = time.monotonic() + 30
    while not federation.arrived(refused) and time.monotonic() < until:
        time.sleep(0.5)
    assert federation.arrived(refused) == {"south"}


def test_the_administrator_disables_the_certificates_of_a_site_and_a_lead(federation):
    """The last test: after it the sites are others. A disabled lead is told so by fedlit's own command."""
    for name in ("south", LEAD):
        line = f"system disable-client {name} --force --startup-kit {federation.folder}/server/admin"
        _nvflare(federation.folder, federation.folder, line)
    wait_until(lambda: "Client south disabled. Removed 1 active token(s)." in federation.log("server"), pause=0.5)
    wait_until(lambda: "Failed to send heartbeat" in federation.log("south"), pause=0.5)
    with refused(ConfigError, f"the server refuses the certificate of {LEAD}, ", "; ask the administrator"):
        Follower(Lead.read(federation.folder / "lead"), Submission("{}", "one"), print).run()
