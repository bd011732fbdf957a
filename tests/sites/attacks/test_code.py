"""Code: no string of a message is imported, at a site as at a server; a class comes out of the receiver's own table."""

import json
import random
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from types import SimpleNamespace

import pytest
import torch
from attacker import MODEL, a_plan, submitted
from lightning.pytorch import LightningModule
from refusals import refused

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.system.typed import Mistyped, Table, built
from fedlit.experiment.phases import Phase
from fedlit.schedules import Schedule
from fedlit.sites.configuration import ServerSettings, experiment_of
from fedlit.sites.messages import FAILED, REPLY, Member, Prepare, new_run
from fedlit.sites.plan import read_plan, shipped_classes, table_of
from fedlit.sites.process import SitesInProcess
from fedlit.sites.server import Hosted

ROUTES = [
    "fedlit.tracking.run.os.system",
    "torch.optim.sgd.torch.load",
    "torch.optim.Optimizer",
    "torch.nn.Linear",
    "fedlit.sites.flare.Site",
    "fedlit.testing.ToyNet",
    "fedlit.models.ImageClassifier.load_from_checkpoint",
    "os.system",
    "builtins.eval",
    "SYSTEM",
    "ImageClassifier ",
    "fedlit.models.ImageClassifier\x00",
    "",
]
"""Paths that lead to code: along attributes of modules, to what is installed, to what is no class."""

PLACES = {
    "model": lambda spec: {"model": spec},
    "optimizer": lambda spec: {"model": MODEL | {"init_args": MODEL["init_args"] | {"optimizer": spec}}},
    "objective": lambda spec: {"model": MODEL | {"init_args": MODEL["init_args"] | {"objective": spec}}},
    "aggregator": lambda spec: {"aggregators": [spec]},
    "schedule": lambda spec: {"schedule": spec},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_path_that_is_no_key_of_the_table_is_refused(attacked, place):
    for path in ROUTES:
        answer = attacked.prepare(None, new_run(), {}, **PLACES[place]({"class_path": path, "init_args": {}}))
        attacked.refuses(answer, "")
        assert answer.content["kind"] in ("refused", "failed"), path
        words = "add allow:", "is not in the table", "expected"
        assert any(each in answer.content["reason"] for each in words), path


NO_OBJECTS = (
    "torch.optim.SGD",
    "fedlit.tracking.run.os.system",
    ["torch.optim.SGD"],
    {"class_path": ["torch.optim.SGD"]},
    {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}, "dict_kwargs": {"x": "os.system"}},
    {"class_path": "torch.optim.SGD", "init_args": ["lr"]},
    {"class_path": "SGD", "init_args": {"lr": {"class_path": "SGD"}}},
    {"class_path": "SGD", "init_args": {"lr": "!!python/object/apply:os.system [id]"}},
)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_but_a_class_and_its_arguments_is_an_object(attacked, place):
    for spec in NO_OBJECTS:
        attacked.refuses(attacked.prepare(None, new_run(), {}, **PLACES[place](spec)), "")


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("optimizer", "fedlit.models.ImageClassifier"),
        ("optimizer", "fedlit.aggregators.FedBN"),
        ("objective", "fedlit.models.ImageClassifier"),
        ("objective", "torch.optim.SGD"),
        ("aggregator", "fedlit.schedules.ConstantSchedule"),
        ("schedule", "FedBN"),
        ("model", "AUCSaddle"),
    ],
)
def test_the_place_decides_the_kind(attacked, place, path):
    answer = attacked.prepare(None, new_run(), {}, **PLACES[place]({"class_path": path, "init_args": {}}))
    attacked.refuses(answer, "expected a ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "/etc/passwd"}, "as the server sends the weights"),
        ({"pretrained": True}, "as the server sends the weights"),
        ({"backbone": "hf_hub:somebody/model"}, "timm has no 'hf_hub:somebody/model'"),
        ({"backbone": "local-dir:/etc"}, "timm has no 'local-dir:/etc'"),
        ({"hidden": True}, "expected a whole number, found True"),
        ({"hidden": 10**40}, "expected a number in (-9223372036854775808"),
        ({"drop_rate": "0.1"}, "expected a number, found '0.1'"),
        ({"nothing": 1}, "has no 'nothing'"),
        ({"classes": ["x"]}, ""),
    ],
)
def test_arguments_are_checked(attacked, options, words):
    model = MODEL | {"init_args": MODEL["init_args"] | options}
    answer = attacked.prepare(run=new_run(), model=model)
    if "classes" in options:  # they are the data's, whatever is said
        assert answer.verb == REPLY
        assert answer.content["classes"] == attacked.classes
    else:
        attacked.refuses(answer, words)


