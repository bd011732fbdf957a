"""The image classifier over timm backbones."""

import copy
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from refusals import refused
from simulation import federated, simulate
from torch import nn
from toys import CLASSES, ToyData

from fedlit.aggregators import FedAvg, FedProx
from fedlit.core.checkpoints import checkpoint
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.flat import Layout
from fedlit.data import PhantomCXR
from fedlit.federation.assembly import assemble
from fedlit.federation.description import announcement
from fedlit.federation.federation import Federation
from fedlit.federation.monitor import Monitor
from fedlit.models import ImageClassifier
from fedlit.models.backbones import standardised as standardise
from fedlit.objectives import AUCSaddle
from fedlit.predictions.export import save_model


@pytest.mark.slow
def test_a_step_of_densenet121_is_that_of_plain_pytorch():
    """The network of FDAM's Table 4, on one client whose only batch has all of its images."""
    torch.manual_seed(0)
    model = ImageClassifier(("Effusion",), "densenet121", optimizer=partial(torch.optim.SGD, lr=0.1))
    options = {"hospitals": 1, "images": 10, "classes": ["Effusion"], "split": [0.8, 0.1, 0.1]}
    data = PhantomCXR(**options, image_size=32, augment=False, batch_size=8)
    data.setup()
    ((_, client),) = data.clients.items()
    images, labels = (torch.stack(each) for each in zip(*client.train, strict=True))
    plain = copy.deepcopy(model).double().train()
    loss = nn.functional.binary_cross_entropy_with_logits(plain(images.double()), labels.double())
    loss.backward()
    end = simulate(model, data, federated([FedAvg()], rounds=1, window=1))
    for name, before in plain.named_parameters():
        torch.testing.assert_close(end.tensor(name), before.detach() - 0.1 * before.grad, rtol=1e-6, atol=1e-8)


def test_body_starts_from_a_local_weights_file(tmp_path):
    """A checkpoint as timm publishes it: RGB stem and the classifier of another task."""
    torch.manual_seed(5)
    published = timm.create_model("test_resnet", num_classes=1000)
    torch.save(published.state_dict(), tmp_path / "published.pth")
    stem, deep = published.conv1[0].weight, "layer4.0.conv2.weight"
    for in_chans, expected in ((1, stem.sum(1, keepdim=True)), (3, stem)):
        body = ImageClassifier(CLASSES, "test_resnet", in_chans, weights=tmp_path / "published.pth").body
        torch.testing.assert_close(body.conv1[0].weight, expected)
        torch.testing.assert_close(body.get_parameter(deep), published.get_parameter(deep))


class TestHidden:
    def test_it_is_body_and_the_head_is_the_last_layer(self):
        model = ImageClassifier(CLASSES, backbone="small_cnn", hidden=8)
        layout = Layout.of(model)
        slice_of = {
            e.name: next(n for n, s in layout.slices.items() if s.start <= e.offset < s.stop) for e in layout.parameters
        }
        assert {n for n, s in slice_of.items() if s == "head"} == {"head.weight", "head.bias"}
        assert {slice_of["hidden.0.weight"], slice_of["hidden.0.bias"]} == {"body"}
        assert model.head.weight.shape == (3, 8)
        assert [e.per_class for e in layout.parameters if e.name.startswith("head.")] == [True, True]

    def test_logits_by_hand(self):
        model = ImageClassifier(CLASSES, backbone="small_cnn", hidden=8).eval()
        features = torch.randn(4, model.body.num_features)
        layer, head = model.hidden[0], model.head
        wanted = (features @ layer.weight.T + layer.bias).clamp(min=0) @ head.weight.T + head.bias
        torch.testing.assert_close(model(features), wanted)


