"""The lead's half over NVFlare, with a server that dies as it is told to: one run comes of it, in as many jobs as it
takes."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from certificates import DAY, Authority, listening, packed
from filelock import FileLock
from nvflare.fuel.flare_api.api_spec import JobNotRunning, NoConnection
from refusals import refused

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites import link, supervisor
from fedlit.sites.hosting import Ending
from fedlit.sites.submission import Lead, Submission, write_job
from fedlit.sites.supervisor import ATTEMPTS, Supervisor

SITES = ("north", "south")
DIED = "FINISHED:EXECUTION_EXCEPTION"


def told(*lines: str, kept: int = 0, ended: Ending | None = None, means: bool | None = None, run: str = "") -> dict:
    end = asdict(ended) if ended else None
    return {"lines": list(lines), "run": run, "kept": kept, "away": [], "ended": end, "means": means}


FINISHED = told("the end", ended=Ending("finished", rounds=3))


class Server:
    """What NVFlare's session answers: each job is a list of what it tells at each look, or of what is raised."""

    def __init__(self, *jobs: list) -> None:
        self.jobs, self.submitted, self.tokens, self.asked = list(jobs), [], [], []
        self.there = [set(SITES)]
        self.without: set[str] = set()
        self.silent: set[str] = set()
        self.listed: list[dict] = []
        self.status, self.aborted = "RUNNING", 0
        self.lost = 0

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
        self.script, self.status = self.jobs.pop(0), "RUNNING"
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
        if step in (KeyboardInterrupt, SystemExit):
            raise step
        if isinstance(step, Exception):
            raise step
        return step

    def get_job_meta(self, job: str) -> dict:
        return {"status": self.status}

    def get_client_job_status(self) -> list[dict]:
        rows = []
        for name in SITES:
            if name in self.silent:
                rows.append({"client_name": name, "status": "no_reply"})
            elif name in self.without:
                rows.append({"client_name": name, "status": "no_jobs"})
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
def supervised(monkeypatch, tmp_path):
    """Runs a federation at a server; returns its end and what the lead was told."""
    for name in ("LOOK", "GONE", "SIDEWARD"):
        monkeypatch.setattr(supervisor, name, 0.0)

    def run(server: Server, resumed: str | None = None, said: list[str] | None = None) -> tuple[Ending, list[str]]:
        monkeypatch.setattr(link, "new_secure_session", lambda *args, **options: server)
        said = [] if said is None else said
        lead = Lead(tmp_path, "lead@example.org", SITES)
        return Supervisor(lead, Submission("", "one", resumed), said.append).run(), said

    return run


def one_run(server: Server) -> bool:
    """Whether all jobs were submitted for one run, which has an id."""
    return len({job["run"] for job in server.submitted}) == 1 and bool(server.submitted[0]["run"])


def test_a_job_that_dies_is_submitted_again_for_the_same_run(supervised):
    server = Server([told("round 1"), told("round 2", kept=1), DIED], [told("round 3"), FINISHED])
    ending, said = supervised(server)
    assert ending.kind == "finished"
    assert len(server.submitted) == 2
    assert one_run(server)
    assert [line for line in said if line.startswith("round")] == ["round 1", "round 2", "round 3"]
    assert {"since": 1, "heard": True} not in server.asked[:1]
    assert server.asked[-1]["heard"]


@pytest.mark.parametrize(
    ("script", "mistake"),
    [
        ([told(ended=Ending("failed", "a loss is not finite"))], (TrainingError, "a loss is not finite")),
        ([told(), "FINISHED:ABORTED"], (TrainingError,)),
    ],
)
def test_a_run_that_cannot_go_on_is_not_submitted_again(supervised, script, mistake):
    server = Server(script)
    with refused(*mistake):
        supervised(server)
    assert len(server.submitted) == 1


