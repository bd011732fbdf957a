"""Settings out of range: refused before training, with key, place, what was found and what is expected."""

from support.hostile import TINY, Refused, check_refused, each

FIT = "fit --config tiny.yaml"


def option(what: str, words: str, *said: str, code: int = 1, **files: bytes) -> Refused:
    return Refused(
        what, f"{FIT} {words}", said, {name.replace("__", "."): content for name, content in files.items()}, code
    )


def sgd(what: str, words: str, *said: str) -> Refused:
    return option(what, f"--model.optimizer SGD --model.optimizer.{words}", *said)


def listed(what: str, names: str, *said: str, code: int = 1) -> Refused:
    return option(
        what, f"--federation.aggregators '[{names}]'", "federation.aggregators (command line)", *said, code=code
    )


def argument(what: str, name: str, value: str, *said: str) -> Refused:
    key, _, argument = name.partition(".")
    one = f"{{rounds: 1, aggregators: [{{class_path: {key}, init_args: {{{argument}: {value}}}}}],"
    return Refused(what, "fit --config bad.yaml", said, {"bad.yaml": TINY.replace("{rounds: 1,", one)})


OPTIMIZER = [
    sgd("a rate that is no number", "lr .nan", "model.optimizer.lr (command line)", "finite", "nan"),
    sgd("a rate without end", "lr .inf", "model.optimizer.lr", "finite", "inf"),
    sgd("a rate beyond all numbers", "lr 1e400", "model.optimizer.lr", "finite", "inf"),
    sgd("a negative rate", "lr=-0.1", "model.optimizer (command line)", "learning rate", "-0.1"),
    sgd("a negative momentum", "momentum=-0.5", "model.optimizer (command line)", "momentum", "-0.5"),
    sgd("a negative decay", "weight_decay=-1", "model.optimizer (command line)", "weight_decay", "-1"),
    option(
        "betas of Adam", "--model.optimizer Adam --model.optimizer.betas '[1.5, 0.9]'", "model.optimizer", "beta", "1.5"
    ),
]

MODEL = [
    option("no channels", "--model.in_chans 0", "model.in_chans (command line)", "at least 1"),
    option("other channels than the data", "--model.in_chans 2", "model.in_chans", "data.in_chans", "found 1"),
    option(
        "a vit of 16 pixels", "--model.backbone vit_tiny_patch16_224 --data.image_size 16",
        "data.image_size (command line)",
        "vit_tiny_patch16_224", "224",
    ),
    option("a negative width", "--model.hidden=-1", "model.hidden (command line)", "at least 0"),
    option("a rate of dropout above 1", "--model.drop_rate 2", "model.drop_rate (command line)", "[0, 1)", "2"),
    option("a number of classes", "--model.num_classes 3", "num_classes", "classes", code=2),
    option("classes of a model", "--model.classes '[a, b]'", "model.classes (command line)", "data.classes"),
    option("weights that are not there", "--model.weights absent.pth", "model.weights (command line)", "absent.pth"),
    option("weights that are damaged", "--model.weights w.pth", "model.weights", "w.pth", "is it complete",
        w__pth=b"\0\1x" * 50),
    option("weights that are empty", "--model.weights w.pth", "model.weights", "w.pth", "is it complete", w__pth=b""),
    option(
        "safetensors that are damaged", "--model.weights w.safetensors", "model.weights", "w.safetensors",
        "is it complete",
        w__safetensors=b"\0\1x" * 50,
    ),
    option("a folder as weights", "--model.weights .", "model.weights", "directory of a run"),
    option("a backbone that there is not", "--model.backbone resnet10", "model.backbone (command line)", "resnet10t"),
]  # fmt: skip

DATA = [
    option("an empty batch", "--data.batch_size 0", "data.batch_size (command line)", "at least 1"),
    option("no image in a batch of evaluation", "--data.eval_batch_size 0", "data.eval_batch_size", "at least 1"),
    option("images of a pixel", "--data.image_size 1", "data.image_size (command line)", "at least 8"),
    option("no hospital", "--data.hospitals 0", "at least 1 hospital", "found 0"),
    option("a client that there is not", "--federation.clients '[nobody]'", "'nobody'", "hospital-01"),
    option("no client", "--federation.clients '[]'", "found an empty list", "hospital-01"),
]

