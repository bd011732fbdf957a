"""A run's model as an MLflow model: its scores of image files equal those of `fedlit predict`."""

import base64
import json
import os
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import refusals
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from toys import ToyNet

import fedlit.serving as fedlit_of_the_path
from fedlit.cli.main import main
from fedlit.core.errors import ConfigError
from fedlit.data import ByOrganisation, FederatedDataModule, Partition, Records
from fedlit.data.pictures.images import decode_images
from fedlit.predictions.serving import ImageScorer, _instantiated, save_mlflow_model

CLASSES = ("Edema", "Effusion", "Nodule")
MLFLOW = "--logger MLflowTracker --logger.tracking_uri sqlite:///mlflow.db --logger.finish_seconds 200"
DEAD = "--logger MLflowTracker --logger.tracking_uri http://127.0.0.1:9 --logger.finish_seconds 0"
FIT = (
    "fit --data test_serving.Pictures --data.root images --data.image_size 8 --data.cache_dir cache --data.augment "
    "false --model toys.ToyNet --federation.workers 1 --federation.rounds 1 --name"
)
RUN = Path("runs/default/run")


class Pictures(FederatedDataModule):
    """A folder of images of two hospitals, decoded as RGB. No client that trains labels the last class.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path, partition: Partition | None = None, **options) -> None:
        super().__init__(partition or ByOrganisation(), **options)
        self.root = root

    def records(self) -> Records:
        files = sorted(Path(self.root).rglob("*.png"))
        n = len(files)
        labels = np.random.default_rng(1).integers(0, 2, (n, len(CLASSES))).astype(np.float32)
        labels[:, 2] = np.nan
        sites = np.where(np.arange(n) % 2, "north", "south")
        return Records(
            store=decode_images(files, self.image_size, 3, self.cache_dir),
            names=np.array([file.relative_to(self.root).as_posix() for file in files]),
            labels=labels,
            classes=CLASSES,
            patients=np.array([f"p{i}" for i in range(n)]),
            sites=sites,
            site_classes={"north": CLASSES[:2], "south": CLASSES[:2]},
            splits=None,
            table=pd.DataFrame(index=range(n)),
        )


def draw(folder: Path, count: int = 24) -> None:
    """Grey, 16-bit and colour images of several sizes, some in a subfolder."""
    rng = np.random.default_rng(0)
    (folder / "more").mkdir(parents=True)
    for i in range(count):
        shape = (12 + i % 3, 10, 3) if i % 3 == 0 else (12 + i % 3, 10)
        pixels = rng.integers(0, 4096 if i % 3 == 1 else 256, shape)
        image = Image.fromarray(pixels.astype(np.uint16 if i % 3 == 1 else np.uint8))
        image.save(folder / ("more" if i % 4 == 0 else "") / f"{i:02d}.png")


def fedlit(line: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    return stopped.value.code or 0


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Images, and a finished run on them in MLflow."""
    folder = tmp_path_factory.mktemp("serving")
    draw(folder / "images")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert fedlit(f"{FIT} run {MLFLOW}") == 0
    return folder


@pytest.fixture(autouse=True)
def folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All tests run in the folder of the run."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FEDLIT_TRUST", "1")  # the module is one of these tests
    return place


@pytest.fixture
def run_id() -> str:
    return json.loads((RUN / "mlflow_run.json").read_text())["run_id"]


@pytest.fixture(autouse=True)
def _environment_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what MLflow's ``set_tracking_uri`` writes into the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


@pytest.fixture
def served(run_id: str):
    """The model as a caller of MLflow loads it."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').resolve()}")
    yield mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def expected(place: Path) -> pd.DataFrame:
    """Scores of `fedlit predict` for the images of the test sets, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert fedlit(f"predict --config {RUN}/config.yaml --ckpt_path best --output predicted") == 0
    table = pd.read_parquet(place / "predicted" / "federation_test.parquet").set_index("image")
    return table[[f"score/{name}" for name in CLASSES]].set_axis(list(CLASSES), axis=1)


def as_bytes(names) -> pd.DataFrame:
    return pd.DataFrame({"image": [Path("images", name).read_bytes() for name in names]})


def test_pyfunc_gives_the_probabilities_of_predict(served, expected):
    found = served.predict(as_bytes(expected.index))
    assert list(found.columns) == list(CLASSES)
    assert found["Nodule"].isna().all()  # nobody has labelled it
    assert found[["Edema", "Effusion"]].notna().all(axis=None)
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), atol=1e-6)


def test_the_model_says_what_it_takes_gives_and_needs(served, run_id):
    from mlflow import MlflowClient

    signature, told = served.metadata.signature, served.metadata.metadata
    assert [(c.name, c.type.name) for c in signature.inputs] == [("image", "binary")]
    assert [(c.name, c.type.name) for c in signature.outputs] == [(name, "float") for name in CLASSES]
    assert (told["classes"], told["learned"], told["score"]) == (list(CLASSES), [True, True, False], "probability")
    assert (told["image_size"], told["channels"], told["in_chans"]) == (8, 3, 1)
    assert (told["mean"], told["std"]) == ([0.449], [0.226])
    assert served.predict(served.input_example).shape == (1, 3)
    needs = (RUN / "model" / "requirements.txt").read_text().split()
    assert any(line.startswith("torch==") for line in needs)
    run = MlflowClient(f"sqlite:///{Path('mlflow.db').resolve()}").get_run(run_id)
    (listed,) = json.loads(run.data.tags["mlflow.log-model.history"])  # for the page of the run
    assert (listed["artifact_path"], listed["run_id"], list(listed["flavors"])) == (
        "model",
        run_id,
        ["python_function"],
    )