def test_a_model_that_is_too_large_is_refused(attack, tmp_path, monkeypatch):
    site = attack(limits={"parameters": 50_000})
    site.refuses(site.prepare(), "limits.parameters allows 50,000", "failed")
    monkeypatch.chdir(tmp_path)
    own = ServerSettings(logger=False, parameters=50_000)
    with refused(ConfigError, "allows 50,000"), experiment_of(submitted(), own, "one"):
        pass


def test_a_site_takes_what_its_own_file_names_and_nothing_near_it(attack):
    """Imported when it starts, by its own file; what is near it is refused."""
    site = attack(allow=["fedlit.testing.ToyNet"])
    site.hello()
    assert site.hello(needs=["fedlit.testing.ToyNet"]).verb == REPLY
    site.refuses(
        site.hello(needs=["fedlit.testing.ToyData"]), "write allow: [fedlit.testing.ToyNet, fedlit.testing.ToyData]"
    )
    assert attack("broken", allow=["fedlit.testing.Nothing"]).hello().content["kind"] == "unfit"


class Open(torch.nn.Module):
    """A receiver's own class, which takes anything that is plain."""

    def __init__(self, size: int, **options) -> None:
        super().__init__()
        self.given = size, options


def test_a_class_of_a_receivers_own_may_take_any_plain_value():
    table = Table({"own.Open": Open}, (torch.nn.Module,))
    spec = {"class_path": "own.Open", "init_args": {"size": 3}, "dict_kwargs": {"depth": [1, {"a": None}]}}
    assert built(torch.nn.Module, spec, "", table).given == (3, {"depth": [1, {"a": None}]})
    for odd in ({"x": float("inf")}, {"x": b"bytes"}, {"x": {1, 2}}, ["x"]):
        with pytest.raises(Mistyped):
            built(torch.nn.Module, spec | {"dict_kwargs": odd}, "", table)


def mutated(path: str, draw: random.Random) -> str:
    """A class path with one thing changed."""
    parts, others = (
        path.split("."),
        ("os", "system", "__class__", "__init__", "torch", "load", "eval", "sys", "modules", "*", "..", ""),
    )
    where = draw.randrange(len(parts) + 1)
    letter = draw.randrange(len(path))
    return draw.choice(
        [
            lambda: ".".join([*parts[:where], draw.choice(others), *parts[where:]]),
            lambda: ".".join(parts[:where] + parts[where + 1 :]),
            lambda: path[:letter] + draw.choice("./:\\ _-\0\nAz0é") + path[letter:],
            lambda: path[:letter] + path[letter + 1 :],
            lambda: path.swapcase(),
            lambda: f"{path}.{draw.choice(others)}",
            lambda: f"{draw.choice(others)}.{path}",
            lambda: path.replace(".", ":", 1),
        ]
    )()


