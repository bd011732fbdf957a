"""One lead cannot ruin what belongs to another: states, models, directories and files of the server, and tags."""

import json
from pathlib import Path

import pytest
from attacker import submitted
from refusals import refused

from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.sites.configuration import ServerSettings, experiment_of
from fedlit.sites.folders import server_rules
from fedlit.sites.messages import REPLY, Final, Task, new_run
from fedlit.sites.roster import Roster

SCAFFOLD = [{"class_path": "Scaffold"}]


@pytest.mark.parametrize(
    ("role", "organisation", "allowed"),
    [
        ("lead", "university", {"submit_job"}), ("member", "university", set()), ("org_admin", "north_hospital", set()),
        ("org_admin", "university", {"disable_client", "enable_client", "remove_client", "shutdown", "restart"}),
    ],
)  # fmt: skip
def test_only_the_servers_administrator_has_power_over_the_sites_of_others(role, organisation, allowed):
    """As NVFlare's server decides with the rules that fedlit writes; only a lead submits jobs."""
    authz = pytest.importorskip("nvflare.fuel.sec.authz")
    security = pytest.importorskip("nvflare.security.security")
    server = security.FLAuthorizer("university", server_rules(Path("store"))["authorization.json"])
    person = authz.Person("mallory@example.org", organisation, role)
    commands = ("submit_job", "disable_client", "enable_client", "remove_client", "shutdown", "restart")
    assert {each for each in commands if server.authorize(authz.AuthzContext(each, person))[0]} == allowed


OTHER = "other@example.org"


def test_another_lead_reaches_no_states_of_a_run(attack):
    server = attack()
    run = new_run()
    server.prepare(run=run, aggregators=SCAFFOLD)
    zero = {"0/c": server.model.w * 0}
    assert server.train(0, **zero).verb == REPLY
    assert server.train(1, **zero).verb == REPLY
    kept = sorted(server.state.rglob("*.pt"))
    server.again(OTHER)
    answer = server.prepare(run=run)
    assert "was begun by another lead" in answer.content["reason"]
    assert answer.content["kind"] == "refused"
    assert server.train(0).content["kind"] == "refused"
    assert sorted(server.state.rglob("*.pt")) == kept
    server.again()
    server.prepare(run=run, aggregators=SCAFFOLD)
    assert server.train(2, **zero).verb == REPLY


def test_a_lead_whose_plan_was_refused_owns_no_run(attack):
    server, run = attack(), new_run()
    server.refuses(server.prepare(run=run, batch_size=1), "floors.batch_size")
    server.again(OTHER)
    assert server.prepare(run=run).verb == REPLY


def test_a_model_that_came_home_is_never_replaced(attack):
    server = attack()
    server.prepare()

    def model(scale: float):
        asked = Final(1, [True] * len(server.classes))
        task = Task(server.run, server.fingerprint, None, None, [], False, asked)
        return server.ask("model", task, server.down(w=server.model.w * scale))

    assert model(1.0).verb == REPLY
    (file,) = (server.state / "models").iterdir()
    content = file.read_bytes()
    server.refuses(model(0.0), "never replaced", "refused")
    assert file.read_bytes() == content
    assert model(1.0).verb == REPLY  # the same again, as of a server that was killed
    assert list((server.state / "models").iterdir()) == [file]


@pytest.mark.parametrize("name", ["ledgers.json", "Ledgers.JSON", "mlflow.db"])
def test_files_of_the_server_are_no_names_of_experiments(tmp_path, name):
    settings = ServerSettings(home=str(tmp_path), run_dir=str(tmp_path), logger=False)
    with refused(ConfigError, "experiment", "choose another name"):
        made = experiment_of(submitted(experiment=name), settings, "one")
        made.__enter__()


@pytest.mark.parametrize("tag", ["mlflow.runName", "mlflow.user", "mlflow.parentRunId", "fedlit.group"])
def test_tags_of_the_server_are_refused(tmp_path, tag):
    settings = ServerSettings(run_dir=str(tmp_path), logger=False)
    with refused(ConfigError, "tags", tag):
        experiment_of(submitted(tags={tag: "another's"}), settings, "one").__enter__()


def test_a_run_at_the_server_is_its_leads(tmp_path):
    roster = Roster(None, [], {}, lead="anna@example.org")
    roster.open(tmp_path)
    assert json.loads((tmp_path / "sites.json").read_text())["lead"] == "anna@example.org"
    Roster(None, [], {}, lead="anna@example.org").open(tmp_path)
    with refused(CheckpointError, "the run of another lead"):
        Roster(None, [], {}, lead="bert@example.org").open(tmp_path)
