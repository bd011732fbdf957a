"""Mistakes on the command line and in a YAML file: the key, its place, the reason and near names, before training."""

from pathlib import Path

import pytest
from support.hostile import TINY, check_printed
from toys import TOYS

pytestmark = pytest.mark.usefixtures("folder")

HERE = "(command line)"
MODULE = """
from fedlit.aggregators import FedAvg

class Uniform(FedAvg):
    def __init__(self):
        super().__init__("uniform")
"""

KEYS = [
    ("--federation.rouds 3", HERE, "federation.rouds", "did you mean federation.rounds"),
    ("--federation.schedule.windw 3", f"federation.schedule {HERE}: ConstantSchedule: ", "did you mean window?"),
    ("--fabric.device 2", HERE, "did you mean fabric.devices?"),
    ("--sed 3", HERE, "did you mean seed?"),
    ("--tag.a b", HERE, "unrecognized arguments: --tag.a b"),
    ("--data.batchsize 3", f"data {HERE}: PhantomCXR: ", "did you mean batch_size"),
    ("--model.optimizer Adam --model.optimizer.momentum 0.9", f"model.optimizer {HERE}: Adam: ", "it has lr, betas"),
    ("--logger MLflowTracker --logger.tracking_url x", f"logger {HERE}: MLflowTracker: ", "did you mean tracking_uri?"),
    ("--logger '[MLflowTracker, {class_path: CSVLogger, init_args: {save_dirr: x}}]'", f"logger {HERE}: CSVLogger: "),
    ("--trainer.max_epochs 3", "there is no Trainer here: set federation.rounds"),
    ("-seed 3", "-seed: expected two dashes, found one; write --seed"),
    ("extra", "unrecognized arguments: extra"),
]
"""Options after ``fit --config tiny.yaml`` with misspelt keys, and what the error contains; each ends with code 2."""

CLASSES = [
    ("--federation.aggregators+=SurgicalHead", f"federation.aggregators {HERE}: Expected a dot import path string: "
        "SurgicalHead; did you mean SurgicalHeads?"),
    ("--federation.aggregators '[FedAvg, Scafold]'", f"federation.aggregators {HERE}: ", "did you mean Scaffold?"),
    ("--federation.aggregators FedProx", "Expected a list. Got value: FedProx; write '[FedProx]', or "
        "--federation.aggregators+=FedProx"),
    ("--federation.aggregators+=Zzz", "Zzz; `fedlit list` shows the built-in classes"),
    ("--callbacks+=Nothing", f"callbacks {HERE}", "my_project.MyAggregator"),
    ("--model.optimizer sgd", f"model.optimizer {HERE}: ", "did you mean SGD"),
    ("--data fedlit.data.PhantomCRX", f"data {HERE}: module 'fedlit.data' has no", "did you mean PhantomCXR?"),
    ("--data.partition Dirichlet", f"data.partition {HERE}: Dirichlet: the following arguments are required: clients, "
        "alpha"),
    ("--federation.participation RandomShare", f"federation.participation {HERE}: ", "RandomShare"),
    ("--model nowhere.Net", f"model {HERE}: No module named 'nowhere'; start fedlit in the folder that holds nowhere"),
    ("--model toys.ToyNett", f"model {HERE}: module 'toys' has no attribute 'ToyNett'; did you mean ToyNet?"),
]  # fmt: skip
"""The same for classes."""

VALUES = [
    ("--federation.rounds many", f"federation.rounds {HERE}: Expected a int. Got value: many"),
    ("--federation.rounds 1e1", f"federation.rounds {HERE}: Expected a int. Got value: 10.0"),
    ("--federation.rounds", "--federation.rounds: expected one argument"),
    ("--federation.schedule.window '[1, 2]'", f"federation.schedule.window {HERE}: Expected a int. Got value: [1, 2]"),
    ("--federation.weights size", f"federation.weights {HERE}: Expected a typing.Literal['examples', 'uniform']. Got "
        "value: size"),
    ("--federation.optimizer_state keeep", f"federation.optimizer_state {HERE}: ", "did you mean keep?"),
    ("--federation.compile perhaps", f"federation.compile {HERE}: Expected a bool. Got value: perhaps"),
    ("--tags 3", f"tags {HERE}: Expected a dict. Got value: 3"),
    ("--data absent.yaml", f"data {HERE}: there is no file absent.yaml"),
]  # fmt: skip
"""The same for values of other types."""

COMMANDS = [
    ("fitt", "invalid choice: 'fitt' (choose from 'fit', 'test', 'predict'"),
    ("runs lst", "did you mean list?"),
    ("predict --part tests", "--part: invalid choice: 'tests'"),
    ("sweep", "the following arguments are required: config"),
    ("fit --config tinny.yaml", "--config: there is no file tinny.yaml; did you mean tiny.yaml?"),
    ("sweep --config nowhere.yaml", "nowhere.yaml: No such file"),
    ("fit tiny.yaml", "unrecognized arguments: tiny.yaml; write --config tiny.yaml"),
    ("fit -config tiny.yaml", "-config: expected two dashes, found one; write --config"),
]
"""The same for whole commands."""

