"""Mistakes on the command line and in a YAML file: the key, its place, the reason and near names, before training."""

from pathlib import Path

import pytest
from toys import TOYS

pytestmark = pytest.mark.usefixtures("folder")

MISTAKES = {
    "unknown aggregator": (
        "fit --federation.aggregators+=SurgicalHead",
        "federation.aggregators (command line): Expected a dot import path string: SurgicalHead; did you mean "
        "SurgicalHeads?",
    ),
    "one where a list is expected": (
        "fit --federation.aggregators FedProx",
        "Expected a list. Got value: FedProx; write '[FedProx]', or --federation.aggregators+=FedProx",
    ),
    "unknown name that is near to nothing": (
        "fit --federation.aggregators+=Zzz",
        "Expected a dot import path string: Zzz; `fedlit list` shows the built-in classes",
    ),
    "unknown optimizer": (
        "fit --model.optimizer Addam",
        "model.optimizer (command line): Expected a dot import path string: Addam; did you mean Adam",
    ),
    "partition without its arguments": (
        "fit --data.partition Dirichlet",
        "data.partition (command line): Dirichlet: the following arguments are required: clients, alpha",
    ),
    "unknown argument": (
        "fit --data.imagesize 32",
        "data (command line): PhantomCXR: Option 'imagesize' is not accepted; did you mean image_size",
    ),
    "unknown module": ("fit --model nowhere.Net", "model (command line): Net: No module named 'nowhere'"),
    "unknown class of a module": (
        "fit --model toys.ToyNett",
        "module 'toys' has no attribute 'ToyNett'; did you mean ToyNet?",
    ),
    "an option of Lightning's Trainer": (
        "fit --trainer.max_epochs 3",
        "there is no Trainer here: set federation.rounds",
    ),
    "unknown command": ("fitt", "invalid choice: 'fitt' (choose from 'fit', 'test', 'predict'"),
    "no config file": ("fit -c nowhere.yaml", "config: File does not exist: '"),
    "wrong type": ("fit --federation.rounds many", "federation.rounds (command line): Expected a int. Got value: many"),
    "wrong choice": (
        "fit --federation.weights size",
        "federation.weights (command line): Expected a typing.Literal['examples', 'uniform']. Got value: size",
    ),
    "unknown part": ("predict --part tests", "--part: invalid choice: 'tests'"),
}
"""Command lines with mistakes, and the errors, which precede the making of objects."""

MISTAKES_IN_YAML = {
    "unknown aggregator in a list": (
        "federation:\n  aggregators:\n  - FedBN\n  - class_path: Scafold\n",
        "federation.aggregators (mine.yaml, line 4): Expected a dot import path string: Scafold; did you mean "
        "Scaffold?",
    ),
    "unknown argument in a list": (
        "federation:\n  aggregators:\n  - class_path: FedProx\n    init_args:\n      muu: 0.1\n",
        "federation.aggregators (mine.yaml, line 5): FedProx: Option 'muu' is not accepted; did you mean mu?",
    ),
    "one where a list is expected": (
        "federation:\n  aggregators: FedProx\n",
        "federation.aggregators (mine.yaml, line 2): Expected a list. Got value: FedProx; write [FedProx]",
    ),
    "wrong type": (
        "seed: 1\nfederation:\n  rounds: many\n",
        "federation.rounds (mine.yaml, line 3): Expected a int. Got value: many",
    ),
    "wrong type of an argument": (
        "data:\n  class_path: PhantomCXR\n  init_args:\n    batch_size: big\n",
        "data.batch_size (mine.yaml, line 4): Expected a int. Got value: big",
    ),
    "unknown key": (
        "federation:\n  rounds: 2\n  accumulate_grad_batches: 4\n",
        "Subcommand 'fit' does not accept option 'federation.accumulate_grad_batches'; "
        "did you mean federation.measure_batches? (mine.yaml, line 3)",
    ),
    "no value": ("seed: 1\nphases:\n", "phases (mine.yaml, line 2): expected a value, found nothing"),
    "wrong type in a phase, which is one of a list": (
        "phases:\n- name: first\n  rounds: 3\n- name: second\n  rounds: many\n",
        "phases.rounds (mine.yaml, line 5): Expected a int. Got value: many",
    ),
    "unknown argument of a tracker": (
        "logger:\n  class_path: MLflowTracker\n  init_args: {tracking_urii: here}\n",
        "logger (mine.yaml, line 3): MLflowTracker: Option 'tracking_urii' is not accepted; did you mean tracking_uri?",
    ),
}

REFUSED = {
    "backbone that is near": ("--model ImageClassifier --model.backbone densnet121", "similar names are densenet121, "),
    "missing root": ("--data NIHChestXray14 --data.root /nowhere", "/nowhere: no such folder"),
    "too few samples": ("--data.size 1", "expected at least 2 training samples per client"),
    "weights": (
        "--federation.aggregators+=FedAvg --federation.aggregators+=aggregating.Uniform",
        "need different client weights",
    ),
}
"""Options that parse, and the errors before anything is trained."""

UNIFORM = """
from fedlit.aggregators import FedAvg

class Uniform(FedAvg):
    def __init__(self):
        super().__init__("uniform")
"""


class TestMistakes:
    @pytest.mark.parametrize("case", MISTAKES)
    def test_on_the_command_line(self, case: str, fedlit_cli, folder: Path):
        line, expected = MISTAKES[case]
        code, out, err = fedlit_cli(line)
        assert (code, out) == (2, "")
        assert expected in err
        assert err.startswith("fedlit: error: ")
        assert len(err.splitlines()) <= 3
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("case", MISTAKES_IN_YAML)
    def test_in_a_file(self, case: str, fedlit_cli):
        text, expected = MISTAKES_IN_YAML[case]
        Path("mine.yaml").write_text(text)
        Path("other.yaml").write_text("federation: {eval_every: 2}\n")
        code, out, err = fedlit_cli("fit -c mine.yaml -c other.yaml --seed 3")
        assert (code, out) == (2, "")
        assert err.startswith(f"fedlit: error: {expected}")

    @pytest.mark.parametrize("case", REFUSED)
    def test_before_training(self, case: str, fedlit_cli):
        options, expected = REFUSED[case]
        Path("aggregating.py").write_text(UNIFORM)
        code, out, err = fedlit_cli(f"fit {TOYS} {options}")
        assert code == 1
        assert expected in err
        assert "round 1" not in out
        assert "Traceback" not in err
        assert list(Path("runs").glob("*/*")) == []

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("seed: 1\nfederation:\n  participation: 3\n", "federation.participation (mine.yaml, line 3): expected"),
            ("federation: {monitor: null}\n", "Federation.monitor: expected a text"),
            ("fabric: {num_nodes: null}\n", "fabric.num_nodes (mine.yaml, line 1): expected"),
        ],
        ids=["out of range", "no monitor", "no number of nodes"],
    )  # fmt: skip
    def test_of_a_value_that_parses(self, text: str, said: str, fedlit_cli):
        Path("mine.yaml").write_text(text)
        fedlit_cli("fit -c mine.yaml").refused(f"fedlit: error: {said}")
