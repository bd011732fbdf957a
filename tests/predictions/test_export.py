"""Exported models: they reload bit for bit, and without a global model nothing is exported as one."""

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from runs import client_tensors, execute
from safetensors import safe_open
from safetensors.torch import load_file
from toys import CLASSES, TOYS, ToyData, ToyNet

import fedlit
from fedlit.core.checkpoints import checkpoint
from fedlit.models import ImageClassifier
from fedlit.objectives import AUCSaddle

pytestmark = pytest.mark.usefixtures("folder")

PHANTOM = (
    "--data.hospitals 2 --data.images 60 --data.image_size 32 --model.backbone small_cnn --model.objective AUCSaddle"
    " --model.optimizer SGD --model.optimizer.lr 0.1 --federation.rounds 1 --logger false --data.cache_dir cache"
)


@pytest.fixture
def trained(fedlit_cli):
    """Fit a toy federation with more options; return a function that exports its last model."""

    def train(options: str = ""):
        fedlit_cli(f"fit --name run {TOYS} {options}").succeeded()
        return lambda more="": fedlit_cli(f"export {TOYS} {options} --ckpt_path last {more}")

    return train


RUN = Path("runs/default/run")


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        return opened.metadata()


def assert_predicted(fedlit_cli, files: dict[str, Path]) -> None:
    """Check that the models in files give the probabilities of ``fedlit predict`` for the images of clients."""
    fedlit_cli(f"predict -c {RUN}/config.yaml --ckpt_path last --output predictions").succeeded()
    table = pd.read_parquet("predictions/federation_test.parquet").set_index("client")
    (data := ToyData()).setup()
    for client, file in files.items():
        expected = torch.from_numpy(table.loc[client, [f"score/{name}" for name in CLASSES]].to_numpy("float32"))
        (module := ToyNet()).load_state_dict(load_file(file), strict=True)
        images = torch.stack([image for image, _ in data.clients[client].test])
        with torch.no_grad():
            torch.testing.assert_close(module.eval()(images).sigmoid(), expected, atol=1e-6, rtol=0)


def test_a_global_model_reloads_and_gives_the_probabilities_of_predict(trained, fedlit_cli):
    export, file = trained(), Path("out/deep/mine.safetensors")
    out = export(f"--output {file}").succeeded()
    assert "toys.ToyNet" in out
    assert "--trust" in out
    umask = os.umask(0)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask
    assert_predicted(fedlit_cli, dict.fromkeys(("site-0", "site-1", "site-2"), file))
    found = load_file(file)
    for name, tensor in checkpoint.tensors(checkpoint.find(RUN / "checkpoints", "last")).items():
        assert torch.equal(found[name], tensor), name

    said = fedlit_cli(f"export {TOYS} --federation.aggregators+=FedBN --model.lr 0.5 --ckpt_path last")
    said.refused("model.init_args.lr: 0.1 there, 0.5 now", RUN / "config.yaml")
    export("--output runs").refused("runs/model.safetensors")
    fedlit_cli(f"export {TOYS}").refused("--ckpt_path")


def test_a_kept_configuration_is_all_that_it_takes(trained, fedlit_cli):
    """A client of one global model gets that with a note."""
    trained("--federation.rounds 1")
    out = fedlit_cli(f"export -c {RUN}/config.yaml --ckpt_path best --client site-1").succeeded()
    assert "clients keep no part of the model: 'site-1' has the federation's model" in out.splitlines()
    (file,) = RUN.glob("*.safetensors")
    assert file.name == "model.safetensors"
    assert "client" not in metadata(file)
    assert load_file(file).keys() == ToyNet().state_dict().keys()


