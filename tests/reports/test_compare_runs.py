"""Runs from directories, MLflow and CSV files, as methods with names; what bad input gets."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from joining_runs import site_predictions, write_individual
from past_runs import CLASSES, config, predictions, write_run
from refusals import Cli, refused

from fedlit.core.checkpoints.manifest import Best, Manifest
from fedlit.core.errors import ConfigError
from fedlit.experiment.naming import totals
from fedlit.predictions.table import write
from fedlit.reports.compare.comparison import caveats, compare_runs
from fedlit.reports.compare.external import read_external
from fedlit.reports.compare.joining import gains_from_joining
from fedlit.reports.compare.methods import baseline_method, differences, grouped
from fedlit.reports.compare.past_run import PastRun, mean_cost, metric_against, sent, steps
from fedlit.reports.compare.runs import load_runs
from fedlit.tracking import store as tracking_store
from fedlit.tracking.base import MetricsFile
from fedlit.tracking.names import IS_PARENT

NOWHERE = "http://127.0.0.1:9"


def loaded(*names: Path | str, uri: str = NOWHERE, folder: Path = Path("unused")) -> list[PastRun]:
    return load_runs([str(name) for name in names], None, {}, uri, folder)[0]


def tagged(settings: dict, **tags: str) -> dict:
    return settings | {"tags": {f"fedlit.{key}": value for key, value in tags.items()}}


def test_runs_that_differ_in_their_seed_alone_are_one_method(tmp_path: Path) -> None:
    for name in ("FedAvg", "Scaffold"):
        for seed in (1, 0):
            write_run(tmp_path / "x" / f"{name}-{seed}", None, config((name,), seed))
    methods = grouped(loaded(tmp_path / "x"))
    assert [(m.name, m.seeds) for m in methods] == [("FedAvg", (0, 1)), ("Scaffold", (0, 1))]
    assert differences(methods).to_dict("list") == {"FedAvg": ["FedAvg"], "Scaffold": ["Scaffold"]}


def test_a_key_without_a_value_that_a_later_version_has_makes_no_other_method(tmp_path: Path) -> None:
    write_run(tmp_path / "a", None, config())
    write_run(tmp_path / "b", None, config(seed=1, later=None))
    assert [method.seeds for method in grouped(loaded(tmp_path))] == [(0, 1)]


def test_the_settings_end_with_the_epsilon_of_private_runs(tmp_path: Path) -> None:
    for name, epsilons in (("private", (2.0, 3.14159)), ("loud", (2.0, None)), ("plain", ())):
        for seed in (0, 1):
            run = write_run(tmp_path / f"{name}-{seed}", None, config((name,), seed))
            clients = {f"client {i}": {"epsilon": each} for i, each in enumerate(epsilons)}
            record = {"delta": 1e-5, "why": "not private: reproducible noise", "clients": clients}
            if epsilons:
                (run / "privacy.json").write_text(json.dumps(record))
    found = differences(grouped(loaded(tmp_path))).loc["epsilon"].to_dict()
    worth = "at delta 1e-05; not private: reproducible noise"
    assert found == {"private": f"3.14 {worth}", "loud": f"infinite {worth}", "plain": "-"}
    assert "epsilon" not in differences(grouped(loaded(*tmp_path.glob("plain*")))).index


def test_starts_of_the_same_body_are_one_method_if_each_seed_has_its_own(tmp_path: Path) -> None:
    for seed, start in ((0, "body/seed=0"), (1, "body/seed=1"), (2, "other/seed=2")):
        write_run(tmp_path / "x" / str(seed), None, config(seed=seed, weights=f"runs/{start}"))
    assert [m.seeds for m in grouped(loaded(tmp_path / "x"))] == [(0, 1), (2,)]
    write_run(tmp_path / "x" / "again", None, config(seed=0, weights="runs/body/seed=1"))
    assert sorted(m.seeds for m in grouped(loaded(tmp_path / "x"))) == [(0,), (0, 1), (2,)]


def test_names_say_what_differs_and_no_more(tmp_path: Path) -> None:
    settings = [
        config(("FedAvg", "FedBN")),
        config(("FedAvg", "FedBN"), objective={"class_path": "fedlit.objectives.AUCSaddle"}),
        config(("FedAvg", "FedBN"), rounds=7),
        config(("FedProx",), backbone="resnet18"),
    ]
    for i, each in enumerate(settings):
        write_run(tmp_path / f"run-{i}", None, each)
    names = [method.name for method in grouped(loaded(*sorted(tmp_path.iterdir())))]
    assert names == ["FedAvg+FedBN, rounds=3", "FedAvg+FedBN, AUCSaddle, rounds=3", "FedAvg+FedBN, rounds=7", "FedProx"]


def test_a_class_without_arguments_names_its_method(tmp_path: Path) -> None:
    settings = config()
    settings["federation"]["aggregators"] = [{"class_path": "__main__.Own", "init_args": {}}]
    write_run(tmp_path / "own", None, settings)
    assert [method.name for method in grouped(loaded(tmp_path / "own"))] == ["Own"]


def test_the_name_of_a_sweeps_case_is_the_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "a", None, tagged(config(), method="plain"))
    write_run(tmp_path / "b", None, tagged(config(rounds=5), method="long"))
    write_run(tmp_path / "c", None, tagged(config(rounds=9), method="long"))
    names = [method.name for method in grouped(loaded(tmp_path / "a", tmp_path / "b", tmp_path / "c"))]
    assert names == ["plain", "long, rounds=5", "long, rounds=9"]


def test_tries_of_a_tuning_are_left_out_beside_final_runs(tmp_path: Path) -> None:
    for name, rounds, stage in (("a", 3, "try"), ("b", 5, "try"), ("c", 7, "final")):
        write_run(tmp_path / "x" / name, None, tagged(config(rounds=rounds), tune=stage, case=name))
    runs, notes = load_runs([str(tmp_path / "x")], None, {}, NOWHERE, tmp_path)
    assert [run.name for run in runs] == ["c"]
    assert notes == ["2 tries of `fedlit tune` are left out; name them without other runs to compare them."]
    assert [run.name for run in loaded(tmp_path / "x/a", tmp_path / "x/b")] == ["a", "b"]


def test_methods_with_other_tuning_budgets_are_marked(tmp_path: Path) -> None:
    for name, budget in (("FedAvg", "8 tries"), ("FedProx", "4 tries"), ("Scaffold", "8 tries"), ("FedBN", None)):
        tags = {"tuned": budget} if budget else {}
        write_run(tmp_path / name, None, tagged(config((name,)), case=name, **tags))
    methods = grouped(loaded(*(tmp_path / name for name in ("FedAvg", "FedProx", "Scaffold", "FedBN"))))
    marked = [note for note in caveats(methods, methods[0]) if "budgets" in note]
    assert [note.partition(" were")[0] for note in marked] == ["FedProx and FedAvg", "FedBN and FedAvg"]
    assert "(4 tries and 8 tries)" in marked[0]
    assert "(not by `fedlit tune` and 8 tries)" in marked[1]


def test_a_repeated_run_counts_once_and_it_is_said(tmp_path: Path) -> None:
    for name in ("x/1", "x/2"):
        write_run(tmp_path / name, None, config())
    runs, notes = load_runs([str(tmp_path / "x")], None, {}, NOWHERE, tmp_path)
    assert [run.name for run in runs] == ["2"]
    assert notes == [f"{tmp_path}/x/1 is left out, as {tmp_path}/x/2 has the same settings and seed."]


def test_an_unfinished_run_is_refused_by_name_and_left_out_of_a_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "x" / "done", None, config())
    half = write_run(tmp_path / "x" / "half", None, config(("FedProx",)), finished=False)
    with refused(ConfigError, half):
        loaded(half)
    runs, notes = load_runs([str(tmp_path / "x")], None, {}, NOWHERE, tmp_path)
    assert [run.name for run in runs] == ["done"]
    assert notes == [f"{half} is left out, as it has not finished; --ckpt_path {half} resumes it."]
    with refused(ConfigError, "half"):
        compare_runs([], notes)


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "sweep.txt").touch()
    with refused(ConfigError, tmp_path):
        loaded(tmp_path / "sweep.txt")
    with refused(ConfigError, "name runs (run directories, a folder of them, ids of MLflow"):
        loaded()


def test_a_baseline_is_found_by_name(tmp_path: Path) -> None:
    for name in ("FedAvg", "Scaffold"):
        write_run(tmp_path / name, None, config((name,)))
    methods = grouped(loaded(tmp_path))
    assert baseline_method(methods, None).name == "FedAvg"
    assert baseline_method(methods, "Scaffold").name == "Scaffold"
    with refused(ConfigError, "'Scafold'"):
        baseline_method(methods, "Scafold")
    with refused(ConfigError, "'Mine'", "choose one of: FedAvg", "Scaffold"):
        baseline_method(methods, "Mine")


def test_a_path_that_is_not_there_is_no_id_of_mlflow() -> None:
    with refused(ConfigError, "runs/nowhere: expected a run directory or the id of a run in MLflow, found neither"):
        loaded("runs/nowhere")


def test_an_unknown_metric_or_set_is_answered_with_near_ones(tmp_path: Path) -> None:
    runs = loaded(write_run(tmp_path / "a", predictions(1.0), config()))
    with refused(ConfigError, "'val/auroc_makro'", "val/auroc_macro"):
        compare_runs(runs, metric="val/auroc_makro")
    with refused(ConfigError, "'val/nosuch'"):
        compare_runs(runs, metric="val/nosuch")
    with refused(ConfigError, "'federations'"):
        compare_runs(runs, test_set="federations")


def test_a_run_without_predictions_stays_in_the_curves(tmp_path: Path) -> None:
    with_them = write_run(tmp_path / "with", predictions(1.0), config(("Scaffold",)))
    without = write_run(tmp_path / "without", None, config())
    found = compare_runs(loaded(without, with_them), draws=100)
    assert [method.name for method in found.methods] == ["FedAvg", "Scaffold"]
    assert [scored.method.name for scored in found.statistics.scored] == ["Scaffold"]
    (note,) = found.notes
    assert note.startswith(f"{without} (FedAvg) has no predictions of 'federation': compare its run directory")
    with refused(ConfigError, "'FedAvg'"):
        compare_runs(loaded(without, with_them), baseline="FedAvg", draws=100)
    assert compare_runs(loaded(without)).statistics is None
    best = without / "checkpoints" / "round-000002"
    best.mkdir(parents=True)
    Manifest(2, [], [], [], {}, Best(0.7, 2)).write(best)
    (note, _) = compare_runs(loaded(without)).notes
    assert f"--config {without}/config.yaml --ckpt_path {best} --output {without}/predictions` writes them" in note


def test_cost_adds_up_over_rounds(tmp_path: Path) -> None:
    (run,) = loaded(write_run(tmp_path / "a", None, config()))
    found = mean_cost([run])
    assert (found.rounds, found.bytes, found.steps) == (3, 6e6, 60)
    np.testing.assert_allclose(found.drift, 0.2)
    assert metric_against(run, "val/auroc_macro", sent(run)).to_dict() == {2e6: 0.6, 4e6: 0.7, 6e6: 0.75}
    assert metric_against(run, "val/auroc_macro", steps(run)).to_dict() == {20: 0.6, 40: 0.7, 60: 0.75}
    (bare,) = loaded(write_run(tmp_path / "b", None, config(), {"val/auroc_macro": (0.5,)}))
    assert np.isnan([mean_cost([bare]).bytes, mean_cost([bare]).steps]).all()


def test_steps_are_those_that_the_run_itself_has_added_up(tmp_path: Path) -> None:
    curves = {"round/steps": (20, 16, 20, 8), "round/clients": (5, 4, 5, 2), "bytes/up": (1.0,) * 4}
    (run,) = loaded(write_run(tmp_path / "a", None, config(), curves))
    assert mean_cost([run]).steps == totals(MetricsFile(run.directory / "metrics.csv"))["total/steps"] == 64


def test_a_dead_server_is_told_within_seconds() -> None:
    pytest.importorskip("mlflow")
    began = time.monotonic()
    with refused(ConfigError, NOWHERE, "connection refused"):
        load_runs([], "any", {}, NOWHERE, Path("unused"))
    assert time.monotonic() - began < 20


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, "mlflow.db"):
        load_runs([], "any", {}, "sqlite:///mlflow.db", tmp_path)
    with refused(ConfigError, tmp_path, "/mlflow.db"):
        load_runs([], "any", {}, f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A SQLite store with runs of fedlit and of somebody else: its URI, and the runs' ids by name."""
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("store")
    tracking_store.create_database(folder / "mlflow.db", mlflow.MlflowClient)  # a copy of one that all tests share
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("written", artifact_location=(folder / "artifacts").as_uri())
    ids = {}
    trained = (("a-0", "FedAvg", 1.0, 0), ("a-1", "FedAvg", 1.0, 1), ("s", "Scaffold", 2.0, 0))
    for name, aggregator, strength, seed in trained:
        run = client.create_run(
            experiment, run_name=name, tags={"fedlit.git": "abc123", "kind": aggregator, "our.kind": aggregator}
        )
        directory = write_run(folder / "runs" / name, predictions(strength, seed), config((aggregator,), seed))
        for file in ("config.yaml", "metrics.csv"):
            client.log_artifact(run.info.run_id, str(directory / file))
        client.log_artifact(run.info.run_id, str(directory / "predictions/federation.parquet"), "predictions")
        client.log_artifact(run.info.run_id, str(directory / "result.json"), "best")
        client.set_terminated(run.info.run_id)
        ids[name] = run.info.run_id
    foreign = client.create_run(experiment, run_name="theirs").info.run_id
    client.log_param(foreign, "lr", "0.1")
    for step, value in enumerate((0.4, 0.5, 0.6), start=1):
        client.log_metric(foreign, "val/auroc_macro", 0.0, step=step, timestamp=1)
        client.log_metric(foreign, "val/auroc_macro", value, step=step, timestamp=2)
    client.log_metric(foreign, "val/b", math.nan, step=7)
    client.set_terminated(foreign)
    above = client.create_run(experiment, run_name="FedAvg", tags={IS_PARENT: "true"})  # of the runs of a group
    client.set_terminated(above.info.run_id)
    running = client.create_run(experiment, run_name="running").info.run_id
    return uri, ids | {"theirs": foreign, "running": running}