def test_a_model_names_the_public_path_as_those_of_earlier_versions_do(served):
    described = yaml.safe_load((RUN / "model" / "MLmodel").read_text())
    assert described["flavors"]["python_function"]["loader_module"] == served.loader_module == "fedlit.serving"
    assert fedlit_of_the_path.ImageScorer is ImageScorer


def test_a_server_on_loopback_answers_with_the_same_probabilities(served, expected):
    import uvicorn
    from mlflow.pyfunc import scoring_server

    server = uvicorn.Server(uvicorn.Config(scoring_server.init(served), "127.0.0.1", 0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    def post(content: bytes) -> list[dict]:
        body = {"dataframe_split": {"columns": ["image"], "data": [[base64.b64encode(content).decode()]]}}
        kind = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), kind)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)["predictions"]

    try:
        name = expected.index[0]
        (row,) = post(Path("images", name).read_bytes())
        assert row["Edema"] == pytest.approx(expected.loc[name, "Edema"], abs=1e-6)
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(b"no image")
        assert refused.value.code == 400
        assert "row 0: expected the bytes of an image file" in refused.value.read().decode()
    finally:
        server.should_exit = True
        thread.join(10)


class TestPredictOfAFolder:
    @pytest.mark.parametrize("how", ["runs", "registered", "file"])
    def test_every_image_has_its_row(self, how, run_id, expected, fedlit_cli):
        model = {"runs": f"runs:/{run_id}", "file": f"{RUN}/model/model.safetensors"}
        if how == "registered":
            import mlflow

            # In full: MLflow keeps a store for each address, and another test's may be called the same.
            mlflow.set_tracking_uri(f"sqlite:///{Path('mlflow.db').resolve()}")
            version = mlflow.register_model(f"runs:/{run_id}/model", "xrays").version
            model["registered"] = f"models:/xrays/{version}"
        code, out, err = fedlit_cli(f"predict --trust --model {model[how]} images --output out/{how}.csv")
        assert (code, "error" in err) == (0, False), err
        assert f"24 images: out/{how}.csv" in out
        assert "no scores for classes that the model has not learned: Nodule" in out
        table = pd.read_csv(f"out/{how}.csv")
        assert list(table.columns) == ["image", *(f"score/{name}" for name in CLASSES)]
        images = (path.relative_to("images").as_posix() for path in Path("images").rglob("*.png"))
        assert sorted(table["image"]) == sorted(images)
        found = table.set_index("image").loc[expected.index]
        np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), atol=1e-6)

    def test_mlflow_s_own_addresses_are_as_before(self, run_id, fedlit_cli, monkeypatch):
        """An unset store of registered models keeps following the store of runs."""
        import mlflow

        here = f"sqlite:///{Path('mlflow.db').resolve()}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", here)
        monkeypatch.delenv("MLFLOW_REGISTRY_URI", raising=False)
        mlflow.set_tracking_uri(here)
        mlflow.set_registry_uri("")
        assert fedlit_cli(f"predict --trust --model runs:/{run_id} images --output out/again.csv")[0] == 0
        assert (os.environ["MLFLOW_TRACKING_URI"], os.environ.get("MLFLOW_REGISTRY_URI")) == (here, None)
        mlflow.set_tracking_uri(f"{here}.other")
        assert mlflow.get_registry_uri() == f"{here}.other"
        mlflow.set_tracking_uri(here)

    def test_a_file_that_cannot_be_read_is_named_and_has_an_empty_row(self, tmp_path, fedlit_cli):
        (tmp_path / "good.PNG").write_bytes(Path("images/01.png").read_bytes())
        (tmp_path / "bad.jpg").write_bytes(b"no image")
        code, out, err = fedlit_cli(f"predict --trust --model {RUN}/model {tmp_path} --output {tmp_path}/scores.csv")
        assert code == 1
        assert "2 images" in out
        assert f"1 of 2 images cannot be read; their rows have no scores:\n  {tmp_path / 'bad.jpg'}: " in err
        table = pd.read_csv(tmp_path / "scores.csv").set_index("image")
        assert table.loc["bad.jpg"].isna().all()
        assert table.loc["good.PNG", ["score/Edema", "score/Effusion"]].notna().all()

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            ("--model runs:/0123 images", "--model runs:/0123: MLflow at sqlite:///mlflow.db"),
            ("--model models:/nobody/1 images", "MLflow at sqlite:///mlflow.db"),
            ("--model runs:/0123 images --tracking_uri http://127.0.0.1:9", "http://127.0.0.1:9"),
            ("--model runs:/0123 images --tracking_uri sqlite:///no.db", "no.db"),
            ("--model gone.safetensors images", "gone.safetensors: expected a model"),
            ("--model other.safetensors images", "other.safetensors"),
            (f"--model {RUN}/checkpoints images", f"{RUN}/checkpoints"),
            (f"--model {RUN}/model runs/default/run/model", "expected images (.png"),
            (f"--model {RUN}/model nowhere", "nowhere: expected a folder"),
            (f"--model {RUN}/model images --output images", "--output"),
            ("--model toys.ToyNet", "--ckpt_path"),
        ],
    )
    def test_mistakes(self, words, named, fedlit_cli):
        save_file({"w": torch.zeros(1)}, "other.safetensors")
        fedlit_cli(f"predict {words}").refused(named)
        assert not Path("no.db").exists()


