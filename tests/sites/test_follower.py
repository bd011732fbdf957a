"""The lead's half over NVFlare, with a server that dies as it is told to: one command submits one job, and ends with
what to type."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from certificates import DAY, Authority, listening, packed
from nvflare.fuel.flare_api.api_spec import JobNotRunning, NoConnection
from refusals import raising, refused

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites import follower
from fedlit.sites.follower import Follower
from fedlit.sites.server import Ending
from fedlit.sites.submission import Lead, Submission

SITES = ("north", "south")
DIED = "FINISHED:EXECUTION_EXCEPTION"


def told(*lines: str, ended: Ending | None = None, means: bool | None = None, name: str | None = None) -> dict:
    return {"lines": list(lines), "name": name, "ended": asdict(ended) if ended else None, "means": means}


FINISHED = told("the end", ended=Ending("finished", rounds=3))


class Server:
    """What NVFlare's session answers: what a job tells at each look, or what is raised."""

    def __init__(self, *script: object, **about) -> None:
        self.script, self.submitted, self.tokens, self.asked, self.listed = list(script), [], [], [], []
        self.there, self.status, self.aborted, self.lost = [set(SITES)], "RUNNING", 0, 0
        self.without: set[str] = set()
        self.silent: set[str] = set()
        vars(self).update(about)

    def get_system_info(self) -> SimpleNamespace:
        names = self.there.pop(0) if len(self.there) > 1 else self.there[0]
        return SimpleNamespace(client_info=[SimpleNamespace(name=name) for name in names])

    def submit_job(self, path: str, submit_token: str) -> str:
        self.tokens.append(submit_token)
        if self.lost:
            self.lost -= 1
            raise NoConnection("it has died")
        server = json.loads((Path(path) / "app_server/config/config_fed_server.json").read_text())
        self.submitted.append(server["workflows"][0]["args"])
        self.status = "RUNNING"
        return f"job-{len(self.submitted)}"

    def list_jobs(self, detailed: bool, reverse: bool) -> list[dict]:
        return self.listed

    def do_app_command(self, job: str, topic: str, asked: dict) -> dict:
        self.asked.append(asked)
        if asked.get("heard"):
            return told()
        step = self.script.pop(0) if self.script else JobNotRunning("over")
        if isinstance(step, str):
            self.status, step = step, JobNotRunning("over")
        if step in (KeyboardInterrupt, SystemExit) or isinstance(step, Exception):
            raise step
        return step

    def get_job_meta(self, job: str) -> dict:
        return {"status": self.status}

    def get_client_job_status(self) -> list[dict]:
        rows = []
        for name in SITES:
            if name in (*self.silent, *self.without):
                rows.append({"client_name": name, "status": "no_reply" if name in self.silent else "no_jobs"})
            else:  # that of somebody else comes last
                jobs = f"job-{len(self.submitted)}", "another"
                rows += [{"client_name": name, "job_id": job, "status": "started"} for job in jobs]
        return rows

    def abort_job(self, job: str) -> None:
        self.aborted += 1
        self.status = "FINISHED:ABORTED"

    def close(self) -> None:
        pass


@pytest.fixture
def followed(monkeypatch, tmp_path):
    """Runs a federation at a server; returns its end and what the lead was told."""
    for name in ("LOOK", "GONE", "SIDEWARD"):
        monkeypatch.setattr(follower, name, 0.0)

    def run(server: Server, resumed: str | None = None, said: list[str] | None = None) -> tuple[Ending, list[str]]:
        monkeypatch.setattr(follower, "new_secure_session", lambda *args, **options: server)
        said = [] if said is None else said
        lead = Lead(tmp_path, "lead@example.org", SITES)
        return Follower(lead, Submission("", "one", resumed), said.append).run(), said

    return run


