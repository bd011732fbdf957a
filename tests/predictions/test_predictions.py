"""Predictions: all test metrics of a run can be computed from its files, whose rows are in the order of the data."""

import json
import math
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from foreigners import Digits, Plain
from pyarrow import parquet
from refusals import refused
from runs import Place
from sklearn.metrics import roc_auc_score
from toys import CLASSES, TOYS, ToyData, ToyNet

import fedlit
from fedlit.cli.main import main
from fedlit.core.errors import DataError
from fedlit.data import ByPatient, DeclaredClasses, FederatedDataModule
from fedlit.data.pictures.images import ImageStore
from fedlit.data.records import Records
from fedlit.federation.engines.scores import Scores, View
from fedlit.metrics.auroc import slug
from fedlit.predictions.table import COLUMNS, Predictions, collected, read, write
from fedlit.tracking.base import RunInfo, Tracker
from fedlit.tracking.run import Result

pytestmark = pytest.mark.usefixtures("folder")

RUN = Path("runs/default/run")


class Wards(FederatedDataModule):
    """Images of sixty patients at two sites; each of two clients has patients of both, and there is an outer test set.

    Args:
        scarce: whether each client labels two of the three classes.
        cache_dir: of pictures.
    """

    def __init__(self, scarce: bool = False, cache_dir: str = "cache") -> None:
        scheme = {"client-01": ["Edema", "Effusion"], "client-02": ["Effusion", "Nodule"]} if scarce else {}
        super().__init__(
            ByPatient(2),
            DeclaredClasses(scheme),
            batch_size=8,
            image_size=8,
            cache_dir=cache_dir,
            split=(0.5, 0.1, 0.4),
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES

    def setup(self, stage: str | None = None) -> None:
        if self.clients:
            return
        super().setup(stage)
        self.test_sets["outer set"] = self._images(self._read(), np.arange(150, 180), self._read().labels)

    def records(self) -> Records:
        rng = np.random.default_rng(0)
        shade = rng.integers(20, 200, (180, 1, 1, 1))
        labels = (shade.reshape(180, 1) + rng.integers(-60, 60, (180, 3)) > 110).astype(np.float32)
        labels[rng.random((180, 3)) < 0.1] = np.nan
        people = np.arange(180) % 60
        return Records(
            store=ImageStore.from_array(np.broadcast_to(shade, (180, 1, 8, 8)).astype(np.uint8), self.cache_dir),
            names=np.array([f"{i:03d}.png" for i in range(180)]),
            labels=labels,
            classes=CLASSES,
            patients=np.array([f"person {p}" for p in people]),
            sites=np.where(people % 3 == 0, "North", "South"),
            site_classes={},
            splits=None,
            table=pd.DataFrame(index=range(180)),
        )


class Listed(Tracker):
    """A tracker that lists its artifacts."""

    def start(self, run: RunInfo, metrics) -> None:
        Path("artifacts.txt").unlink(missing_ok=True)

    def log_artifact(self, path: Path, folder: str = "") -> None:
        with Path("artifacts.txt").open("a") as file:
            file.write(f"{folder}/{path.name}\n")


WARDS = (
    "--data test_predictions.Wards --model toys.ToyNet --logger test_predictions.Listed --federation.workers 1"
    " --federation.rounds 2 --federation.checkpoint_every 1"
)


@pytest.fixture
def fedlit_cli(fedlit_cli):
    """A function that runs a command line in this process, which must succeed; returns its output."""
    return lambda line: fedlit_cli(line).succeeded()


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The working directory of a run of `WARDS`."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit):
            main(shlex.split(f"fit --name run {WARDS}"))
    return folder


@pytest.fixture
def run(finished, folder) -> None:
    """A copy of the run, in the working directory of the test."""
    shutil.copytree(finished, folder, dirs_exist_ok=True)


def wards(**options) -> Wards:
    data = Wards(**options)
    data.setup()
    return data


def kept(folder: Path = RUN / "predictions") -> dict[str, Predictions]:
    found = [read(path) for path in sorted(folder.iterdir())]
    assert [p.name for p in sorted(folder.iterdir())] == sorted(f"{slug(each.name)}.parquet" for each in found)
    return {each.name: each for each in found}


def assert_aurocs(predictions: Predictions, rows, metrics: dict[str, float], name: str) -> int:
    """The AUROC of each class over some rows is the logged one; returns how many are defined."""
    defined = 0
    for column, label in enumerate(predictions.classes):
        truth, score = predictions.labels[rows, column].numpy(), predictions.scores[rows, column].numpy()
        known = ~np.isnan(truth)
        assert not np.isnan(score[known]).any()
        logged = metrics[f"test/{slug(name)}/auroc/{label}"]
        if set(truth[known]) == {0, 1}:
            assert logged == pytest.approx(roc_auc_score(truth[known], score[known]), abs=1e-12)
            defined += 1
        else:
            assert math.isnan(logged)
    return defined


class TestFit:
    def test_the_test_metrics_come_out_of_the_files(self, run):
        result, sets = Result.read(RUN), kept()
        assert set(sets) == {"federation", "outer set"}
        federation = sets["federation"]
        for site in ("North", "South"):
            assert 0 < (federation.sites == site).sum() < len(federation)
            assert assert_aurocs(federation, federation.sites == site, result.metrics, site) == 3
        for name, predictions in sets.items():
            assert assert_aurocs(predictions, slice(None), result.metrics, name) == 3
            assert (predictions.round, predictions.kind) == (result.best_round, "logit")
            assert set(predictions.models) == {""}
        listed = Path("artifacts.txt").read_text().splitlines()
        assert [row for row in listed if row.startswith("predictions/")] == [
            "predictions/federation.parquet",
            "predictions/outer set.parquet",
        ]

    def test_rows_are_those_of_the_data_in_their_order(self, run):
        data, sets = wards(), kept()
        parts = {name: client.test for name, client in data.clients.items()}
        for holder, part in {**parts, "": data.test_sets["outer set"]}.items():
            found = sets["federation" if holder else "outer set"]
            rows = found.clients == holder
            for field, expected in {"images": part.names, "patients": part.patients, "sites": part.sites}.items():
                np.testing.assert_array_equal(getattr(found, field)[rows], expected)
            np.testing.assert_array_equal(found.labels[rows], part.labels)
        assert list(dict.fromkeys(sets["federation"].clients)) == list(data.clients)
        person = dict(zip(data.assignment["image"], data.assignment["patient"], strict=True))
        everything = sets["federation"]
        assert [person[name] for name in everything.images] == everything.patients.tolist()

    def test_personal_models_say_whose_they_are_and_nothing_of_what_they_have_not_learned(self, fedlit_cli):
        fedlit_cli(f"fit --name run {WARDS} --data.scarce true --federation.aggregators+=PersonalHeads")
        result, sets, data = Result.read(RUN), kept(), wards(scarce=True)
        assert set(sets) == {"federation", "outer set by client-01", "outer set by client-02"}
        for name, predictions in sets.items():
            assert assert_aurocs(predictions, slice(None), result.metrics, name) >= 2
            for client in set(predictions.models):
                lacking = [label not in data.clients[client].classes for label in CLASSES]
                rows = predictions.models == client
                assert sum(lacking) == 1
                assert predictions.scores[rows].isnan().all(0).tolist() == lacking
                assert predictions.labels[rows].isnan().all(0).tolist() == lacking
                assert not predictions.scores[rows][:, ~np.array(lacking)].isnan().any()
        np.testing.assert_array_equal(sets["federation"].models, sets["federation"].clients)
        one, two = (sets[f"outer set by client-0{k}"] for k in (1, 2))
        assert (set(one.models), set(one.clients)) == ({"client-01"}, {""})
        np.testing.assert_array_equal(one.images, two.images)
        assert not torch.equal(one.scores[:, 1], two.scores[:, 1])

    def test_a_client_that_does_not_train_has_a_file(self, fedlit_cli):
        fedlit_cli(f"fit --name run {WARDS} --federation.clients [client-01] --federation.rounds 1")
        result, sets = Result.read(RUN), kept()
        assert set(sets) == {"federation", "client-02", "outer set"}
        for name, predictions in sets.items():
            assert assert_aurocs(predictions, slice(None), result.metrics, name) == 3
        assert set(sets["client-02"].clients) == {"client-02"}

    @pytest.mark.slow
    def test_a_resumed_run_keeps_one_file_a_set_of_the_model_that_it_tested_last(self, fedlit_cli):
        fedlit_cli(f"fit --name run {WARDS} --federation.rounds 1")
        first = kept()
        fedlit_cli(f"fit {WARDS} --federation.rounds 3 --ckpt_path last")
        result, more = Result.read(RUN), kept()
        assert first.keys() == more.keys()
        for name, predictions in more.items():
            assert predictions.round == result.best_round
            assert_aurocs(predictions, slice(None), result.metrics, name)

    @pytest.mark.slow
    def test_ranks_write_one_file_of_all_their_clients(self, tmp_path):
        place = Place(tmp_path / "runs", f"{TOYS} --federation.aggregators+=FedBN")
        for command in [*place.ranks("--name two"), place.fit("--name one")]:
            command.succeeded()
        one, two = (kept(place.run(name).path / "predictions")["federation"] for name in ("one", "two"))
        torch.testing.assert_close(two.scores, one.scores)
        np.testing.assert_array_equal(two.models, one.models)

    def test_a_module_without_scores_leaves_no_files(self):
        fedlit.fit(Plain(), Digits(), name="run", workers=1, rounds=1)
        assert (RUN / "result.json").exists()
        assert not (RUN / "predictions").exists()

    def test_data_without_names_get_row_numbers(self):
        fedlit.fit(ToyNet(), ToyData(), name="run", workers=1, rounds=1)
        found = kept()["federation"]
        assert found.images.tolist() == [str(i) for size in (12, 14, 16) for i in range(size)]
        assert found.clients.tolist() == [f"site-{k}" for k, size in enumerate((12, 14, 16)) for _ in range(size)]
        assert set(found.patients) == set(found.sites) == {""}
        assert_aurocs(found, slice(None), Result.read(RUN).metrics, "federation")


class TestTest:
    def test_it_writes_what_fit_wrote(self, run, fedlit_cli):
        first = kept()
        shutil.rmtree(RUN / "predictions")
        out = fedlit_cli(f"test {WARDS} --ckpt_path best")
        assert out.endswith("predictions: runs/default/run/predictions\n")
        for name, predictions in kept().items():
            assert torch.equal(predictions.scores, first[name].scores)

    def test_another_test_than_the_runs_own_never_replaces_its_predictions(self, run, fedlit_cli):
        before = {file.name: file.read_bytes() for file in (RUN / "predictions").iterdir()}
        best = RUN / f"checkpoints/round-{Result.read(RUN).best_round:06d}"
        (worse,) = (path for path in (RUN / "checkpoints").glob("round-*") if path != best)
        for options in (f"{RUN} --seed 5", f"{best} --fast_dev_run true", str(worse)):
            assert "predictions were not written" in fedlit_cli(f"test {WARDS} --ckpt_path {options}")
            assert {file.name: file.read_bytes() for file in (RUN / "predictions").iterdir()} == before
        fedlit_cli(f"test {WARDS} --ckpt_path {options} --output elsewhere")
        assert set(kept(Path("elsewhere"))) == {"federation", "outer set"}


class TestPredict:
    def test_probabilities_are_those_of_the_logits(self, run, fedlit_cli):
        out = fedlit_cli(f"predict {WARDS} --ckpt_path best")
        folder = RUN / "probabilities"
        assert {file.name for file in folder.iterdir()} == {"federation_test.parquet", "outer set_test.parquet"}
        for name, logits in kept().items():
            found = read(folder / f"{name}_test.parquet")
            assert f"{len(found)} images: {folder / name}_test.parquet\n" in out
            assert (found.name, found.kind, found.round) == (name, "probability", logits.round)
            torch.testing.assert_close(found.scores, logits.scores.sigmoid())
            np.testing.assert_array_equal(found.images, logits.images)

        fedlit_cli(f"predict {WARDS} --ckpt_path best --part val --output val --format csv")
        images = [name for client in wards().clients.values() for name in client.val.names]
        assert pd.read_csv("val/federation_val.csv", dtype={"image": str})["image"].tolist() == images


def some(classes=("Nodule/Mass", "Ödem, links"), **fields) -> Predictions:
    scores, labels = torch.tensor([[0.1, torch.nan], [-2.5, 3e-8]]), torch.tensor([[1, torch.nan], [torch.nan, 0]])
    words = [np.array(pair) for pair in (["a/1", "b"], ["", "p 2"], ["", "Nord"], ["x", "y"], ["", "y"])]
    return Predictions("outer by y", 7, "logit", classes, scores, labels, *words, **fields)


@pytest.mark.parametrize("rows", [[1], np.array([False, True])], ids=["indices", "mask"])
def test_rows_are_taken_of_every_field(rows):
    one = some(groups={"sex": np.array(["F", "M"])}).take(rows)
    assert (len(one), one.groups["sex"].tolist()) == (1, ["M"])
    assert [getattr(one, name).tolist() for name in COLUMNS.values()] == [["b"], ["p 2"], ["Nord"], ["y"], ["y"]]
    assert (one.scores[:, 0].tolist(), one.labels[:, 1].tolist()) == ([-2.5], [0.0])


class TestFile:
    @pytest.mark.parametrize("trained", [None, (4, 0)])
    def test_round_trip(self, trained, folder):
        groups = {"sex": np.array(["F", ""]), "age": np.array(["40-59", "60+"])}
        one = some(trained_positives=trained, groups=groups)
        back = read(write(one, folder / "lr=0.1,seed=0" / "one.parquet"))  # no column by the name of lr
        assert len(back) == 2
        for name, value in (vars(one) | groups).items():
            found = {**vars(back), **back.groups}[name]
            if isinstance(value, torch.Tensor):
                assert found.dtype == torch.float32
                torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)
            elif name != "groups":
                np.testing.assert_array_equal(found, value)

    def test_csv_holds_the_same_table(self, folder):
        table = pd.read_csv(write(some(), folder / "one.csv"), keep_default_na=False, na_values=["nan", ""])
        expected = pd.read_parquet(write(some(), folder / "one.parquet"))
        table = table.fillna({"patient": "", "site": "", "model": ""})
        pd.testing.assert_frame_equal(table, expected, check_dtype=False)

    def test_the_file_tells_others_what_it_holds(self, folder):
        file = write(some(), folder / "one.parquet")
        told = {k.decode(): v.decode() for k, v in parquet.read_schema(file).metadata.items()}
        assert json.loads(told.pop("classes")) == ["Nodule/Mass", "Ödem, links"]
        assert told == {"fedlit": fedlit.__version__, "set": "outer by y", "round": "7", "kind": "logit"}
        table = pd.read_parquet(file)
        assert list(table) == [
            *("image", "patient", "site", "client", "model"),
            *("score/Nodule/Mass", "score/Ödem, links", "label/Nodule/Mass", "label/Ödem, links"),
        ]
        assert set(table.dtypes[5:]) == {np.dtype("float32")}

    def test_what_is_no_such_file_is_refused(self, folder):
        with refused(DataError, "one.txt"):
            write(some(), folder / "one.txt")
        (folder / "text.parquet").write_text("image,score\n")
        with refused(DataError, "text.parquet"):
            read(folder / "text.parquet")
        pd.DataFrame({"image": ["a"]}).to_parquet(folder / "other.parquet")
        with refused(DataError, "other.parquet", "classes"):
            read(folder / "other.parquet")
        table = parquet.read_table(write(some(), folder / "less.parquet"))
        parquet.write_table(table.drop_columns(["label/Nodule/Mass"]), folder / "less.parquet")
        with refused(DataError, "label/Nodule/Mass"):
            read(folder / "less.parquet")