def test_an_experiment_of_mlflow_is_compared(store: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    uri, ids = store
    runs, notes = load_runs([], "written", {}, uri, tmp_path)
    assert [run.name for run in runs] == ["a-0", "a-1", "s", "theirs"]
    assert notes == [f"running ({ids['running']}) is left out, as its status is RUNNING."]
    found = compare_runs(runs, notes, draws=100)
    assert [(m.name, len(m.runs)) for m in found.methods] == [("FedAvg", 2), ("Scaffold", 1), ("theirs", 1)]
    assert [s.method.name for s in found.statistics.scored] == ["FedAvg", "Scaffold"]
    assert found.methods[0].runs[0].git == "abc123"
    assert runs[3].metric("val/auroc_macro").to_dict() == {1: 0.4, 2: 0.5, 3: 0.6}
    assert runs[3].metric("val/b").index.tolist() == [7]
    assert runs[3].settings == {"lr": "0.1"}
    assert any("theirs" in note and "no predictions" in note for note in found.notes)
    # What is not needed is not downloaded.
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "config.yaml", "metrics.csv", "federation.parquet",
    }  # fmt: skip


def test_runs_of_mlflow_are_named_by_id_and_by_tags(store: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    uri, ids = store
    assert [run.name for run in loaded(ids["s"], f"runs:/{ids['a-1']}", uri=uri, folder=tmp_path)] == ["s", "a-1"]
    assert [run.name for run in load_runs([], None, {"kind": "FedAvg"}, uri, tmp_path)[0]] == ["a-0", "a-1"]
    with refused(ConfigError, "'kind'", "'None'"):
        load_runs([], "written", {"kind": "None"}, uri, tmp_path)
    with refused(ConfigError, "'writen'"):
        load_runs([], "writen", {}, uri, tmp_path)
    with refused(ConfigError, "0123"):
        loaded("0123", uri=uri, folder=tmp_path)
    with refused(ConfigError, "'running'", "RUNNING"):
        loaded(ids["running"], uri=uri, folder=tmp_path)


@pytest.mark.slow
def test_tags_with_dots_are_options(
    store: tuple[str, dict[str, str]], tmp_path: Path, fedlit_cli: Cli, blank_charts
) -> None:
    line = (
        f"compare --tags.our.kind FedAvg --tags.kind FedAvg --tracking_uri {store[0]} --draws 100 --output {tmp_path}"
    )
    out = fedlit_cli(line).succeeded()
    assert "FedAvg" in out
    assert "Scaffold" not in out


def test_seeds_of_a_run_are_no_setting(tmp_path: Path) -> None:
    (run,) = loaded(write_run(tmp_path / "a", None, config(seed=3)))
    assert run.seed == 3
    assert not {"seed", "experiment", "federation.workers", "run_dir"} & set(run.settings)
    assert run.settings["federation.rounds"] == 3
    assert yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["federation"]["workers"] == 4


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "FedAvg-0", predictions(0.5, 0, 300, per_patient=2), config())