SILENT = "the server does not answer ("
FOLLOWED = {
    "to its end": (Server(told("round 1"), told("round 2"), FINISHED), ["round 1", "round 2", "the end"]),
    "a silent server": (Server(told("round 1"), *[NoConnection("dead")] * 3, FINISHED), ["round 1", f"{SILENT}dead)"]),
    "sites that are not there": (Server(FINISHED, there=[{"south"}, {"south"}, set(SITES)]), ["waiting for north"]),
    "a job that takes long to begin": (Server(*[JobNotRunning("")] * 5, FINISHED), ["the end"]),
    "a server that dies while it is given a job": (Server(FINISHED, lost=2), [SILENT]),
    "a site without the job": (Server(*[told()] * 8, FINISHED, without={"north"}), ["north reconnected without the"]),
    "a site that does not answer": (Server(*[told()] * 8, FINISHED, silent={"north"}), ["the end"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLLOWED)
def test_a_run_is_shown_and_what_is_not_there_is_waited_for(followed, case):
    """A site that came back without the job is given up by the job: the federation's own setting decides."""
    server, words = FOLLOWED[case]
    ending, said = followed(server)
    assert ending == Ending("finished", rounds=3)
    assert [line[: len(start)] for line, start in zip(said, words, strict=False)] == words
    assert said[-1] == "the end"
    assert ("the server answers again" in said) == ("server" in case)
    assert server.asked[-1]["heard"]
    assert (len(server.submitted), server.aborted, len(set(server.tokens))) == (1, 0, 1)
    lost = {name for asked in server.asked for name in asked.get("lost", ())}
    assert lost == server.without
    assert not any("stop" in asked for asked in server.asked)


DEATHS = {
    "a site's job": [told("round 1", name="one"), DIED],
    "a site's machine": [told("round 1", name="one"), told(ended=Ending("away", "site 'north': not connected")), DIED],
    "aborted": [told("round 1", name="one"), "FINISHED:ABORTED"],
    "the server": [told("round 1", name="one"), *[NoConnection("dead")] * 3, JobNotRunning(""), JobNotRunning("")],
}
"""NVFlare may go on calling a job running that died with its server."""


@pytest.mark.parametrize("case", DEATHS)
def test_a_job_that_dies_ends_the_command_with_what_resumes_the_run(followed, case):
    server, said = Server(*DEATHS[case]), []
    words = "to resume from the last checkpoint: the same command with --name one --ckpt_path last"
    with refused(TrainingError, words):
        followed(server, said=said)
    assert said[0] == "round 1"
    assert len(server.submitted) == 1
    assert server.aborted == (case == "the server")


def test_a_run_that_has_failed_ends_with_its_reason_only(followed):
    server = Server(told(ended=Ending("failed", "a loss is not finite")))
    with refused(TrainingError, "a loss is not finite"):
        followed(server)
    assert len(server.submitted) == 1


def test_a_run_that_was_asked_to_stop_has_stopped_whatever_dies_then(followed):
    server = Server(told(), KeyboardInterrupt, told(), told("round 1"), DIED)
    ending, said = followed(server)
    assert ending == Ending("stopped")
    assert said == ["stopping after this round; Ctrl-C again aborts it", "round 1"]


def test_a_lead_whose_certificate_is_refused_is_told_so_and_waits_no_longer(followed, tmp_path):
    authority, other, said = Authority(), Authority(), []
    with listening(tmp_path / "server", authority, authority.pair("localhost")) as port:
        expired = authority, authority.pair("lead", since=-2 * DAY, until=-DAY)
        for (root, pair), words in ((expired, "client.crt"), ((other, other.pair("lead")), "certificate")):
            packed(tmp_path, root, pair, port)
            with refused(ConfigError, words):
                followed(Server(FINISHED, lost=1), said=said)
    assert said == []


def test_a_server_that_is_down_is_waited_for_and_named(followed, tmp_path):
    """NVFlare is not asked before: each failed attempt of its own leaves threads that keep the process alive."""
    other, asked = Authority(), []

    class Heard(list):
        def append(self, line: str) -> None:
            super().append(line)
            asked.append(server.asked.copy())
            (tmp_path / "startup" / "fed_client.json").unlink(missing_ok=True)  # the next attempt is the fake server's

    server = Server(FINISHED)
    with listening(tmp_path / "server", other, None) as port:  # speaks no TLS, as something else in its place
        packed(tmp_path, other, other.pair("lead"), port)
        _, said = followed(server, said=Heard())
    assert said[0].startswith(f"the server does not answer (the program that answers at localhost:{port}")
    assert said[0].endswith("; waiting for it")
    assert asked[0] == []


def running(**values: str) -> dict:
    return {"job_id": "job-0", "name": "fedlit", "status": "RUNNING", "submitter_name": "lead@example.org"} | values


def test_a_run_whose_job_is_at_work_is_shown_and_not_submitted(followed):
    script = JobNotRunning(""), told(means=None), told(means=True, name="one"), told("round 1"), FINISHED
    server = Server(*script, listed=[running()], status="SUBMITTED")
    ending, said = followed(server, "default")
    assert ending.kind == "finished"
    assert server.asked[0]["means"] == {"experiment": "default", "name": None}
    assert said[0].startswith("a job is running this run")
    assert said[1] == "round 1"
    assert server.submitted == []


@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ({}, told(means=False)),
        ({}, told(ended=Ending("failed", "no such folder"))),
        ({"status": "FINISHED:COMPLETED"}, told()),
        ({"submitter_name": "other@example.org"}, told()),
        ({"name": "another"}, told()),
    ],
)
def test_a_job_of_another_run_is_left_alone(followed, job, answer):
    server = Server(answer, FINISHED, listed=[running(**job)])
    followed(server, "default")
    assert len(server.submitted) == 1
    assert server.aborted == 0