class Rows(SimpleNamespace):
    """A data set of three rows."""

    def __len__(self) -> int:
        return 3


def session(classes: tuple[str, ...], personal: list[str], datasets: dict[str, object]) -> SimpleNamespace:
    """What predictions ask of a session that has learned one class."""
    program = SimpleNamespace(dataset=lambda view: datasets[view.holder])
    data = FederatedDataModule(ByPatient(2))
    return SimpleNamespace(
        classes=classes, personal=personal, data=data, learned=lambda client: {"Edema"}, program=program
    )


def test_scores_of_a_module_are_left_as_they_are():
    """Classes that are NaN in the file are still in the metrics, which share its tensors."""
    scores = Scores(View("a", "a", "test"), 3, torch.zeros(3, 3), torch.ones(3, 3), {})
    found = collected(session(CLASSES, ["a"], {"a": [None] * 4}), "federation", [scores], 1)
    assert found.scores.isnan().all(0).tolist() == [False, True, True]
    assert not scores.scores.isnan().any()
    assert found.images.tolist() == ["0", "1", "2"]


def test_views_with_other_groups_are_joined_and_cut_to_what_was_scored():
    """Groups that a view lacks, or that do not fit its rows, are unknown there."""
    groups = {
        "north": {"sex": np.array(["f", "m", "f"])},
        "south": {"view": ["PA", "AP", "PA"], "sex": np.array(["m"])},
        "west": ["of", "something", "else"],
    }
    scores = [Scores(View(None, name, "test"), n, torch.zeros(n, 1), torch.ones(n, 1), {})
              for name, n in (("north", 2), ("south", 3), ("west", 3))]  # fmt: skip
    datasets = {name: Rows(groups=of) for name, of in groups.items()}
    found = collected(session(("Edema",), [], datasets), "federation", scores, 1)
    assert found.name == "federation"
    assert {name: of.tolist() for name, of in found.groups.items()} == {
        "sex": ["f", "m", "", "", "", "", "", ""],
        "view": ["", "", "PA", "AP", "PA", "", "", ""],
    }
