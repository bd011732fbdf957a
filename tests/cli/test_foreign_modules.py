"""Modules that know nothing of fedlit, on the command line: what they log, and what is refused."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from foreigners import Plain

from fedlit.cli.commands import fit
from fedlit.cli.main import parse
from fedlit.core.checkpoints import checkpoint
from fedlit.experiment.parser import is_mistake
from fedlit.tracking.base import MetricsFile

pytestmark = pytest.mark.usefixtures("folder")

DIGITS = "--data foreigners.Digits --logger false --federation.workers 1 --federation.rounds 2"


def metrics(run_dir: str = "runs") -> dict[tuple[int, str], float]:
    (directory,) = Path(run_dir, "default").iterdir()
    return {(step, key): value for step, key, value in MetricsFile(directory / "metrics.csv").rows()}


class TestForeignModules:
    def test_plain_cross_entropy_trains_and_what_it_logs_is_what_it_saw(self, fedlit_cli):
        ended = fedlit_cli(f"fit {DIGITS} --model foreigners.Plain --model.lr 0.05 --federation.rounds 8")
        assert "no scores per class: the best model has the lowest val/loss" in ended.succeeded()
        assert ended.err == ""
        logged = metrics()
        assert {(8, "client/site-1/train_accuracy"), (8, "client/site-1/accuracy")} <= logged.keys()
        assert logged[8, "train/accuracy"] > 0
        assert logged[8, "train/rows"] == 8
        assert logged[8, "train/cross entropy"] == pytest.approx(logged[8, "train/loss"], rel=1e-6)
        assert logged[8, "val/loss"] < 0.85 * logged[1, "val/loss"]
        assert logged[8, "val/accuracy"] > 0.5
        assert logged[8, "val/accuracy"] == pytest.approx(self.accuracy_of_the_last_model())

    def accuracy_of_the_last_model(self) -> float:
        """That of the federation's model on all validation images, computed explicitly."""
        args, parser = parse(shlex.split(f"fit {DIGITS} --model foreigners.Plain"))
        data = parser.instantiate_classes(args).data
        data.setup()
        (file,) = Path("runs/default").glob("*/checkpoints/round-000008/server.pt")
        module = Plain()
        torch.nn.utils.vector_to_parameters(torch.load(file, weights_only=True)["w"], module.parameters())
        images, labels = (torch.cat([d.val.tensors[i] for d in data.clients.values()]) for i in (0, 1))
        with torch.no_grad():
            return float((module.net(images).argmax(1) == labels).float().mean())

    def test_names_with_the_prefix_of_their_stage_keep_one(self, fedlit_cli):
        out = fedlit_cli(f"fit {DIGITS} --model foreigners.Prefixed --federation.patience 2").succeeded()
        assert "no scores per class: the best model has the lowest val/loss" in out
        assert "val loss" in out
        logged = metrics()
        of_rounds = {"val/loss", "val/loss_client_mean", "val/acc", "client/site-1/loss", "client/site-1/train_double"}
        assert {(2, key) for key in of_rounds} <= logged.keys()
        assert not [key for _, key in logged if "val_" in key]
        # fedlit logs the training loss itself
        assert logged[2, "train/train_loss"] == pytest.approx(2 * logged[2, "train/loss"], rel=1e-6)
        assert logged[2, "client/site-1/train_train_loss"] == pytest.approx(2 * logged[2, "client/site-1/train_loss"])
        assert logged[2, "train/double"] == logged[2, "train/train_loss"]

    def test_labels_that_are_indices_are_scored_one_class_against_the_rest(self, fedlit_cli):
        out = fedlit_cli(f"fit {DIGITS} --model foreigners.Named --model.lr 0.05").succeeded()
        assert "val AUROC" in out
        logged = metrics()
        assert sum(logged[2, f"val/n_pos/{name}"] for name in ("ant", "bee", "cat", "dog")) == 3 * 16
        assert logged[2, "val/n_pos/ant"] + logged[2, "val/n_neg/ant"] == 3 * 16
        assert 0 <= logged[2, "val/auroc/ant"] <= 1

    def test_without_validation_the_last_model_is_the_best(self, fedlit_cli):
        out = fedlit_cli(f"fit {DIGITS} --model foreigners.Unvalidated").succeeded()
        assert out.count("no validation metric: the last model counts as the best") == 1
        assert metrics()[2, "train/loss"] < metrics()[1, "train/loss"]
        (directory,) = Path("runs/default").iterdir()
        assert checkpoint.find(directory / "checkpoints", "best") is None

    def test_without_validation_data_a_validation_metric_cannot_be_monitored(self, fedlit_cli):
        line = f"fit {DIGITS} --data.val false --model foreigners.Plain --federation.monitor val/loss"
        fedlit_cli(line).refused("'val/loss'", "no validation metrics")

    def test_a_training_metric_can_be_monitored(self, fedlit_cli):
        options = "--federation.monitor train/loss --federation.monitor_mode min"
        fedlit_cli(f"fit {DIGITS} --model foreigners.Unvalidated {options}").succeeded()
        (directory,) = Path("runs/default").iterdir()
        assert checkpoint.find(directory / "checkpoints", "best").name == "round-000002"

    @pytest.mark.parametrize(
        ("module", "expected"),
        [
            ("WarmUp", "WarmUp overrides optimizer_step, which a federation does not call"),
            (
                "OwnClipping",
                "overrides configure_gradient_clipping, which a federation does not call: set federation.grad",
            ),
            ("Exits", "called sys.exit(0) before the end"),
            ("AsksTrainerForItsRate", "found self.trainer.estimated_stepping_batches; set federation.schedule"),
        ],
    )
    def test_refused_before_training(self, module: str, expected: str, fedlit_cli, folder: Path):
        code, out, err = fedlit_cli(f"fit {DIGITS} --model foreigners.{module}")
        assert (code, out) == (1, "")
        assert expected in err
        assert not (folder / "runs").exists()

    def test_a_scheduler_of_torch_is_followed(self, fedlit_cli, folder: Path):
        for unit in ("epochs", "steps"):
            line = f"fit {DIGITS} --model foreigners.Scheduled --federation.schedule.unit {unit} --run_dir {unit}"
            fedlit_cli(f"{line} --federation.rounds 2").succeeded()
            rates = [value for (_, key), value in metrics(unit).items() if key == "round/lr"]
            assert len(rates) == 2
            assert (rates[1] < rates[0]) == (unit == "epochs"), rates

    def test_hooks_that_nobody_calls_are_named_once(self, fedlit_cli):
        (ended := fedlit_cli(f"fit {DIGITS} --model foreigners.Hooked")).succeeded()
        assert ended.err.splitlines() == [
            "warning: Hooked overrides on_train_epoch_end, on_train_start, "
            "which a federation does not call: it has no Trainer"
        ]

    def test_a_bug_keeps_its_traceback(self):
        args, parser = parse(shlex.split(f"fit {DIGITS} --model foreigners.Bug"))
        with pytest.raises(ValueError, match="my own mistake") as raised:
            fit.execute(args, parser)
        assert not is_mistake(raised.value)


class TestNotFinite:
    def test_a_nan_loss_names_client_round_and_step_and_keeps_the_last_round(self, fedlit_cli, folder: Path):
        line = f"fit {DIGITS} --model foreigners.Diverging --federation.rounds 5"
        code, out, err = fedlit_cli(f"{line} --logger awkward.StatusFile")
        assert code == 1
        assert re.search(r"client 'site-0', round 2, local step 2: the loss is nan", err)
        assert "Traceback" not in err
        assert "round 1/5" in out
        (directory,) = Path("runs/default").iterdir()
        assert (directory / "status.txt").read_text() == "FAILED"
        assert checkpoint.find(directory / "checkpoints", "last").name == "round-000001"
        other = fedlit_cli(f"{line} --ckpt_path last --model foreigners.Unvalidated")
        other.refused("Only rounds, workers, devices, callbacks and logger may")
