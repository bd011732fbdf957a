"""The command line: habits of LightningCLI, mistakes, and modules that know nothing of fedlit."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from foreigners import Plain
from rich.console import Console

import fedlit
from fedlit import aggregators, objectives
from fedlit.cli.commands import fit
from fedlit.cli.main import parse
from fedlit.cli.tables import list_shipped
from fedlit.core.checkpoints import checkpoint
from fedlit.data import IID, NIHChestXray14
from fedlit.experiment import choices
from fedlit.experiment.parser import is_mistake
from fedlit.tracking.base import MetricsFile, Tracker
from fedlit.tracking.mlflow import MLflowTracker

pytestmark = pytest.mark.usefixtures("folder")

TOYS = "--data toys.ToyData --model toys.ToyNet --logger false --federation.workers 1 --federation.rounds 2"
DIGITS = "--data foreigners.Digits --logger false --federation.workers 1 --federation.rounds 2"


def write(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


def metrics(run_dir: str = "runs") -> dict[tuple[int, str], float]:
    (directory,) = Path(run_dir, "default").iterdir()
    return {(step, key): value for step, key, value in MetricsFile(directory / "metrics.csv").rows()}


class StatusTracker(Tracker):
    """A tracker that writes how the run ended."""

    def finish(self, status: str) -> None:
        Path("status.txt").write_text(status)


class TestHabits:
    def test_later_configs_and_options_win(self):
        write("a.yaml", "seed: 1\nfederation: {rounds: 7, eval_every: 3}\nmodel: {init_args: {backbone: resnet18}}\n")
        write("b.yaml", "federation: {rounds: 8}\nmodel: {init_args: {drop_rate: 0.5}}\n")
        args = parse(shlex.split("fit -c a.yaml --config=b.yaml --federation.eval_every 2"))[0].fit
        assert (args.seed, args.federation.rounds, args.federation.eval_every) == (1, 8, 2)
        assert (args.model.init_args.backbone, args.model.init_args.drop_rate) == ("resnet18", 0.5)
        args = parse(shlex.split("fit --federation.rounds 9 -c a.yaml"))[0].fit
        assert args.federation.rounds == 7  # in the order of the command line

    def test_a_printed_config_is_the_same_run(self, fedlit_cli):
        write(
            "a.yaml", "federation: {rounds: 3, aggregators: [FedProx, {class_path: Scaffold, init_args: {eta_g: 2}}]}"
        )
        line = (
            "fit -c a.yaml --data NIHChestXray14 --data.root x --data.partition Dirichlet --data.partition.clients 3"
            " --data.partition.alpha 0.3 --model.optimizer Adam --model.optimizer.lr 1e-4 --logger MLflowTracker"
            " --federation.schedule StageSchedule --federation.schedule.stages '[{rounds: 2, lr_factor: 0.3}]'"
        )
        code, printed, _ = fedlit_cli(f"{line} --print_config")
        assert code == 0
        write("printed.yaml", printed)
        assert yaml.safe_load(printed)["federation"]["aggregators"][1]["init_args"] == {"eta_g": 2.0, "reset": None}
        assert fedlit_cli("fit -c printed.yaml --print_config") == (0, printed, "")

    def test_short_names_make_the_objects_that_they_name(self):
        args, parser = parse(
            shlex.split(
                "fit --federation.aggregators+=FedBN --federation.aggregators+=FedProx --federation.aggregators.mu 0.5"
                " --data NIHChestXray14 --data.root /nowhere --data.partition IID --data.partition.clients 3"
                " --model.backbone resnet18 --model.objective BCE --model.optimizer Adam --model.optimizer.lr 1e-4"
                " --logger MLflowTracker --logger.tracking_uri sqlite:///elsewhere.db"
            )
        )
        objects = parser.instantiate_classes(args.fit)
        bn, prox = objects.federation.aggregators
        assert isinstance(bn, aggregators.FedBN)
        assert (type(prox), prox.mu) == (aggregators.FedProx, 0.5)
        assert isinstance(objects.data, NIHChestXray14)
        assert isinstance(objects.data.partition, IID)
        assert objects.model.classes == objects.data.classes
        optimizer = objects.model.configure_optimizers()
        assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.Adam, 1e-4)
        assert (type(objects.logger), objects.logger.tracking_uri) == (MLflowTracker, "sqlite:///elsewhere.db")

    @pytest.mark.slow
    def test_every_short_name_that_is_listed_is_understood(self):
        for name in (cls.__name__ for cls in choices.shipped("aggregators")):
            args = parse(["fit", f"--federation.aggregators+={name}"])[0].fit
            assert args.federation.aggregators[0].class_path == f"fedlit.aggregators.{name}"

    def test_a_module_of_the_working_directory_is_found(self, fedlit_cli):
        write("mine.py", "from fedlit.aggregators import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
        code, out, err = fedlit_cli(f"fit {TOYS} --federation.aggregators+=mine.Mine")
        assert code == 0, err
        assert out.startswith("Mine over 3 clients")

    def test_a_run_keeps_a_config_that_gives_the_same_numbers(self, fedlit_cli):
        assert fedlit_cli(f"fit {TOYS} --federation.participation 0.7 --name first")[0] == 0
        first = metrics()
        assert fedlit_cli("fit -c runs/default/first/config.yaml --run_dir again")[0] == 0
        timeless = [
            {k: v for k, v in m.items() if "time/" not in k[1] and "/seconds" not in k[1]}
            for m in (first, metrics("again"))
        ]
        assert timeless[0].keys() == timeless[1].keys()
        assert [repr(v) for v in timeless[0].values()] == [repr(v) for v in timeless[1].values()]

    def test_a_fast_dev_run_leaves_nothing(self, fedlit_cli, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        (folder / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        code, out, err = fedlit_cli(f"fit {TOYS.replace('--logger false', '--logger true')} --fast_dev_run true")
        assert code == 0, err
        assert "round 1/1" in out
        assert "run directory" not in out
        assert [str(path.relative_to(folder)) for path in folder.rglob("*")] == ["tmp"]

    def test_test_and_predict_evaluate_a_checkpoint(self, fedlit_cli):
        assert fedlit_cli(f"fit {TOYS}")[0] == 0
        code, out, _ = fedlit_cli(f"test {TOYS} --ckpt_path last")
        assert code == 0
        assert "(after 2 rounds)" in out
        code, out, _ = fedlit_cli(f"predict {TOYS} --ckpt_path last --output here")
        assert code == 0
        assert out == "42 images: here/federation_test.parquet\n"
        code, out, _ = fedlit_cli(f"predict {TOYS} --ckpt_path last --output here --part val --format csv")
        assert (code, out) == (0, "42 images: here/federation_val.csv\n")
        header = Path("here/federation_val.csv").read_text().partition("\n")[0].replace('"', "")
        assert header.startswith("image,patient,site,client,model,score/Edema,score/Effusion,score/Nodule,label/Edema,")

    def test_test_without_a_checkpoint_says_what_to_give(self, fedlit_cli):
        code, _, err = fedlit_cli(f"test {TOYS}")
        assert (code, err) == (
            1,
            "fedlit: error: --ckpt_path: expected last, best, a run directory or a checkpoint, found nothing; add it\n",
        )

    def test_version_and_module(self):
        command = [sys.executable, "-m", "fedlit", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, f"fedlit {fedlit.__version__}\n")


class TestHelp:
    def test_fit_names_every_part_in_words(self, fedlit_cli):
        code, out, _ = fedlit_cli("fit --help")
        assert code == 0
        assert "<class" not in out
        assert "``" not in out
        assert "The model that every client trains" in out
        described = re.findall(r"^  (--[\w.]+)", out, re.MULTILINE)
        assert {"--seed", "--data", "--model", "--federation.aggregators", "--fabric.precision"} <= set(described)
        assert out.startswith("usage: fedlit fit [--config FILE] [--KEY VALUE ...]\n")
        order = [described.index(f"--federation.{name}") for name in ("rounds", "patience", "workers", "cuda_graph")]
        assert order == sorted(order)

    def test_base_classes_are_no_choices(self, fedlit_cli):
        text = " ".join(fedlit_cli("fit --help")[1].split())
        choices = re.findall(r"known subclasses: ([^)]*)\)", text)
        assert len(choices) >= 4  # older versions of jsonargparse list none for aggregators
        names = {name for choice in choices for name in choice.split(", ")}
        assert names >= {"PhantomCXR", "ImageClassifier", "MLflowTracker", "StageSchedule"}
        assert not names & {"Aggregator", "FederatedDataModule", "LightningModule", "Schedule", "Tracker", ""}

    def test_a_class_describes_its_arguments(self, fedlit_cli):
        code, out, _ = fedlit_cli("fit --federation.aggregators.help FedProx")
        assert code == 0
        assert "Strength of the pull" in out

    def test_an_algorithm_and_an_objective_describe_their_own_metrics(self, monkeypatch, fedlit_cli):
        monkeypatch.setattr(aggregators.FedProx, "metrics_help", {"drift/pull": "Strength of the pull."})
        monkeypatch.setattr(objectives.BCE, "metrics_help", {"objective/mood": "Mood of the loss."}, raising=False)
        lines = fedlit_cli("fit --help")[1].splitlines()
        described = lines[lines.index("Logged metrics:") :]
        assert {"  drift/pull: Strength of the pull.", "  objective/mood: Mood of the loss."} <= set(described)
        assert any(line.startswith("  drift/client_drift: ") for line in described)

    def test_list_has_a_line_each_that_fits_the_terminal(self):
        narrow = Console(width=60, force_terminal=True, color_system=None, highlight=False)
        with narrow.capture() as captured:
            list_shipped(narrow)
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= 60
        assert [line for line in lines if not line.startswith(" ")] == list(choices.AXES)
        assert any(line.startswith("  FedProx ") and line.endswith("…") for line in lines)

    def test_list_is_whole_in_a_pipe(self, fedlit_cli):
        _, out, _ = fedlit_cli("list")
        (line,) = (line for line in out.splitlines() if line.startswith("  FedProx "))
        assert line.endswith("on the local objective.")
        assert "Aggregator\n" not in out


MISTAKES = {
    "unknown aggregator": (
        "fit --federation.aggregators+=FedAvgg",
        "federation.aggregators (command line): Expected a dot import path string: FedAvgg; did you mean FedAvg?",
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
        "federation:\n  aggregators:\n  - FedBN\n  - class_path: FedProxx\n",
        "federation.aggregators (mine.yaml, line 4): Expected a dot import path string: FedProxx; did you mean "
        "FedProx?",
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
    "wrong type in a phase, which is one of a list": (
        "phases:\n- name: first\n  rounds: 3\n- name: second\n  rounds: many\n",
        "phases.rounds (mine.yaml, line 5): Expected a int. Got value: many",
    ),
    "unknown argument of a tracker": (
        "logger:\n  class_path: MLflowTracker\n  init_args: {tracking_urii: here}\n",
        "logger (mine.yaml, line 3): MLflowTracker: Option 'tracking_urii' is not accepted; did you mean tracking_uri?",
    ),
    "no YAML": ("federation:\n  rounds: [1\nseed: 2\n", "mine.yaml, line 3, column "),
}

REFUSED = {
    "participation": (
        "--federation.participation 1.5",
        "federation.participation (command line): expected a share in (0, 1]",
    ),
    "workers": ("--federation.workers 0", "federation.workers (command line): expected at least 1, found 0"),
    "precision": ("--fabric.precision 16-mixed", "fabric.precision (command line): expected one of 32-true"),
    "backbone": (
        "--model ImageClassifier --model.backbone densenet",
        "model.backbone (command line): timm has no 'densenet'",
    ),
    "backbone that is near": ("--model ImageClassifier --model.backbone densnet121", "similar names are densenet121, "),
    "no root": ("--data NIHChestXray14", "data.root is missing"),
    "missing root": ("--data NIHChestXray14 --data.root /nowhere", "/nowhere: no such folder"),
    "too few samples": ("--data.size 1", "expected at least 2 training samples per client"),
    "metric": ("--federation.monitor val/auroc", "unknown metric 'val/auroc'; available are val/auroc_macro"),
    "checkpoint": ("--ckpt_path nowhere", "--ckpt_path nowhere: expected last, best, a run directory"),
    "aggregator": (
        "--federation.aggregators+=FedProx --federation.aggregators.mu -1",
        "FedProx: mu must be at least 0",
    ),
    "weights": (
        "--federation.aggregators+=FedAvg --federation.aggregators+=aggregating.Uniform",
        "need different client weights",
    ),
}
"""Options that parse, and the errors before anything is trained."""


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
        write("mine.yaml", text)
        write("other.yaml", "federation: {eval_every: 2}\n")
        code, out, err = fedlit_cli("fit -c mine.yaml -c other.yaml --seed 3")
        assert (code, out) == (2, "")
        assert err.startswith(f"fedlit: error: {expected}")

    @pytest.mark.parametrize("case", REFUSED)
    def test_before_training(self, case: str, fedlit_cli):
        options, expected = REFUSED[case]
        write(
            "aggregating.py",
            "from fedlit.aggregators import FedAvg\n\n\nclass Uniform(FedAvg):\n"
            "    def __init__(self):\n        super().__init__('uniform')\n",
        )
        code, out, err = fedlit_cli(f"fit {TOYS} {options}")
        assert code == 1
        assert expected in err
        assert "round 1" not in out
        assert "Traceback" not in err
        assert list(Path("runs").glob("*/*")) == []

    def test_the_line_of_a_value_that_parses_but_is_refused(self, fedlit_cli):
        write("mine.yaml", "seed: 1\nfederation:\n  participation: 3\n")
        code, _, err = fedlit_cli("fit -c mine.yaml")
        assert code == 1
        assert err.startswith("fedlit: error: federation.participation (mine.yaml, line 3): expected a share in (0, 1]")

    def test_a_bug_keeps_its_traceback(self):
        args, parser = parse(shlex.split(f"fit {DIGITS} --model foreigners.Bug"))
        with pytest.raises(ValueError, match="my own mistake") as raised:
            fit.execute(args.fit, parser)
        assert not is_mistake(raised.value)


class TestForeignModules:
    def test_plain_cross_entropy_trains_and_what_it_logs_is_a_metric(self, fedlit_cli):
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Plain --model.lr 0.05 --federation.rounds 8")
        assert code == 0, err
        assert err == ""
        assert "no scores per class: the best model has the lowest val/loss" in out
        logged = metrics()
        for key in (
            "train/accuracy",
            "train/cross entropy",
            "train/rows",
            "val/loss",
            "val/accuracy",
            "client/site-1/train_accuracy",
            "client/site-1/accuracy",
        ):
            assert (8, key) in logged
        assert logged[8, "train/rows"] == 8
        assert logged[8, "train/cross entropy"] == pytest.approx(logged[8, "train/loss"], rel=1e-6)
        assert logged[8, "val/loss"] < 0.85 * logged[1, "val/loss"]
        assert logged[8, "val/accuracy"] > 0.5

    def test_what_a_module_logs_is_what_it_saw(self, fedlit_cli):
        """The logged accuracy equals that of the federation's model, computed explicitly."""
        assert fedlit_cli(f"fit {DIGITS} --model foreigners.Plain --model.lr 0.05 --name one")[0] == 0
        args, parser = parse(shlex.split(f"fit {DIGITS} --model foreigners.Plain"))
        data = parser.instantiate_classes(args.fit).data
        data.setup()
        server = torch.load("runs/default/one/checkpoints/round-000002/server.pt", weights_only=True)["w"]
        module = Plain()
        torch.nn.utils.vector_to_parameters(server, module.parameters())
        images, labels = (torch.cat([d.val.tensors[i] for d in data.clients.values()]) for i in (0, 1))
        with torch.no_grad():
            right = (module.net(images).argmax(1) == labels).float().mean()
        assert metrics()[2, "val/accuracy"] == pytest.approx(float(right))

    def test_labels_that_are_indices_are_scored_one_class_against_the_rest(self, fedlit_cli):
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Named --model.lr 0.05")
        assert code == 0, err
        assert "val AUROC" in out
        logged = metrics()
        assert sum(logged[2, f"val/n_pos/{name}"] for name in ("ant", "bee", "cat", "dog")) == 3 * 16
        assert logged[2, "val/n_pos/ant"] + logged[2, "val/n_neg/ant"] == 3 * 16
        assert 0 <= logged[2, "val/auroc/ant"] <= 1

    def test_without_validation_the_last_model_is_the_best(self, fedlit_cli):
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Unvalidated")
        assert code == 0, err
        assert out.count("no validation metric: the last model counts as the best") == 1
        assert metrics()[2, "train/loss"] < metrics()[1, "train/loss"]
        (directory,) = Path("runs/default").iterdir()
        assert checkpoint.find(directory / "checkpoints", "best") is None

    def test_without_validation_data_a_validation_metric_cannot_be_monitored(self, fedlit_cli):
        code, _, err = fedlit_cli(
            f"fit {DIGITS} --data.val false --model foreigners.Plain --federation.monitor val/loss"
        )
        assert code == 1
        assert "unknown metric 'val/loss'; available are no validation metrics" in err

    def test_a_training_metric_can_be_monitored(self, fedlit_cli):
        options = "--federation.monitor train/loss --federation.monitor_mode min"
        code, _, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Unvalidated {options}")
        assert code == 0, err
        (directory,) = Path("runs/default").iterdir()
        assert checkpoint.find(directory / "checkpoints", "best").name == "round-000002"

    @pytest.mark.parametrize(
        ("module", "expected"),
        [
            ("WarmUp", "WarmUp overrides optimizer_step, which a federation does not call"),
            ("OwnBackward", "OwnBackward overrides backward, which"),
            (
                "OwnClipping",
                "overrides configure_gradient_clipping, which a federation does not call: set federation.grad",
            ),
            ("OwnZero", "OwnZero overrides optimizer_zero_grad, which"),
            ("Exits", "called sys.exit(0) before the end"),
            ("AsksTrainerForItsRate", "tried to access `self.trainer.estimated_stepping_batches`"),
        ],
    )
    def test_refused_before_training(self, module: str, expected: str, fedlit_cli, folder: Path):
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.{module}")
        assert (code, out) == (1, "")
        assert expected in err
        assert not (folder / "runs").exists()

    def test_a_scheduler_of_torch_is_followed_or_refused(self, fedlit_cli, folder: Path):
        code, _, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Scheduled --federation.schedule.unit steps")
        assert code == 1
        assert "a federation cannot follow its StepLR: its interval is one epoch, but the window" in err
        assert not (folder / "runs").exists()
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Scheduled")
        assert code == 0, err
        assert "learning rate: follows the model's StepLR" in out

    def test_hooks_that_nobody_calls_are_named_once(self, fedlit_cli):
        code, _, err = fedlit_cli(f"fit {DIGITS} --model foreigners.Hooked")
        assert code == 0
        assert err.splitlines() == [
            "warning: Hooked overrides on_train_epoch_end, on_train_start, "
            "which a federation does not call: it has no Trainer"
        ]

    def test_asking_the_trainer_in_a_step_says_where(self, fedlit_cli):
        code, _, err = fedlit_cli(f"fit {DIGITS} --model foreigners.AsksTrainer")
        assert code == 1
        assert "tried to access `self.trainer.max_epochs`" in err
        assert "foreigners.py, line " in err


class TestNotFinite:
    def test_a_nan_loss_names_client_round_and_step_and_keeps_the_last_round(self, fedlit_cli, folder: Path):
        line = f"fit {DIGITS} --model foreigners.Diverging --federation.rounds 5"
        code, out, err = fedlit_cli(line.replace("--logger false", "--logger test_cli.StatusTracker"))
        assert code == 1
        assert re.search(r"client 'site-0', round 2, local step 2: the loss is nan", err)
        assert "Traceback" not in err
        assert "round 1/5" in out
        assert Path("status.txt").read_text() == "FAILED"
        (directory,) = Path("runs/default").iterdir()
        assert checkpoint.find(directory / "checkpoints", "last").name == "round-000001"
        code, out, err = fedlit_cli(f"{line} --ckpt_path last --model foreigners.Unvalidated")
        assert (code, "was started with another configuration" in err) == (1, True)
