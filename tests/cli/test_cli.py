"""The command line: habits of LightningCLI, and help."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from runs import Kept, assert_same_run
from toys import TOYS

from fedlit import aggregators, objectives
from fedlit.cli.commands import fit
from fedlit.cli.main import parse
from fedlit.cli.tables import list_shipped
from fedlit.data import IID, NIHChestXray14
from fedlit.experiment import choices
from fedlit.tracking.mlflow import MLflowTracker

pytestmark = pytest.mark.usefixtures("folder")


class TestHabits:
    def test_later_configs_and_options_win(self):
        first = "seed: 1\nfederation: {rounds: 7, eval_every: 3}\nmodel: {init_args: {backbone: resnet18}}\n"
        Path("a.yaml").write_text(first)
        Path("b.yaml").write_text("federation: {rounds: 8}\nmodel: {init_args: {drop_rate: 0.5}}\n")
        args = parse(shlex.split("fit -c a.yaml --config=b.yaml --federation.eval_every 2"))[0]
        assert (args.seed, args.federation.rounds, args.federation.eval_every) == (1, 8, 2)
        assert (args.model.init_args.backbone, args.model.init_args.drop_rate) == ("resnet18", 0.5)
        args = parse(shlex.split("fit --federation.rounds 9 -c a.yaml"))[0]
        assert args.federation.rounds == 7  # in the order of the command line

    def test_a_printed_config_is_the_same_run(self, fedlit_cli):
        aggregators = "[FedProx, {class_path: Scaffold, init_args: {eta_g: 2}}]"
        Path("a.yaml").write_text(f"federation: {{rounds: 3, aggregators: {aggregators}}}")
        line = (
            "fit -c a.yaml --data NIHChestXray14 --data.root x --data.partition Dirichlet --data.partition.clients 3"
            " --data.partition.alpha 0.3 --model.optimizer Adam --model.optimizer.lr 1e-4 --logger MLflowTracker"
            " --federation.schedule StageSchedule --federation.schedule.stages '[{rounds: 2, lr_factor: 0.3}]'"
        )
        printed = fedlit_cli(f"{line} --print_config").succeeded()
        Path("printed.yaml").write_text(printed)
        assert yaml.safe_load(printed)["federation"]["aggregators"][1]["init_args"] == {
            "eta_g": 2.0,
            "reset": None,
            "extra_batches": None,
        }
        assert fedlit_cli("fit -c printed.yaml --print_config") == (0, printed, "")

    def test_short_names_make_the_objects_that_they_name(self):
        args, parser = parse(
            shlex.split(
                "fit --federation.aggregators+=FedBN --federation.aggregators+=FedProx --federation.aggregators.mu 0.5"
                " --data NIHChestXray14 --data.root /nowhere --data.partition IID --data.partition.clients 3"
                " --model.backbone small_cnn --model.objective BCE --model.optimizer Adam --model.optimizer.lr 1e-4"
                " --logger MLflowTracker --logger.tracking_uri sqlite:///elsewhere.db"
            )
        )
        objects = parser.instantiate_classes(args)
        bn, prox = objects.federation.aggregators
        assert isinstance(bn, aggregators.FedBN)
        assert (type(prox), prox.mu) == (aggregators.FedProx, 0.5)
        assert isinstance(objects.data, NIHChestXray14)
        assert isinstance(objects.data.partition, IID)
        assert objects.model.classes == objects.data.classes
        optimizer = objects.model.configure_optimizers()
        assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.Adam, 1e-4)
        assert (type(objects.logger), objects.logger.tracking_uri) == (MLflowTracker, "sqlite:///elsewhere.db")

    def test_every_short_name_that_is_listed_is_understood(self):
        names = [cls.__name__ for cls in choices.shipped("aggregators")]
        args = parse(["fit", "--federation.aggregators", f"[{', '.join(names)}]"])[0]
        assert [each.class_path for each in args.federation.aggregators] == [f"fedlit.aggregators.{n}" for n in names]

    def test_a_module_of_the_working_directory_is_found(self, fedlit_cli):
        Path("mine.py").write_text("from fedlit.aggregators import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
        out = fedlit_cli(f"fit {TOYS} --federation.aggregators+=mine.Mine").succeeded()
        assert out.startswith("Mine over 3 clients")

    def test_a_run_keeps_a_config_that_gives_the_same_numbers(self, fedlit_cli):
        assert fedlit_cli(f"fit {TOYS} --federation.participation 0.7 --name first")[0] == 0
        assert fedlit_cli("fit -c runs/default/first/config.yaml --run_dir again")[0] == 0
        assert_same_run(Kept(Path("runs/default/first")), Kept(Path("again/default/first")))

    def test_a_fast_dev_run_leaves_nothing(self, fedlit_cli, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
        (folder / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", None)
        out = fedlit_cli(f"fit {TOYS.replace('--logger false', '--logger true')} --fast_dev_run true").succeeded()
        assert "round 1/1" in out
        assert "run directory" not in out
        assert [str(path.relative_to(folder)) for path in folder.rglob("*")] == ["tmp"]

    def test_each_command_says_which_model_it_takes(self, fedlit_cli):
        worst = f"{TOYS} --federation.monitor val/loss --federation.monitor_mode max --name run"
        fedlit_cli(f"fit {worst}").succeeded()
        first, last = (f"runs/default/run/checkpoints/round-00000{number}" for number in (1, 2))
        for command, asked, best in (
            ("test", "last", "best"), ("export", "last", "best"), ("predict", "runs/default/run", first)
        ):  # fmt: skip
            out = fedlit_cli(f"{command} {worst} --ckpt_path {asked}").succeeded()
            assert f"{last}: the last model; the best was round 1: --ckpt_path {best}" in out.splitlines()
        assert f"{first}: the best model" in fedlit_cli(f"test {worst} --ckpt_path best").succeeded().splitlines()
        fedlit_cli(f"fit {TOYS} --federation.rounds 1 --name one").succeeded()
        out = fedlit_cli(f"export {TOYS} --federation.rounds 1 --ckpt_path runs/default/one").succeeded()
        assert "runs/default/one/checkpoints/round-000001: the best and last model" in out.splitlines()

    def test_test_without_a_checkpoint_says_what_to_give(self, fedlit_cli):
        fedlit_cli(f"test {TOYS}").refused("--ckpt_path")


class TestHelp:
    def test_fit_describes_every_part_its_choices_and_the_metrics_of_classes(self, fedlit_cli, monkeypatch):
        monkeypatch.setattr(fit, "_parser", fit._parser.__wrapped__)
        monkeypatch.setattr(aggregators.FedProx, "metrics_help", {"drift/pull": "Strength of the pull."})
        monkeypatch.setattr(objectives.BCE, "metrics_help", {"objective/mood": "Mood of the loss."}, raising=False)
        out = fedlit_cli("fit --help").succeeded()
        assert "<class" not in out
        assert "``" not in out
        options = re.findall(r"^  (--[\w.]+)", out, re.MULTILINE)
        assert {"--seed", "--data", "--model", "--federation.aggregators", "--fabric.precision"} <= set(options)
        lines = out.splitlines()
        metrics = lines[lines.index("Logged metrics:") :]
        assert {"  drift/pull: Strength of the pull.", "  objective/mood: Mood of the loss."} <= set(metrics)
        assert any(line.startswith("  drift/client_drift: ") for line in metrics)
        listed = re.findall(r"known subclasses: ([^)]*)\)", " ".join(out.split()))
        names = {name for choice in listed for name in choice.split(", ")}
        assert names >= {"PhantomCXR", "ImageClassifier", "MLflowTracker", "StageSchedule"}
        assert not names & {"Aggregator", "FederatedDataModule", "LightningModule", "Schedule", "Tracker", ""}

    def test_choices_are_fedlits_own_or_a_librarys(self, fedlit_cli):
        import torchvision.models  # noqa: F401, many subclasses of Module

        text = " ".join(fedlit_cli("fit --model.help ImageClassifier")[1].split())
        objectives, optimizers = (each.split(", ") for each in re.findall(r"known subclasses: ([^)]*)\)", text))
        assert {"AUCSaddle", "BCE"} <= {*objectives}
        assert not {"ResNet", "ImageClassifier"} & {*objectives}
        assert {"SGD", "Adam"} <= {*optimizers}

    def test_a_class_describes_its_arguments(self, fedlit_cli):
        out = fedlit_cli("fit --federation.aggregators.help FedProx").succeeded()
        assert "Strength of the pull" in out

    def test_list_has_a_line_each_that_fits_the_terminal(self):
        narrow = Console(width=60, force_terminal=True, color_system=None, highlight=False)
        with narrow.capture() as captured:
            list_shipped(narrow)
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= 60
        assert [line for line in lines if not line.startswith(" ")] == list(choices.AXES)
        assert any(line.startswith("  FedProx ") and line.endswith("…") for line in lines)

    def test_list_of_one_heading_is_that_part(self, fedlit_cli):
        _, whole, _ = fedlit_cli("list")
        assert any(line.startswith("  FedProx ") and line.endswith("objective.") for line in whole.splitlines())
        _, out, _ = fedlit_cli("list schedules")
        assert out.startswith("schedules\n")
        assert out in whole
        assert "FedProx" not in out