LATER = [
    ("--federation.monitor val/auroc_marco", f"federation.monitor {HERE}: ", "val/auroc_macro"),
    ("--federation.clients '[hospital-1]'", f"federation.clients {HERE}: ", "hospital-01", "'hospital-1'"),
    ("--federation.eval_every 0", f"federation.eval_every {HERE}: ", "at least 1", "found 0"),
    ("--federation.participation=-0.1", f"federation.participation {HERE}: ", "(0, 1]", "found -0.1"),
    ("--fabric.precision 32", f"fabric.precision {HERE}: ", "32-true", "found '32'"),
    ("--fabric.accelerator gpuu", f"fabric.accelerator {HERE}: ", "'gpuu'", "this machine has cpu"),
    ("--data.hospitals=-1", f"data.hospitals {HERE}: ", "at least 1 hospital", "found -1"),
    ("--data.batch_size null", "batch_size", "None"),
    ("--model.optimizer.lr=-1", f"model.optimizer {HERE}: ", "learning rate: -1.0"),
    ("--model.weights gone.pt", f"model.weights {HERE}: ", "gone.pt"),
    ("--model.backbone densnet121", f"model.backbone {HERE}: ", "similar names are densenet121, "),
    ("--name '[a]'", f"name {HERE}: ", "letters, digits", "found '[a]'"),
    ("--ckpt_path lats", "--ckpt_path lats: expected last, best"),
    ("--data NIHChestXray14 --data.root /nowhere", "/nowhere: no such folder"),
    (f"{TOYS} --data.size 1", "expected at least 2 training samples per client"),
    ("--federation.aggregators+=FedAvg --federation.aggregators+=own_aggregator.Uniform", "different client weights"),
]
"""The same for values that parse; each ends with code 1."""

IN_YAML = {
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
    "unknown argument of an optimizer": (
        "model:\n  class_path: ImageClassifier\n  init_args:\n    optimizer:\n      class_path: SGD\n"
        "      init_args:\n        momentun: 0.9\n",
        "model.optimizer (mine.yaml, line 7): SGD: Option 'momentun' is not accepted; did you mean momentum",
    ),
    "unknown key": (
        "federation:\n  rounds: 2\n  accumulate_grad_batches: 4\n",
        "Option 'federation.accumulate_grad_batches' is not accepted; "
        "did you mean federation.measure_batches? (mine.yaml, line 3)",
    ),
    "no value": ("seed: 1\nphases:\n", "phases (mine.yaml, line 2): expected a value, found nothing"),
    "wrong type in a phase, which is one of a list": (
        "phases:\n- name: first\n  rounds: 3\n- name: second\n  rounds: many\n",
        "phases.rounds (mine.yaml, line 5): Expected a int. Got value: many",
    ),
}
"""Files, and the beginnings of the errors."""

VALUES_IN_YAML = {
    "seed: 1\nfederation:\n  participation: 3\n": "federation.participation (mine.yaml, line 3): expected",
    "federation: {monitor: null}\n": "federation.monitor (mine.yaml, line 1): expected a text",
    "fabric: {num_nodes: null}\n": "fabric.num_nodes (mine.yaml, line 1): expected",
}
"""The same for values that parse."""


def table(commands: list, prefix: str = "fit --config tiny.yaml ") -> pytest.MarkDecorator:
    """Run a test once per row, under its command; one in three is in the fast tests."""
    rows = [
        pytest.param(prefix + row[0], row[1:], id=row[0], marks=[pytest.mark.slow] if number % 3 else [])
        for number, row in enumerate(commands)
    ]
    return pytest.mark.parametrize(("line", "words"), rows)


class TestMistakes:
    @pytest.fixture(autouse=True)
    def files(self, folder: Path) -> set[Path]:
        Path("tiny.yaml").write_text(TINY)
        Path("own_aggregator.py").write_text(MODULE)
        return set(folder.iterdir())

    def refused(self, printed: tuple[int, str, str], words: tuple[str, ...], code: int) -> None:
        check_printed(printed, words, code)
        mistake, *tip = printed[2].splitlines()
        assert mistake.startswith("fedlit: error: ")
        assert [line for line in tip if "--help` describes the options" not in line] == []

    @table([*KEYS, *CLASSES, *VALUES])
    def test_in_an_option(self, line: str, words: tuple[str, ...], fedlit_cli, folder: Path, files: set[Path]):
        self.refused(printed := fedlit_cli(line), words, 2)
        assert (printed.out, set(folder.iterdir()) - files) == ("", set())

    @table(COMMANDS, "")
    def test_in_a_command(self, line: str, words: tuple[str, ...], fedlit_cli, folder: Path, files: set[Path]):
        self.refused(printed := fedlit_cli(line), words, 2)
        assert (printed.out, set(folder.iterdir()) - files) == ("", set())

    @table(LATER)
    def test_in_a_value_that_parses(self, line: str, words: tuple[str, ...], fedlit_cli):
        self.refused(printed := fedlit_cli(line), words, 1)
        assert "round 1" not in printed.out
        assert list(Path("runs").glob("*/*")) == []

    @pytest.mark.parametrize("case", IN_YAML)
    def test_in_a_file(self, case: str, fedlit_cli):
        text, expected = IN_YAML[case]
        Path("mine.yaml").write_text(text)
        Path("other.yaml").write_text("federation: {eval_every: 2}\n")
        code, out, err = fedlit_cli("fit -c mine.yaml -c other.yaml --seed 3")
        assert (code, out) == (2, "")
        assert err.startswith(f"fedlit: error: {expected}")

    @pytest.mark.parametrize("text", VALUES_IN_YAML)
    def test_in_a_file_that_parses(self, text: str, fedlit_cli):
        Path("mine.yaml").write_text(text)
        fedlit_cli("fit -c tiny.yaml -c mine.yaml").refused(f"fedlit: error: {VALUES_IN_YAML[text]}")
