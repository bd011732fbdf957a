"""Mistakes on the command line: refused before training, with key and place. Ranges are in the rooms' own tables."""

from support.hostile import TINY, Refused, check_refused, each

FIT = "fit --config tiny.yaml"


def option(what: str, words: str, *said: str, code: int = 1, **files: bytes) -> Refused:
    return Refused(
        what, f"{FIT} {words}", said, {name.replace("__", "."): content for name, content in files.items()}, code
    )


MU = TINY.replace("{rounds: 1,", "{rounds: 1, aggregators: [{class_path: FedProx, init_args: {mu: .inf}}],")

VALUES = [
    option("a rate that is no number", "--model.optimizer SGD --model.optimizer.lr .nan",
        "model.optimizer.lr (command line)", "finite", "nan"),
    option("other channels than the data", "--model.in_chans 2", "model.in_chans", "data.in_chans", "found 1"),
    option("a vit of 16 pixels", "--model.backbone vit_tiny_patch16_224 --data.image_size 16",
        "data.image_size (command line)", "224"),
    option("classes of a model", "--model.classes '[a, b]'", "model.classes (command line)", "data.classes"),
    option("weights that are not there", "--model.weights absent.pth", "model.weights (command line)", "absent.pth"),
    option("weights that are damaged", "--model.weights w.pth", "model.weights", "w.pth", w__pth=b"\0\1x" * 50),
    option("safetensors that are damaged", "--model.weights w.safetensors", "model.weights", "w.safetensors",
        w__safetensors=b"\0\1x" * 50),
    option("a folder as weights", "--model.weights .", "model.weights", "directory of a run"),
    option("a client that there is not", "--federation.clients '[nobody]'", "'nobody'", "hospital-01"),
    option("no client", "--federation.clients '[]'", "hospital-01"),
    option("half a round", "--federation.rounds 1.5", "federation.rounds (command line)", code=2),
    option("a rate of nobody", "--federation.lr_factors '{nobody: 0.1}'", "federation.lr_factors", "'nobody'"),
    option("a seed with a minus of typography", "--seed −5", "seed (command line)", code=2),
    option("a seed twice", "--seed 1,1", "seed (command line)", "twice"),
    option("Scaffold twice", "--federation.aggregators '[Scaffold, Scaffold]'",
        "federation.aggregators (command line)", "Scaffold and Scaffold"),
    Refused("a pull without end", "fit --config bad.yaml", ("federation.aggregators.mu (bad.yaml, line 5)", "inf"),
        {"bad.yaml": MU}),
    option("a device twice", "--fabric.devices '[0, 0]'", "fabric.devices (command line)"),
    option("half precision", "--fabric.precision 16-true", "fabric.precision (command line)", "32-true"),
]  # fmt: skip

KINDS = [
    option("dashes of typography", "––federation.rounds 3", "EN DASH", code=2),
    option("a model as data", "--data ImageClassifier", "data (command line)", "is a model", "CIFAR10", code=2),
    option("a loss as an aggregator", "--federation.aggregators '[BCE]'", "is an objective", "CODASCA", code=2),
    option("an aggregator as an optimizer", "--model.optimizer FedAvg", "model.optimizer", "is an aggregator", code=2),
    option("a class with a letter of Cyrillic", "--data PhаntomCXR", "did you mean PhantomCXR?", "CYRILLIC", code=2),
    option("a key with a letter of Cyrillic", "--federation.rоunds 3", "did you mean federation.rounds", code=2),
    option("a value that is left out", "--federation.rounds --seed 1", "federation.rounds", code=2),
    option("a bool that is none", "--fast_dev_run maybe", "fast_dev_run (command line)", code=2),
    Refused(
        "an argument of a class that is not chosen",
        "fit --data NIHChestXray14 --data.root . --data.partition.clients 4", ("data.partition", "'clients'"), code=2,
    ),
]  # fmt: skip


@each([*VALUES, *KINDS])
def test_it_is_refused_before_training(given, fedlit_cli, folder):
    check_refused(given, fedlit_cli)