@pytest.mark.slow
def test_a_phantom_classifier(fedlit_cli):
    """The file contains dual variables and constants of the objective."""
    for words in ("fit --name run", "export --ckpt_path last"):
        fedlit_cli(f"{words} {PHANTOM}").succeeded()
    file = RUN / "model.safetensors"
    told = metadata(file)
    classes = json.loads(told["classes"])
    module = ImageClassifier(classes, "small_cnn", objective=AUCSaddle())
    found = load_file(file)
    module.load_state_dict(found, strict=True)
    assert {"objective.alpha", "objective.a", "objective.b", "objective.p"} <= found.keys()
    assert found["objective.p"].min() > 0  # measured, not as initialised

    assert told["model"] == "fedlit.models.classifier.ImageClassifier"
    assert (told["fedlit"], told["round"]) == (fedlit.__version__, "1")
    assert told["config"] == (file.parent / "config.yaml").read_text()
    assert yaml.safe_load(told["config"])["model"]["init_args"]["backbone"] == "small_cnn"
    assert (told["image_size"], told["in_chans"], told["mean"], told["std"]) == ("32", "1", "[0.449]", "[0.226]")
    assert json.loads(told["learned"]) == [True] * len(classes)
    assert "client" not in told


@pytest.mark.slow
def test_the_public_path_of_served_models_is_imported_first(tmp_path):
    """As by the process of a server, which has not imported fedlit."""
    code = """import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "fedlit"]:
    del sys.modules[name]
from fedlit.serving import ImageScorer"""
    execute(code, tmp_path).succeeded()


class TestOwnModels:
    def test_a_client_of_fedbn_has_its_own_normalisation_and_the_shared_rest(self, trained, fedlit_cli):
        """One of three clients never trained, and has the model that it would start with."""
        both = "--federation.aggregators+=FedProx --federation.aggregators+=FedBN"
        export = trained(f"{both} --federation.participation 0.67 --federation.rounds 1")
        names = ("FedBN keeps norm and statistics", "--client", "FedBNPlus instead", "site-0, site-1, site-2")
        export().refused(*names)
        export("--client site1").refused("'site1'", "did you mean site-1", "site-0, site-1, site-2")
        assert not list(Path().rglob("*.safetensors"))
        last = checkpoint.find(RUN / "checkpoints", "last")
        present = next(iter(client_tensors(last)))
        (absent,) = {"site-0", "site-1", "site-2"} - client_tensors(last).keys()
        files = {client: RUN / f"model-{client}.safetensors" for client in (present, absent)}
        for client, file in files.items():
            export(f"--client {client}").succeeded()
            assert metadata(file)["client"] == client
        assert_predicted(fedlit_cli, files)
        own, found = map(load_file, files.values())
        assert all(torch.equal(found[name], tensor) for name, tensor in checkpoint.tensors(last).items())
        different = {name for name in own if not torch.equal(own[name], found[name])}
        assert different == {f"body.1.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var")}

    def test_personal_heads_tell_what_their_client_has_learned(self, trained):
        export = trained("--data.labelled 2 --federation.aggregators+=PersonalHeads")
        export().refused("PersonalHeads keeps head", "SurgicalHeads instead")
        out = export("--client site-1").succeeded()  # labels the second and the third class
        assert f"ignore the scores of classes that the model has not learned: {CLASSES[0]}" in out.splitlines()
        assert json.loads(metadata(RUN / "model-site-1.safetensors")["learned"]) == [False, True, True]
        own, shared = (
            load_file(RUN / "model-site-1.safetensors"),
            checkpoint.tensors(checkpoint.find(RUN / "checkpoints", "last")),
        )
        assert {name.partition(".")[0] for name in shared if not torch.equal(own[name], shared[name])} == {"head"}


class TestSurgicalHeads:
    def test_sites_of_different_classes_have_one_model_that_has_learned_all(self, trained):
        assert "not learned" not in trained("--data.labelled 1 --federation.aggregators+=SurgicalHeads")().succeeded()
        told = metadata(RUN / "model.safetensors")
        assert (json.loads(told["classes"]), json.loads(told["learned"])) == (list(CLASSES), [True] * 3)

    def test_a_class_that_nobody_who_trains_labels_is_said_to_be_unknown(self, trained):
        options = "--data.labelled 1 --federation.aggregators+=SurgicalHeads --federation.clients '[site-0, site-2]'"
        out = trained(options)().succeeded()
        assert f"ignore the scores of classes that the model has not learned: {CLASSES[1]}" in out.splitlines()
        assert json.loads(metadata(RUN / "model.safetensors")["learned"]) == [True, False, True]