class TestTrainableHead:
    def test_the_body_is_no_part_of_what_is_trained(self):
        model = ImageClassifier(CLASSES, backbone="small_cnn", hidden=8, trainable="head").train()
        layout = Layout.of(model)
        names = {"hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"}
        assert {e.name for e in layout.parameters} == names
        assert layout.frozen
        assert layout.slices["norm"].stop == layout.slices["norm"].start
        (group,) = model.configure_optimizers().param_groups
        assert {id(p) for p in group["params"]} == {id(model.get_parameter(n)) for n in names}
        assert model.training
        assert not any(m.training for m in model.body.modules())
        assert model.hidden.training
        assert not any(m.training for m in model.eval().modules())

    def test_only_the_head_moves_in_rounds(self):
        """Not even BatchNorm's statistics of the body, which a forward pass in training mode would move."""
        torch.manual_seed(0)
        model = ImageClassifier(CLASSES, backbone="small_cnn", trainable="head", objective=AUCSaddle())
        assert model.fixed_features is model.body
        before = copy.deepcopy(model)
        end = simulate(model, ToyData(2), federated([FedProx(0.1)], rounds=2), "32-true")
        for name, buffer in before.body.named_buffers():
            if buffer.is_floating_point():
                torch.testing.assert_close(end.buffer(f"body.{name}"), buffer, rtol=0, atol=0)
        assert not torch.equal(end.tensor("head.weight"), before.head.weight)

    def test_a_run_warns_if_the_frozen_body_is_random(self):
        model, other = (ImageClassifier(CLASSES, "small_cnn", trainable=part) for part in ("head", "all"))
        fabric, monitor = make_fabric("cpu"), Monitor("val/loss", "min")

        def warns(model: ImageClassifier, done: int = 0) -> bool:
            session = assemble(Federation(rounds=1), model, ToyData(2), fabric)
            return any("a body with random weights" in line for line in announcement(session, monitor, done))

        assert warns(model)
        assert not warns(model, done=1)  # the run that is resumed has said it
        assert not warns(other)
        other.train_only("head")
        assert warns(other)
        model.load_state_dict(other.state_dict())
        assert not warns(model)

    def test_it_can_be_turned_off_again(self):
        model = ImageClassifier(CLASSES, backbone="small_cnn", trainable="head")
        model.train_only("all")
        assert model.fixed_features is None
        assert all(p.requires_grad for p in model.train().parameters())
        assert all(m.training for m in model.modules())


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return saved_run(tmp_path_factory.mktemp("run"))


def saved_run(folder: Path, **options) -> Path:
    """Write a run's checkpoint, whose best model is not the last."""
    fabric = make_fabric("cpu")
    torch.manual_seed(1)
    model = ImageClassifier(CLASSES, backbone="small_cnn", **options)
    session = assemble(federated([], workers=1), model, ToyData(2), fabric)
    server, _, _ = session.restore(None)
    saver = checkpoint.Checkpoints(folder / "checkpoints", fabric)
    session.save(saver, 1, server, checkpoint.Best(0.8, 1))
    last = copy.deepcopy(server)
    last.w += 1
    session.save(saver, 2, last, checkpoint.Best(0.8, 1))
    return folder


class TestWeightsOfARun:
    def test_the_body_is_the_best_models_and_the_head_is_new(self, run):
        torch.manual_seed(5)
        model = ImageClassifier(("Other",), backbone="small_cnn", weights=run, hidden=4)
        best = checkpoint.tensors(run / "checkpoints/round-000001")
        for name, tensor in model.body.state_dict().items():
            if tensor.is_floating_point():
                torch.testing.assert_close(tensor, best[f"body.{name}"], rtol=0, atol=0)
        torch.manual_seed(5)
        fresh = ImageClassifier(("Other",), backbone="small_cnn", hidden=4)
        torch.testing.assert_close(model.head.weight, fresh.head.weight, rtol=0, atol=0)

    @pytest.mark.parametrize(
        ("options", "names"),
        [
            ({"backbone": "resnet20_cifar"}, ("resnet20_cifar", "(32, 1, 3, 3) there, (16, 1, 3, 3) here")),
            ({"norm": "group"}, ("body.bn1.0.weight is absent there",)),
            ({"in_chans": 3}, ("body.conv1.weight is (32, 1, 3, 3) there, (32, 3, 3, 3) here (1 of ",)),
        ],
    )
    def test_another_body_is_refused(self, run, options, names):
        with refused(ConfigError, *names):
            ImageClassifier(CLASSES, **{"backbone": "small_cnn", "weights": run} | options)

    def test_an_exported_model_gives_the_same_body(self, tmp_path):
        """Also with mean and deviation of a frozen body's features."""
        for features in (None, "standardised"):
            torch.manual_seed(3)
            trained, file = ImageClassifier(CLASSES, "small_cnn", features=features), tmp_path / "model.safetensors"
            for buffer in trained.body.buffers():
                buffer.add_(1)
            save_model(trained, "{}", None, {}, file)
            started = ImageClassifier(
                ("Other",), "small_cnn", weights=file, features=features, trainable="head", hidden=4
            )
            for name, tensor in started.body.state_dict().items():
                torch.testing.assert_close(tensor, trained.body.state_dict()[name], rtol=0, atol=0)
            with refused(ConfigError, f"the body of the model in {file} is not a resnet20_cifar"):
                ImageClassifier(CLASSES, "resnet20_cifar", weights=file)