@pytest.mark.parametrize(
    ("script", "said", "aborted"),
    [
        ([told(), KeyboardInterrupt, told(), KeyboardInterrupt], "the job was aborted. To resume from the last", 1),
        ([KeyboardInterrupt, NoConnection(""), NoConnection(""), KeyboardInterrupt], "the job was aborted", 1),
        ([told(), SystemExit], "the job continues at the server", 0),
    ],
)
def test_who_leaves_is_told_what_becomes_of_the_job(followed, script, said, aborted):
    server, heard = Server(*script), []
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        followed(server, said=heard)
    assert heard[-1].startswith(said)
    assert "--ckpt_path last" in heard[-1]
    assert server.aborted == aborted


def test_who_leaves_while_the_server_is_silent_is_told_that_nobody_knows(followed):
    silent = raising(NoConnection("dead"))
    script = KeyboardInterrupt, told(), KeyboardInterrupt
    server, heard = Server(*script, abort_job=silent, get_job_meta=silent), []
    with pytest.raises(KeyboardInterrupt):
        followed(server, said=heard)
    assert heard[-1].startswith("the server does not answer, so the job may or may not continue")


MAY_RUN = "this command has not seen a job of its run, but one may be running. To check: the same command with "


@pytest.mark.parametrize(
    ("moment", "words"), [("get_system_info", "no job was submitted"), ("submit_job", f"{MAY_RUN}--ckpt_path last")]
)
def test_who_leaves_before_there_is_a_job_is_told_so(followed, moment, words):
    server, heard = Server(**{moment: raising(KeyboardInterrupt())}), []
    with pytest.raises(KeyboardInterrupt):
        followed(server, said=heard)
    assert heard == [words]


def lead(folder: Path, sites: object) -> Path:
    for name, text in (
        ("startup/fed_admin.json", json.dumps({"admin": {"username": "lead@example.org"}})),
        ("local/fedlit-lead.yaml", yaml.safe_dump(sites)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_lead_is_read_from_its_folder(tmp_path):
    assert Lead.read(lead(tmp_path, {"sites": list(SITES)})) == Lead(tmp_path, "lead@example.org", SITES)


@pytest.mark.parametrize(
    ("summary", "shown"),
    [
        (
            "mlflow ui --backend-store-uri sqlite:////srv/mlflow.db\nhttp://127.0.0.1:5000/#/experiments/1",
            "charts, by this command at fl.example.org: mlflow ui --host fl.example.org --allowed-hosts "
            "fl.example.org:5000 "
            "--backend-store-uri sqlite:////srv/mlflow.db\nhttp://fl.example.org:5000/#/experiments/1",
        ),
        ("MLflow: http://localhost:8080/#/experiments/1", "MLflow: http://fl.example.org:8080/#/experiments/1"),
        ("MLflow: https://charts.example.org/#/x", "MLflow: https://charts.example.org/#/x"),
        ("", ""),
    ],
)
def test_addresses_at_the_end_are_those_by_which_the_server_is_reached(tmp_path, summary, shown):
    assert Lead(tmp_path, "lead@example.org", SITES, "fl.example.org").reaching(summary) == shown


@pytest.mark.parametrize(
    "sites", [{"sites": []}, {"sites": "north"}, {"site": ["north"]}, ["north"], {"sites": ["north", "north"]}]
)
def test_a_lead_that_names_no_sites(tmp_path, sites):
    with refused(ConfigError, "fedlit-lead.yaml"):
        Lead.read(lead(tmp_path, sites))