class TestWhatIsNotLogged:
    @pytest.fixture
    def fit(self, tmp_path, monkeypatch) -> str:
        """The beginning of a command that trains elsewhere on the images."""
        words = FIT.replace("root images", f"root {Path('images').absolute()}")
        monkeypatch.chdir(tmp_path)
        return words

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ("--federation.aggregators=[FedBN]", "there is no single global model to export: FedBN keeps norm and"),
            ("--model toys.ToyNet --data toys.ToyData", "expected a model with classes of images"),
        ],
    )
    def test_is_said_and_ends_no_run(self, options, reason, fit, fedlit_cli):
        fit = fit if "ToyData" not in options else "fit --federation.workers 1 --federation.rounds 1 --name"
        out = fedlit_cli(f"{fit} other {DEAD} {options}").succeeded()
        assert f"the best model is not logged as an MLflow model: {reason}" in out
        assert not Path("runs/default/other/model").exists()

    def test_a_dead_server_keeps_it_from_nothing_but_the_server(self, fit, fedlit_cli):
        assert "not logged as an MLflow model" not in fedlit_cli(f"{fit} alone {DEAD}").succeeded()
        assert ImageScorer(Path("runs/default/alone/model/model.safetensors"), trust=True).classes == CLASSES

    def test_a_model_that_cannot_score_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def broken(module, batch, batch_idx):
            raise KeyError("no such thing")

        monkeypatch.setattr("toys.ToyNet.predict_step", broken)
        file = RUN / "model" / "model.safetensors"
        with pytest.raises(KeyError):
            save_mlflow_model(tmp_path / "model", lambda to: to.write_bytes(file.read_bytes()))
        assert list(tmp_path.iterdir()) == []


def test_dicom_is_known_by_its_bytes(monkeypatch):
    monkeypatch.setattr("fedlit.data.pictures.pixels.read_dicom", lambda file: Image.new("L", (12, 12), 77))
    picture = ImageScorer(RUN / "model" / "model.safetensors", "cpu", trust=True).read(b"\0" * 128 + b"DICM")
    assert picture.shape == (3, 8, 8)
    assert (picture == 77).all()


def test_what_a_classifier_started_from_is_not_looked_for():
    state = torch.random.get_rng_state()
    section = {
        "class_path": "fedlit.models.ImageClassifier",
        "init_args": {"backbone": "resnet10t", "pretrained": True, "weights": "gone.pt", "hidden": 3},
    }
    module = _instantiated(section, ("Edema", "Mass"))
    assert module.classes == ("Edema", "Mass")
    assert module.head.weight.shape == (2, 3)
    assert torch.equal(torch.random.get_rng_state(), state)


class OneOfThree(ToyNet):
    """Classes that exclude each other; its predictions are logits."""

    def __init__(self, classes=CLASSES) -> None:
        super().__init__(classes)
        del self.objective

    def loss(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1].nan_to_num().argmax(1))

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        return self(batch[0])

    predict_step = validation_step


def test_classes_that_exclude_each_other_are_served_as_they_are_predicted(monkeypatch):
    line = FIT.replace("toys.ToyNet", "test_serving.OneOfThree")
    assert fedlit(f"{line} three --logger false") == 0
    run = Path("runs/default/three")
    for command in ("predict", "export"):
        assert fedlit(f"{command} --config {run}/config.yaml --ckpt_path best") == 0
    table = pd.read_parquet(run / "probabilities" / "federation_test.parquet")
    scorer = ImageScorer(run / "model.safetensors", "cpu", trust=True)
    for name, row in table.set_index("image").iloc[:4].iterrows():
        scores = scorer.score([scorer.read(Path("images", name))])[0]
        np.testing.assert_allclose(scores, row[[f"score/{c}" for c in CLASSES]].astype(float), rtol=1e-5)
        assert 0 < scores[0] + scores[1] < 1  # the third class, which nobody has learned, has the rest


def test_a_model_of_no_images_is_refused(tmp_path):
    notes = {"fedlit": "0", "model": "m", "config": "{}", "classes": "[]", "learned": "[]"}
    save_file({"w": torch.zeros(1)}, tmp_path / "m.safetensors", notes)
    with refusals.refused(ConfigError, "expected a model with classes of images that fedlit"):
        ImageScorer(tmp_path / "m.safetensors")