class TestLabels:
    def test_whole_numbers_are_one_class_against_the_rest(self):
        torch.manual_seed(0)
        model, images = ImageClassifier(("a", "b", "c"), "small_cnn"), torch.rand(4, 1, 28, 28)
        numbers, columns = torch.tensor([0, 2, 1, 2]), torch.eye(3)[[0, 2, 1, 2]]
        model.eval()
        assert torch.equal(model.training_step((images, numbers), 0), model.training_step((images, columns), 0))
        assert torch.equal(model.training_step((images, columns.long()), 0), model.training_step((images, columns), 0))

    @pytest.mark.parametrize("labels", [torch.tensor([0, 2, 1, 2]), torch.eye(3)[[0, 2, 1, 2]]])
    def test_the_loss_is_as_precise_as_the_logits(self, labels):
        model, images = ImageClassifier(("a", "b", "c"), "small_cnn").double().eval(), torch.rand(4, 1, 28, 28).double()
        wanted = nn.functional.binary_cross_entropy_with_logits(model(images), torch.eye(3)[[0, 2, 1, 2]].double())
        torch.testing.assert_close(model.training_step((images, labels), 0), wanted, rtol=1e-14, atol=0)


class TestStandardisedFeatures:
    @pytest.fixture(scope="class")
    def standardised(self, tmp_path_factory) -> Path:
        return saved_run(tmp_path_factory.mktemp("run"), features="standardised")

    @pytest.mark.parametrize("backbone", ["small_cnn", "mobilenetv3_small_050"])
    def test_a_body_that_trains_averages_mean_and_deviation(self, backbone):
        torch.manual_seed(0)
        model = ImageClassifier(CLASSES, backbone, features="standardised").train()
        images, last = torch.rand(16, 1, 12, 12), model.body.pretrained_cfg["classifier"]
        layer = model.body.get_submodule(last)
        with torch.no_grad():
            trained = model.body(images)
            setattr(model.body, last, nn.Identity())
            features = model.body(images)
        torch.testing.assert_close(layer.running_mean, 0.1 * features.mean(0))
        torch.testing.assert_close(layer.running_var, 0.9 + 0.1 * features.var(0))
        torch.testing.assert_close(trained.mean(0), torch.zeros(trained.shape[1]), atol=1e-4, rtol=0)
        # Features without any spread stay 0.
        spread = trained.std(0, correction=0)
        assert ((spread - 1).abs() < 0.2).float().mean() > 0.5
        assert (spread < 1 + 1e-4).all()
        setattr(model.body, last, layer)
        names = {e.name for e in Layout.of(model).buffers}
        assert {f"body.{last}.running_{what}" for what in ("mean", "var")} <= names

    def test_a_frozen_body_keeps_those_of_its_run(self, standardised):
        model = ImageClassifier(CLASSES, "small_cnn", weights=standardised, features="standardised", trainable="head")
        best = checkpoint.tensors(standardised / "checkpoints/round-000001")
        mean, variance = (best[f"body.fc.running_{what}"] for what in ("mean", "var"))
        images = torch.rand(4, 1, 12, 12)
        found = model.train().body(images)
        model.body.fc = torch.nn.Identity()
        torch.testing.assert_close(found, (model.body(images) - mean) / (variance + 1e-5).sqrt(), atol=1e-6, rtol=1e-6)

    def test_weights_without_them_are_refused(self, run, standardised, tmp_path):
        frozen = {"features": "standardised", "trainable": "head"}
        torch.save(timm.create_model("small_cnn").state_dict(), tmp_path / "published.pth")
        for backbone, source in (
            ("resnet10t", {"pretrained": True}),
            ("small_cnn", {"weights": tmp_path / "published.pth"}),
        ):
            with refused(ConfigError, "model.features", "which have no mean and deviation"):
                ImageClassifier(CLASSES, backbone, **source, **frozen)
        with refused(ConfigError, "features: body.fc.running_mean is absent there"):
            ImageClassifier(CLASSES, "small_cnn", weights=run, **frozen)
        with refused(ConfigError, "features: body.fc.running_mean is (128,) there, absent here"):
            ImageClassifier(CLASSES, "small_cnn", weights=standardised)
        with refused(ConfigError, "model.features", "vit_base_patch16_clip_224", "leave features out"):
            standardise(torch.nn.Linear(2, 2), "vit_base_patch16_clip_224", 2)
