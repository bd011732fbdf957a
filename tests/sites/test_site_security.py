"""What a site holds against a server that allows everything, and a server against strangers: over NVFlare, from nothing.

The folders are those of ``docker/sites.sh``, which runs the commands of the documents.
"""

import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from certificates import issued
from flare_network import Network, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
api = pytest.importorskip("nvflare.fuel.flare_api.flare_api")
grpc = pytest.importorskip("grpc")

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docker" / "sites.sh"
WORDS = "said by a job that fails at a site"
MEMBER, LEAD = "member@example.org", "lead@example.org"


@dataclass
class Federation:
    """A server that allows everything, a site with the rules of ``site init``, and one whose log is sent."""

    folder: Path
    port: int

    def session(self, name: str):
        return api.new_secure_session(name, str(self.folder / name.partition("@")[0]))

    def submitted(
        self, name: str, sites: tuple[str, ...], code: bool = False, executor: str = "fedlit.sites.flare.Site"
    ):
        """The metadata of a job after its end."""
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
        session = self.session(LEAD)
        try:
            number = session.submit_job(str(job))
            until = time.monotonic() + 90
            while not (meta := session.get_job_meta(number))["status"].startswith("FINISHED"):
                assert time.monotonic() < until, meta
                time.sleep(0.5)
        finally:
            session.close()
        return meta

    def log(self, name: str) -> str:
        return (self.folder / name / "log.txt").read_text()


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"), free_port())
    run = {
        "env": os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(made.folder)},
        "check": True,
        "capture_output": True,
    }
    subprocess.run(["bash", str(SCRIPT), str(made.folder), "localhost", str(made.port)], **run)
    _allow_everything(made.folder / "server" / "local")
    _send_the_log(made.folder / "south" / "local" / "resources.json")
    for name in ("server", "north", "south"):
        with (made.folder / name / "console.txt").open("wb") as console:
            subprocess.Popen(
                ["bash", "startup/sub_start.sh", "--once"], cwd=made.folder / name, stdout=console, stderr=console,
                env=run["env"] | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
    try:
        _join_a_member(made.folder, run)
        until = time.monotonic() + 90
        while (
            made.log("server").count("joined. Sent token") < 2
            if (made.folder / "server" / "log.txt").exists()
            else True
        ):
            assert time.monotonic() < until, (made.folder / "server" / "console.txt").read_text()
            time.sleep(0.5)
        yield made
    finally:
        Network(made.folder, ()).stop()


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


def _join_a_member(folder: Path, run: dict) -> None:
    """As a lead does, with another role in the request."""
    line = f"fedlit site init {folder}/member --role lead --name {MEMBER} --org university --sites north"
    subprocess.run(line.split(), **run)
    file = folder / "member" / "participant.yaml"
    file.write_text(file.read_text().replace("role: lead", "role: member"))
    print_key = json.loads((folder / "server" / "ca" / "ca.json").read_text())["rootCA_fingerprint"]
    for line in (
        "nvflare cert request -p participant.yaml",
        f"nvflare cert approve {MEMBER}/{MEMBER}.request.zip -c ../server/ca --profile ../server/project.yaml",
        f"nvflare package {MEMBER}/{MEMBER}.signed.zip --fingerprint {print_key}",
        f"cp -r workspace/fedlit/prod_00/{MEMBER}/. .",
    ):
        subprocess.run(line.split(), cwd=folder / "member", **run)


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
    with (
        socket.create_connection(("localhost", federation.port), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)) as turned,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        if not secured.recv(1):
            raise ConnectionResetError
    print(who, repr(turned.value))


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
    assert "BYOC not permitted" in json.dumps(meta)
    assert "north" in json.dumps(meta["job_deploy_detail"])
    assert not list((federation.folder / "north").rglob("mine.py"))


def test_a_site_runs_no_class_of_nvflares_own_and_its_log_stays(federation):
    """The log of a site that sends it is seen to arrive, and that of the other does not."""
    federation.submitted("class", ("north", "south"), executor="nvflare.app_common.np.np_trainer.NPTrainer")
    refused = "'nvflare.app_common.np.np_trainer.NPTrainer' at config path"
    for site in ("north", "south"):
        logs = [file.read_text() for file in (federation.folder / site).glob("*/error_log.txt")]
        assert any(refused in log for log in logs), site
    time.sleep(3)
    server = [file for file in (federation.folder / "server").rglob("*") if file.is_file() and "jobs" not in file.parts]
    held = {file: file.read_bytes() for file in federation.folder.joinpath("server").rglob("*") if file.is_file()}
    arrived = {name for name in ("north", "south") for file, content in held.items()
               if name in str(file) and refused.encode() in content}  # fmt: skip
    assert server
    assert arrived == {"south"}


def test_a_member_submits_nothing(federation):
    session = federation.session(MEMBER)
    try:
        assert session.get_system_info().client_info
        with pytest.raises(Exception, match="not authorized") as refused:
            session.submit_job(str(federation.folder / "jobs" / "code"))
        print(refused.value)
    finally:
        session.close()


def test_a_class_outside_of_a_sites_modules_is_refused(federation, tmp_path):
    """By fedlit itself: NVFlare's list does not look into configurations."""
    config = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    config["data"]["init_args"] |= {"hospitals": 2, "images": 1200}
    config["model"]["init_args"] |= {"backbone": "small_cnn"}
    config["model"]["init_args"]["optimizer"] = {"class_path": "timm.optim.Lamb", "init_args": {"lr": 0.1}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(config | {"logger": False}))
    line = f"fedlit fit --config {tmp_path}/x.yaml --sites {federation.folder}/lead"
    done = subprocess.run(
        line.split(), capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "timm.optim.Lamb', which is not of its modules (fedlit, torch.optim, torch.nn)" in done.stdout + done.stderr