class Watching(MetaPathFinder):
    """Notes what is asked to be imported."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)


def test_thousands_of_mutated_paths_import_nothing():
    """In every place where a class may be named; what is imported while fedlit's own classes are made does not
    count."""
    table, draw, watch = table_of(), random.Random(0), Watching()
    paths = sorted(shipped_classes())
    kinds = {
        "model": lambda spec: built(LightningModule, spec, "model", table),
        "optimizer": lambda spec: built(
            LightningModule,
            {"class_path": "LogisticRegression", "init_args": {"features": 2, "optimizer": spec}},
            "",
            table,
        ),
        "aggregator": lambda spec: built(list[Aggregator], [spec], "aggregators", table),
        "schedule": lambda spec: built(Schedule, spec, "schedule", table),
        "objective": lambda spec: built(Phase, {"name": "warm-up", "objective": spec}, "phase", table),
    }
    for make in kinds.values():  # what their own constructors import, they have imported
        for path in paths:
            with suppress(Mistyped):
                make({"class_path": path, "init_args": {"lr": 0.1}})
    before, tried = set(sys.modules), 0
    sys.meta_path.insert(0, watch)
    try:
        while tried < 2000:
            path = mutated(draw.choice(paths), draw)
            if path in table.classes:
                continue
            tried += 1
            make = kinds[draw.choice(sorted(kinds))]
            with pytest.raises(Mistyped):
                make({"class_path": path, "init_args": {}} if draw.random() < 0.8 else path)
    finally:
        sys.meta_path.remove(watch)
    assert watch.asked == []
    assert set(sys.modules) == before


SGD_SYSTEM = {"class_path": "fedlit.tracking.run.os.system", "init_args": {"command": "id"}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": SGD_SYSTEM},
            "the server does not allow fedlit.tracking.run.os.system; its administrator may add allow: ",
        ),
        ({"model": MODEL | {"init_args": {"optimizer": SGD_SYSTEM}}}, "does not allow fedlit.tracking.run.os.system"),
        ({"callbacks": [SGD_SYSTEM]}, "does not allow fedlit.tracking.run.os.system"),
        ({"callbacks": [{"class_path": "fedlit.aggregators.FedBN"}]}, "callbacks.0: expected a Callback"),
        ({"phases": [{"name": "a", "objective": SGD_SYSTEM}]}, "does not allow fedlit.tracking.run.os.system"),
        ({"federation": {"aggregators": [SGD_SYSTEM]}}, "does not allow fedlit.tracking.run.os.system"),
        ({"federation": {"aggregators": ["os.system"]}}, "federation.aggregators.0: expected class_path"),
        ({"federation": {"schedule": "os.system"}}, "federation.schedule: "),
        ({"federation": {"rounds": 1, "rank": 2}}, "has no 'rank'"),
        ({"federation": {"rounds": 2.5}}, "expected"),
        ({"ckpt_path": "/etc"}, "ckpt_path: expected 'last' or 'best'"),
        ({"experiment": "../../x"}, "experiment: expected a name of letters"),
        ({"name": "/../../x"}, "name: expected a name of letters"),
        ({"phases": [{"name": "../x"}]}, "phases.name: expected a name of letters"),
        (
            {"model": MODEL | {"init_args": {"weights": "/etc/passwd"}}},
            "expected a name that the server's file lists (chest)",
        ),
        ({"model": MODEL | {"init_args": {"weights": "chest"}}}, "no file or directory chest.pth"),
        ({"fabric": {"precision": "16-true"}}, "fabric.precision: expected one of"),
        ({"tags": {"a": {"b": 1}}}, "tags.a: expected a text"),
        ({"seed": "0"}, "seed: expected a whole number"),
    ],
)
def test_a_lead_runs_no_code_at_the_server(tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    own = ServerSettings(logger=False, weights={"chest": "chest.pth"}, parameters=10**9)
    with pytest.raises(ConfigError) as told, experiment_of(submitted(**changes), own, "one"):
        pass
    assert words in str(told.value), told.value
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"data": {}, "data": {}}', '{"data": NaN}', "[" * 100_000, json.dumps({"data": {},
    "settings": {}, "x": 1}),
     submitted().replace('"seed": 0', '"seed": NaN'), submitted().replace('"seed": 0', '"seed": 1e999'),
     submitted().replace('"seed": 0', '"seed": 0, "seed": 1')],
)  # fmt: skip
def test_what_is_no_json_of_a_lead_is_refused_in_words(text):
    with (
        pytest.raises(ConfigError, match="the configuration at the server"),
        experiment_of(text, ServerSettings(), "one"),
    ):
        pass


def test_folders_and_loggers_are_the_servers_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {
        "run_dir": "/etc/x",
        "logger": {"class_path": "fedlit.tracking.MLflowTracker", "init_args": {"tracking_uri": "http://x"}},
    }
    with experiment_of(submitted(**changes), ServerSettings(run_dir="here", logger=False), "one") as experiment:
        assert type(experiment.model).__name__ == "ImageClassifier"
        assert (experiment.federation.rounds, experiment.data.classes) == (2, ("Edema", "Mass"))
        assert str(experiment.run_dir) == "here"
        assert experiment.settings["run_dir"] == "here"
        assert not experiment.tracker.keeps_models
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "path", "meant"),
    [(None, None, "new"), (None, "last", None), ("mine", "last", "mine"), ("mine", None, "mine")],
)
def test_the_last_run_is_that_of_any_name_unless_one_is_given(tmp_path, monkeypatch, name, path, meant):
    """The name that a command has made up for a new run is none by which an earlier one is found."""
    monkeypatch.chdir(tmp_path)
    with experiment_of(submitted(name=name, ckpt_path=path), ServerSettings(logger=False), "new") as experiment:
        assert experiment.name == meant


def test_a_job_whose_configuration_is_refused_ends_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fedlit.json").write_text(submitted(model=SGD_SYSTEM))
    hosted = Hosted(tmp_path / "fedlit.json", "one", SitesInProcess({}))
    hosted.train()
    assert hosted.ending.kind == "failed"
    assert "the server does not allow fedlit.tracking.run.os.system" in hosted.ending.reason


def test_unknown_keys_of_a_servers_own_file_are_named(tmp_path):
    file = tmp_path / "fedlit-server.yaml"
    file.write_text("hme: here\n")
    with refused(ConfigError, "fedlit-server.yaml", "'hme'"):
        ServerSettings.read(file)


def test_a_model_is_counted_before_it_takes_memory(monkeypatch):
    """The weights of a model that is too large are never made."""
    made = []
    monkeypatch.setattr(torch, "empty", lambda *a, real=torch.empty, **k: made.append(k.get("device")) or real(*a, **k))
    with refused(ConfigError, "limits.parameters allows"):
        read_plan(a_plan(), table_of(), 1000)
    assert all(str(device) == "meta" or device is None for device in made)


def test_a_prepare_whose_members_are_others_is_refused(attacked):
    attacked.prepare(run=new_run())
    for name, weight, words in (
        ("../x", 1.0, "has no client"),
        (attacked.client, 1.5, "weight in (0, 1]"),
        (attacked.client, 0.0, "(0, 1]"),
    ):
        asked = Prepare(new_run(), a_plan(), attacked.fingerprint, [Member(name, weight)])
        answer = attacked.ask("prepare", asked, attacked.tensors())
        attacked.refuses(answer, words, "unfit")
    assert answer.verb == FAILED


@pytest.mark.parametrize(
    ("means", "is_meant"),
    [
        ({"experiment": "default"}, True), ({"experiment": "default", "name": "one"}, True),
        ({"experiment": "default", "name": "other"}, False), ({"experiment": ["default"]}, False), ("default", False),
        (7, False),
    ],
)  # fmt: skip
def test_a_lead_that_asks_in_another_form_does_not_mean_the_run(means, is_meant, tmp_path):
    hosted = Hosted(tmp_path / "fedlit.json", "one", SitesInProcess({}))
    hosted._roster = SimpleNamespace(directory=tmp_path / "default" / "one")
    assert hosted.progress({"means": means})["means"] is is_meant