def extern(folder: Path, drop: tuple[str, ...] = (), name: str = "extern.csv") -> Path:
    """A CSV file as `fedlit predict --format csv` writes it, without some columns."""
    file = write(predictions(2.0, 5, 300, per_patient=2), folder / name)
    table = pd.read_csv(file)
    table.drop(columns=[c for c in table if c.startswith(drop)]).to_csv(file, index=False)
    return file


@pytest.mark.parametrize("drop", [("nothing",), ("label/", "patient", "site", "client", "model")])
def test_a_file_is_a_method_whether_or_not_it_has_labels(run: Path, tmp_path: Path, drop: tuple[str, ...]):
    file = extern(tmp_path, drop)
    whole = PastRun.read(write_run(tmp_path / "Other-0", predictions(2.0, 5, 300, per_patient=2), config(("FedProx",))))
    expected = compare_runs([PastRun.read(run), whole], draws=100).statistics
    comparison = compare_runs(*load_runs([str(run), str(file)], None, {}, "", tmp_path), draws=100)
    found = comparison.statistics
    assert [scored.method.name for scored in found.scored] == ["FedAvg", "extern"]
    ours, theirs = found.against[0].macro, expected.against[0].macro
    assert (ours.value, ours.interval, ours.p_images) == (theirs.value, theirs.interval, theirs.p_images)
    notes = " ".join(comparison.notes)
    assert ("lacks patient, label/Effusion" in notes) == (len(drop) > 1)
    assert "extern: predictions from elsewhere" in notes
    assert differences(comparison.methods).empty  # a file has no settings


