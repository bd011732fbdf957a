"""The table of what models refuse: backbones, weights, classes, and data of another shape."""

import timm
import torch
from refusals import refused, table
from toys import CLASSES

from fedlit.core.errors import CheckpointError, ConfigError, DataError, TrainingError
from fedlit.models import ImageClassifier, LogisticRegression


def model(backbone="small_cnn", **options):
    return lambda _: ImageClassifier(CLASSES, backbone, **options)


def weights(name, backbone="small_cnn"):
    return lambda folder: ImageClassifier(CLASSES, backbone, weights=folder / name)


def of_another(folder):
    torch.save(timm.create_model("resnet20_cifar").state_dict(), folder / "other.pth")
    weights("other.pth")(folder)


def training(labels):
    images = torch.rand(4, 1, 28, 28)
    return lambda _: ImageClassifier(("a", "b", "c"), "small_cnn").training_step((images, torch.zeros(4, labels)), 0)


def rows(*shape):
    return lambda _: LogisticRegression(3, ("a",))(torch.randn(*shape))


MISTAKES = [
    ("a backbone", model("densenet122"), ConfigError, "'densenet122'", "densenet121"),
    ("no classes", lambda _: ImageClassifier(()), ConfigError, "model.classes is empty"),
    ("a negative projection", model(projection=-1), ConfigError, "projection"),
    *((f"a small stem of {backbone}", model(backbone, stem="small"), ConfigError, backbone)
        for backbone in ("lcnet_035", "convnext_atto", "resnet20_cifar")),
    *((f"pretrained weights of {backbone}", model(backbone, pretrained=True), ConfigError, backbone)
        for backbone in ("resnet20_cifar", "small_cnn")),
    ("weights of another backbone", of_another, ConfigError, "other.pth", "small_cnn"),
    ("no weights", weights("none.pth"), ConfigError, "model.weights", "none.pth"),
    ("no checkpoint", weights("."), CheckpointError,
        "expected the directory of a run (runs/<experiment>/<run>)"),
    ("labels of two classes", training(2), DataError, "[B, 3]", "[4, 2]"),
    ("no features", lambda _: LogisticRegression(0, ("a",)), ConfigError, "found 0"),
    ("features without classes", lambda _: LogisticRegression(3), ConfigError, "model.classes is empty"),
    ("other features", rows(2, 5), TrainingError, "expected [3]", "found [5]"),
    ("images as features", rows(2, 1, 8, 8), TrainingError, "expected [3]", "[1, 8, 8]"),
]  # fmt: skip


@table(MISTAKES)
def test_it_is_refused(provoke, kind, names, tmp_path):
    with refused(kind, *names):
        provoke(tmp_path)