def test_a_site_that_went_away_ends_the_job_and_not_the_run(supervised):
    server = Server(
        [told("round 1", kept=1), told(ended=Ending("away", "site 'north': not connected")), DIED], [FINISHED]
    )
    server.there = [set(SITES), {"south"}, set(SITES)]
    _, said = supervised(server)
    assert said.index("site 'north': not connected") < said.index("waiting for north") < said.index("the end")
    assert one_run(server)


def test_a_server_that_dies_is_waited_for_and_its_job_is_not(supervised):
    """NVFlare may go on calling a job running that died with its server."""
    silence = [NoConnection("dead")] * 3
    server = Server([told("round 1", kept=1), *silence, JobNotRunning(""), JobNotRunning("")], [FINISHED])
    _, said = supervised(server)
    assert said[1].startswith("the server does not answer (dead)")
    assert said[2] == "the server answers again"
    assert server.aborted == 1
    assert one_run(server)


def test_a_lead_whose_certificate_has_expired_is_told_so_and_waits_no_longer(supervised, tmp_path):
    authority = Authority()
    packed(tmp_path, authority, authority.pair("lead", since=-2 * DAY, until=-DAY), 8002)
    server, said = Server([FINISHED]), []
    server.lost = 1
    with refused(ConfigError, "client.crt"):
        supervised(server, said=said)
    assert said == []


def test_a_lead_of_another_federation_is_told_so_and_waits_no_longer(supervised, tmp_path):
    authority, other = Authority(), Authority()
    with listening(tmp_path / "server", authority, authority.pair("localhost")) as port:
        packed(tmp_path, other, other.pair("lead"), port)
        server, said = Server([FINISHED]), []
        server.lost = 1
        with refused(ConfigError, "certificate"):
            supervised(server, said=said)
    assert said == []


def test_a_server_that_is_down_is_waited_for_whatever_the_certificate(supervised, tmp_path):
    other = Authority()
    with listening(
        tmp_path / "server", other, None
    ) as port:  # speaks no TLS, as something else in its place for a while
        packed(tmp_path, other, other.pair("lead"), port)
        server = Server([FINISHED])
        server.lost = 1
        _, said = supervised(server)
    assert said[0].startswith("the server does not answer")


def test_a_job_that_takes_long_to_begin_is_waited_for(supervised):
    """NVFlare reports running before its process answers."""
    server = Server([*[JobNotRunning("")] * 5, FINISHED])
    supervised(server)
    assert len(server.submitted) == 1
    assert server.aborted == 0


def test_a_server_that_dies_while_it_is_given_a_job_gets_it_once(supervised):
    server = Server([FINISHED])
    server.lost = 2
    supervised(server)
    assert len(server.tokens) == 3
    assert len(set(server.tokens)) == 1


def test_a_site_that_came_back_without_the_job_gets_a_new_one_at_the_end_of_a_round(supervised):
    running = [told(kept=1)] * 6
    server = Server([*running, told(kept=1, ended=Ending("stopped")), DIED], [FINISHED])
    server.without = {"north"}
    _, said = supervised(server)
    assert "north reconnected without the job; restarting the job after this round" in said
    assert {(asked["stop"], *asked["lost"]) for asked in server.asked if "stop" in asked} == {(True, "north")}
    assert len(server.submitted) == 2


def test_a_site_that_does_not_answer_is_not_one_that_came_back(supervised):
    server = Server([*[told(kept=1)] * 6, FINISHED])
    server.silent = {"north"}
    supervised(server)
    assert [asked for asked in server.asked if "stop" in asked] == []
    assert len(server.submitted) == 1


def running(**values: str) -> dict:
    return {"job_id": "job-0", "name": "fedlit", "status": "RUNNING", "submitter_name": "lead@example.org"} | values


def test_a_run_whose_job_is_at_work_is_watched_and_not_submitted(supervised):
    server = Server([FINISHED])
    server.listed, server.status = [running()], "SUBMITTED"
    server.script = [JobNotRunning(""), told(means=None), told(means=True, run="abc"), told("round 1"), DIED]
    ending, said = supervised(server, "default")
    assert ending.kind == "finished"
    assert server.asked[0]["means"] == {"experiment": "default"}
    assert said[0].startswith("a job is running this run")
    assert said[1] == "round 1"
    assert [job["run"] for job in server.submitted] == [""]