def test_a_file_has_gains_too(tmp_path: Path):
    found = site_predictions(0.6, 0)
    for site in ("east", "west"):
        write_individual(tmp_path / "runs", site, found, 0)
    file = write(site_predictions(1.4, 8), tmp_path / "extern.csv")
    pd.read_csv(file)[["image", "score/Mass", "score/Nodule"]].to_csv(file, index=False)
    runs, _ = load_runs([str(tmp_path / "runs"), str(file)], None, {}, "", tmp_path)
    (gains,) = gains_from_joining(runs, draws=100).methods
    assert [home.site for home in gains.home] == ["east", "west"]
    assert gains.home[0].gain.value > 0.05


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ("picture,score/Mass\na,0.1\n", (ConfigError, "column image")),
        ("image,Mass\na,0.1\n", (ConfigError, "score/CLASS", "only image, Mass")),
        ("image,score/Mass\n", (ConfigError, "no rows")),
        ("", (ConfigError,)),
        ("image,score/Mass\na,high\n", (ConfigError, "score/Mass, line 2", "'high'")),
        ("image,score/Mass,label/Mass\na,0.1,0\nb,0.2,2\n", (ConfigError, "label/Mass, line 3")),
    ],
)
def test_what_is_missing_is_named_with_file_and_column(content: str, mistake: tuple[str, ...], tmp_path: Path):
    (tmp_path / "extern.csv").write_text(content)
    with refused(*mistake, tmp_path / "extern.csv"):
        read_external(tmp_path / "extern.csv")


def test_other_images_are_refused_by_name(run: Path, tmp_path: Path):
    lines = ["image," + ",".join(f"score/{name}" for name in CLASSES), "x1,0.1,0.2,0.3", "x2,0.3,0.1,0.2"]
    (tmp_path / "extern.csv").write_text("\n".join(lines))
    with refused(ConfigError, "extern"):
        compare_runs(*load_runs([str(run), str(tmp_path / "extern.csv")], None, {}, "", tmp_path))