FEDERATION = [
    option("no round", "--federation.rounds 0", "federation.rounds (command line)", "at least 1"),
    option("half a round", "--federation.rounds 1.5", "federation.rounds (command line)", "int", code=2),
    option("a round without steps", "--federation.schedule.window 0", "schedule.window", "expected at least 1"),
    option("nobody in a round", "--federation.participation 0", "federation.participation (command line)", "(0, 1]"),
    option("more than everybody", "--federation.participation 1.5", "federation.participation", "(0, 1]", "1.5"),
    option("negative patience", "--federation.patience=-1", "federation.patience (command line)", "-1"),
    option("negative workers", "--federation.workers=-1", "federation.workers (command line)", "at least 1"),
    option("no thread", "--federation.threads 0", "federation.threads (command line)", "at least 1"),
    option(
        "a rate of nobody",
        "--federation.lr_factors '{nobody: 0.1}'",
        "federation.lr_factors",
        "'nobody'",
        "hospital-01",
    ),
    option("a rate of nothing", "--federation.lr_factors '{hospital-01: 0}'", "federation.lr_factors", "above 0"),
    option("a clamp at nothing", "--federation.gradient_clamp 0", "federation.gradient_clamp", "above 0"),
    option(
        "a clip and a clamp",
        "--federation.gradient_clip 1 --federation.gradient_clamp 1",
        "federation.gradient_clamp",
        "remove one",
    ),
    option("a clip at nothing", "--federation.gradient_clip 0", "federation.gradient_clip", "above 0"),
    option("checkpoints at random", "--federation.checkpoint_every banana", "federation.checkpoint_every", "60s"),
    option(
        "a monitor of the test set",
        "--federation.monitor test/federation/auroc_macro",
        "federation.monitor",
        "test set",
    ),
    option(
        "a monitor without direction",
        "--federation.monitor drift/client_drift",
        "federation.monitor_mode",
        "max or min",
    ),
    option("a monitor that is not logged", "--federation.monitor val/auroc", "federation.monitor", "val/auroc_macro"),
    option("a seed in letters", "--seed abc", "seed (command line)", "int", code=2),
    option("a seed with a minus of typography", "--seed −5", "seed (command line)", "int", code=2),
    option("no seed", "--seed '[]'", "seed (command line)", "found none"),
    option("a seed twice", "--seed 1,1", "seed (command line)", "twice"),
]

AGGREGATORS = [
    listed("Scaffold twice", "Scaffold, Scaffold", "Scaffold and Scaffold each", "control variates", "keep one"),
    listed("CODASCA and Scaffold", "CODASCA, Scaffold", "CODASCA and Scaffold each", "control variates"),
    listed("FedProx twice", "FedProx, FedAvg, FedProx", "FedProx and FedProx each", "start of the round"),
    listed("two of the CODA family", "CODAPlus, CODASCA", "CODAPlus and CODASCA each", "start of the stage"),
    listed("two momenta", "LocalSGDM, LocalSGDAM", "LocalSGDM and LocalSGDAM each", "gradient"),
    listed("normalisation twice", "FedBN, FedBNPlus", "FedBN and FedBNPlus each", "norm"),
    listed("heads twice", "PersonalHeads, SurgicalHeads", "PersonalHeads and SurgicalHeads each", "head"),
    argument("a pull without end", "FedProx.mu", ".inf", "expected at least 0 and finite", "inf"),
    argument("a server rate without end", "Scaffold.eta_g", ".inf", "expected a number above 0 and finite", "inf"),
]

MACHINE = [
    option(
        "a gpu that is not there",
        "--fabric.accelerator tpu",
        "fabric.accelerator (command line)",
        "this machine has cpu",
    ),
    option("a device that there is not", "--fabric.accelerator cpuu", "fabric.accelerator (command line)", "'cpuu'"),
    option("no device", "--fabric.devices 0", "fabric.devices (command line)", "at least 1"),
    option("a device twice", "--fabric.devices '[0, 0]'", "fabric.devices (command line)", "different"),
    option("no machine", "--fabric.num_nodes 0", "fabric.num_nodes (command line)", "at least 1"),
    option("half precision", "--fabric.precision 16-true", "fabric.precision (command line)", "32-true", "bf16-mixed"),
    option("half precision, mixed", "--fabric.precision 16-mixed", "fabric.precision (command line)", "32-true"),
]

KINDS = [
    option("dashes of typography", "––federation.rounds 3", "EN DASH", code=2),
    option("a model as data", "--data ImageClassifier", "data (command line)", "is a model", "CIFAR10", code=2),
    option("data as a model", "--model PhantomCXR", "model (command line)", "is a data set", "ImageClassifier", code=2),
    listed("a loss as an aggregator", "BCE", "BCE is an objective", "CODASCA", code=2),
    option(
        "an aggregator as a loss", "--model.objective FedAvg", "model.objective", "an aggregator", "AUCSaddle", code=2
    ),
    option("an aggregator as a schedule", "--federation.schedule FedAvg", "an aggregator", "StageSchedule", code=2),
    option("an aggregator as an optimizer", "--model.optimizer FedAvg", "model.optimizer", "is an aggregator", code=2),
    listed("a class in lower case", "surgicalheads", "did you mean SurgicalHeads?", code=2),
    option("a class with a letter of Cyrillic", "--data PhаntomCXR", "did you mean PhantomCXR?", "CYRILLIC", code=2),
    option("a key with a letter of Cyrillic", "--federation.rоunds 3", "did you mean federation.rounds", code=2),
    option(
        "a value that is left out", "--federation.rounds --seed 1", "federation.rounds", "expected one argument", code=2
    ),
    option("a truth that is none", "--fast_dev_run maybe", "fast_dev_run (command line)", "bool", code=2),
]


COMMANDS = [
    Refused("a command that is mistyped", "fti --config tiny.yaml", ("fti", "fit"), code=2),
    option("an option that is mistyped", "--federation.round 3", "rounds", code=2),
    Refused(
        "an argument of a class that is not chosen",
        "fit --data NIHChestXray14 --data.root . --data.partition.clients 4",
        ("data.partition", "'clients' is an argument of ByCategory, ByPatient, Dirichlet, IID, WithinOrganisations"),
        code=2,
    ),
    Refused("a file that is not there", "fit --config absent.yaml", ("absent.yaml",), code=2),
]


@each([*OPTIMIZER, *MODEL, *DATA, *FEDERATION, *AGGREGATORS, *MACHINE, *KINDS, *COMMANDS])
def test_it_is_refused_before_training(given, fedlit_cli, folder):
    check_refused(given, fedlit_cli)