@pytest.mark.parametrize(
    ("job", "answer"),
    [
        ({}, told(means=False)),
        ({}, told(ended=Ending("failed", "no such folder"))),
        ({"status": "FINISHED:COMPLETED"}, None),
        ({"submitter_name": "other@example.org"}, None),
        ({"name": "another"}, None),
    ],
)
def test_a_job_of_another_run_is_left_alone(supervised, job, answer):
    server = Server([FINISHED])
    server.listed = [running(**job)]
    server.script = [answer]
    supervised(server, "default")
    assert len(server.submitted) == 1
    assert server.aborted == 0


def test_two_commands_do_not_watch_over_one_run(supervised, tmp_path):
    server = Server()
    server.listed, server.script = [running()], [told(means=True, run="abc")]
    with FileLock(tmp_path / ".fedlit-abc.lock"), refused(ConfigError, "another command is watching this run"):
        supervised(server, "default")
    assert server.submitted == []
    assert server.aborted == 0


@pytest.mark.parametrize(
    ("script", "said", "aborted"),
    [
        (
            [told(), KeyboardInterrupt, told(), KeyboardInterrupt],
            "the job was aborted. To resume from the last checkpoint",
            1,
        ),
        ([KeyboardInterrupt, NoConnection(""), NoConnection(""), KeyboardInterrupt], "the job was aborted", 1),
        ([told(), SystemExit], "the job continues, but nobody resubmits it if it dies", 0),
    ],
)
def test_who_leaves_is_told_what_becomes_of_the_job(supervised, script, said, aborted):
    server, heard = Server(script), []
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        supervised(server, said=heard)
    assert heard[-1].startswith(said)
    assert "--ckpt_path last" in heard[-1]
    assert server.aborted == aborted


def test_who_leaves_while_the_server_is_silent_is_told_that_nobody_knows(supervised):
    def silent(job: str) -> None:
        raise NoConnection("dead")

    server, heard = Server([KeyboardInterrupt, told(), KeyboardInterrupt]), []
    server.abort_job = silent
    server.get_job_meta = silent
    with pytest.raises(KeyboardInterrupt):
        supervised(server, said=heard)
    assert heard[-1].startswith("the server does not answer, so the job may or may not continue")


def test_who_leaves_before_there_is_a_job_is_told_so(supervised):
    server, heard = Server(), []
    server.get_system_info = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        supervised(server, said=heard)
    assert heard == [
        "this command has not seen a job of its run, but one may be running. To check: the same command with "
        "--ckpt_path last"
    ]


def test_what_dies_without_progress_is_given_up(supervised):
    server = Server(*[[told(kept=2), DIED] for _ in range(ATTEMPTS + 5)])
    with refused(TrainingError, ATTEMPTS + 1):
        supervised(server)
    assert one_run(server)


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
    ("sites", "kind"),
    [
        ({"sites": []}, ConfigError),
        ({"sites": "north"}, ConfigError),
        ({"site": ["north"]}, ConfigError),
        (["north"], ConfigError),
        ({"sites": ["north", "north"]}, ConfigError),
    ],
)
def test_a_lead_that_names_no_sites(tmp_path, sites, kind):
    with refused(kind):
        Lead.read(lead(tmp_path, sites))


def test_a_job_holds_configuration_alone(tmp_path):
    folder = write_job(tmp_path / "job", SITES, "abc", Submission('{"seed": 1}', "one"))
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {
        "meta.json",
        "app_server/config/config_fed_server.json",
        "app_server/config/fedlit.json",
        "app_site/config/config_fed_client.json",
    }
    text = "".join((folder / file).read_text() for file in files if file.endswith("fedlit.json") is False)
    assert {word for word in text.split('"') if word.startswith("fedlit.") and word != "fedlit.json"} == {
        "fedlit.sites.flare.Rounds", "fedlit.sites.flare.Site"
    }  # fmt: skip
