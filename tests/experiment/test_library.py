"""``fedlit.fit``: a federation from a script, with the numbers of the command line."""

import inspect
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from runs import Kept, assert_same_run, assert_same_tensors
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from toys import ToyData, ToyNet

import fedlit
from fedlit.aggregators import CODASCA, FedBN, Scaffold
from fedlit.core.errors import CheckpointError, ConfigError, TrainingError
from fedlit.core.randomness import seed_process
from fedlit.data import ClientData
from fedlit.experiment.described import described
from fedlit.experiment.fitted import Fitted
from fedlit.experiment.library import OF_SITES
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.settings import Settings
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker

STEPS = ConstantSchedule(2, "steps")
WORKERS = {"workers": 1}


class Net(LightningModule):
    """A linear layer; what is wrong with it is what a test says."""

    classes = ("Edema", "Mass")

    def __init__(self, width: int = 64):
        super().__init__()
        self.width = width
        self.head = torch.nn.Linear(width, 2)

    def forward(self, images):
        return self.head(images.flatten(1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Untrainable(LightningModule):
    pass


class Tied(Net):
    """Two layers that share their memory, and not their parameter: copies of it would not."""

    def __init__(self):
        super().__init__()
        self.tail = torch.nn.Linear(64, 2)
        self.tail.weight.data = self.head.weight.data


def part(size: int = 12, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 8, 8, generator=g)
    return TensorDataset(images, (images.mean((1, 2, 3))[:, None] * torch.tensor([1.0, -1.0]) > 0).float())


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def two() -> dict:
    return {"north": (part(12, 1), part(8, 2), part(8, 3)), "south": (part(10, 4), part(8, 5), part(8, 6))}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fit(*given, **options) -> Fitted:
    model, clients = (*given, two())[:2] if given else (net(), two())
    return fedlit.fit(model, clients, **{"rounds": 2, "schedule": STEPS, "batch_size": 4, **WORKERS, **options})


class TestWhatItGives:
    def test_the_best_model_the_metrics_the_directory_and_predictions(self):
        model = net()
        before = model.head.weight.clone()
        fitted = fit(model, name="mine")
        assert fitted.directory == Path("runs/default/mine")
        assert (fitted.directory / "predictions" / "federation.parquet").exists()
        assert list(fitted.metrics.index) == [1, 2]
        assert fitted.metrics["val/auroc_macro"].notna().all()
        assert fitted.test["test/federation/auroc_macro"] == fitted.metrics["test/federation/auroc_macro"][2]
        assert torch.equal(model.head.weight, before)
        assert not torch.equal(fitted.model.head.weight, before)
        assert not fitted.model.training
        logits = fitted.predict(part(7, 9))
        assert torch.equal(logits, fitted.model(part(7, 9).tensors[0]).detach())
        unlabelled = fitted.predict([image for image, _ in part(7, 9)])
        assert torch.equal(logits, unlabelled)
        assert repr(fitted).startswith("Fitted(directory=")

    def test_a_model_that_scores_nothing_and_clients_that_only_train(self):
        class Number(LightningModule):
            def __init__(self):
                super().__init__()
                self.x = torch.nn.Parameter(torch.zeros(1))

            def training_step(self, batch, batch_idx):
                return ((self.x - batch) ** 2).mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.25)

        fitted = fit(Number(), {"north": [torch.tensor(2.0)] * 4})
        assert float(fitted.model.x.detach()) == 2 * (1 - 0.5**4)
        assert fitted.test == {}

    def test_clients_that_keep_a_part_have_models_of_their_own(self):
        model = ToyNet(classes=("Edema", "Mass"))
        fitted = fit(model, aggregators=[FedBN()])
        with pytest.raises(ConfigError, match=r"no single global model: FedBN keeps .* model_of\(client\)"):
            fitted.predict(part())
        own = [fitted.predict(part(), client) for client in ("north", "south")]
        assert own[0].shape == (12, 2)
        assert not torch.equal(*own)
        with pytest.raises(ConfigError, match="no client 'west'; clients are north, south"):
            fitted.model_of("west")

    def test_test_sets_that_no_client_has(self):
        assert "test/Zurich/auroc_macro" in fit(test_sets={"Zurich": part(20, 8)}).test

    def test_a_client_that_labels_a_part_of_the_classes(self, capsys: pytest.CaptureFixture):
        clients = {"north": ClientData("x", ("Edema",), part(12, 1), None, None), "south": part(12, 2)}
        fit(net(), clients)
        assert "north labels Edema; south labels Edema, Mass" in capsys.readouterr().out

    def test_phases_callbacks_and_a_tracker(self):
        seen, tracked = [], []

        class Counting(Callback):
            def on_round_end(self, state):
                seen.append(state.step)

        class Noting(Tracker):
            def log_metrics(self, metrics, step):
                tracked.append(step)

        fitted = fit(phases=[Phase("first", 1, keep="all")], callbacks=[Counting()], logger=Noting())
        assert seen == [1, 2, 3]
        assert tracked == [1, 2, 3, 3]
        assert list(fitted.metrics.index) == [1, 2, 3]

    def test_a_callback_may_change_the_given_model_between_phases(self):
        class Emptying(Callback):
            def on_round_end(self, state):
                torch.nn.init.zeros_(model.head.weight)

        phases, model = [Phase("first", 1, keep="body")], net()  # the head starts afresh, from its initial values
        plain, emptied = fit(phases=phases), fit(model, two(), phases=phases, callbacks=[Emptying()])
        assert not model.head.weight.any()
        assert torch.equal(plain.model.head.weight, emptied.model.head.weight)

    def test_a_logger_of_lightning(self):
        fitted = fit(logger=CSVLogger("logs", name="", version="mine"))
        logged = Path("logs/mine/metrics.csv").read_text()
        assert "val/auroc" in logged
        assert len(fitted.metrics) == 2

    def test_a_trial_run_keeps_nothing(self):
        fitted = fit(fast_dev_run=True)
        assert len(fitted.metrics) == 1
        assert not Path("runs").exists()
        assert fitted.predict(part()).shape == (12, 2)


class TestTheSameAsTheCommandLine:
    def config(self) -> dict:
        steps = {"class_path": "ConstantSchedule", "init_args": {"window": 2, "unit": "steps"}}
        scaffold = {"class_path": "Scaffold", "init_args": {"eta_g": 0.9}}
        return {
            "seed": 3,
            "name": "typed",
            "logger": False,
            "data": {"class_path": "toys.ToyData"},
            "model": {"class_path": "toys.ToyNet"},
            "federation": {"rounds": 3, "workers": 1, "schedule": steps, "aggregators": [scaffold]},
        }

    def test_bit_for_bit(self, fedlit_cli):
        Path("typed.yaml").write_text(yaml.safe_dump(self.config()))
        code, _, err = fedlit_cli("fit --config typed.yaml")
        assert code == 0, err
        seed_process(3, "initial weights")
        model, data = ToyNet(ToyData().classes), ToyData()
        options = {"seed": 3, "rounds": 3, "workers": 1, "schedule": STEPS, "aggregators": [Scaffold(0.9)]}
        fitted = fedlit.fit(model, data, name="called", **options)
        kept = [Kept(Path("runs/default") / name) for name in ("typed", "called")]
        assert_same_run(*kept)
        clients = {name: (client.train, client.val, client.test) for name, client in data.clients.items()}
        again = fedlit.fit(model, clients, name="given", batch_size=data.batch_size, **options)
        assert torch.equal(again.model.head.weight, fitted.model.head.weight)

    def test_every_setting_of_a_federation_is_an_argument_with_its_default(self):
        taken = inspect.signature(fedlit.fit).parameters
        elsewhere = ("clients", *OF_SITES)
        settings = [setting for setting in fields(Settings) if setting.name not in elsewhere]
        assert {s.name: s.default for s in settings} == {s.name: taken[s.name].default for s in settings}

    @pytest.mark.slow
    def test_compare_reads_its_runs(self, fedlit_cli):
        fit(name="one")
        fit(name="two", seed=1)
        code, out, err = fedlit_cli("compare runs/default")
        assert code == 0, err
        assert "FedAvg" in out

    def test_a_run_that_was_made_in_python_is_refused_in_words_by_other_commands(self, fedlit_cli):
        toy = ToyNet(classes=("Edema", "Mass"))
        fit(toy, name="one")
        code, _, err = fedlit_cli("test --config runs/default/one/config.yaml --ckpt_path runs/default/one")
        assert code == 1, err
        assert "client 'north'" in err
        assert "data sets that were given to fedlit.fit" in " ".join(err.split())


class TestOneAfterTheOther:
    def test_the_same_call_gives_the_same_numbers_in_a_run_of_its_own(self):
        runs = [fit(name="mine") for _ in range(2)]
        assert [run.directory.name for run in runs] == ["mine", "mine-2"]
        assert torch.equal(*(run.model.head.weight for run in runs))

    def test_generators_and_threads_stay_the_callers(self):
        model = net()
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        threads = torch.get_num_threads()
        states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        torch.set_num_threads(2)
        fit(model, two())
        assert torch.get_num_threads() == 2
        torch.set_num_threads(threads)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.random.get_state()[1].tolist() == states[1]
        assert random.getstate() == states[2]

    def test_a_run_goes_on(self):
        whole = fit(rounds=3, name="whole")
        fit(rounds=1, name="part")
        resumed = fit(rounds=3, ckpt_path="runs/default/part")
        assert resumed.directory.name == "part"
        assert list(resumed.metrics.index) == [1, 2, 3]
        assert_same_tensors(Kept(whole.directory).tensors(), Kept(resumed.directory).tensors())

    @pytest.mark.parametrize(
        ("changed", "key"),
        [
            ({"batch_size": 5}, "data.init_args.batch_size: 4 there, 5 now"),
            ({"schedule": ConstantSchedule(3, "steps")}, "federation.schedule.init_args.window: 2 there"),
            ({"aggregators": [Scaffold()]}, "federation.aggregators"),
        ],
        ids=["batch", "window", "algorithm"],
    )
    def test_a_run_goes_on_as_it_began(self, changed, key):
        fit(rounds=1, name="part")
        with pytest.raises(CheckpointError, match=key):
            fit(rounds=3, ckpt_path="last", **changed)

    def test_in_a_thread(self):
        done = []
        thread = threading.Thread(target=lambda: done.append(fit()))
        thread.start()
        thread.join(60)
        assert done[0].best_round >= 1

    def test_ctrl_c_leaves_a_run_that_can_go_on(self, capsys: pytest.CaptureFixture):
        class Stop(Callback):
            def on_round_end(self, state):
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            fit(callbacks=[Stop()], name="stopped")
        assert "to continue: ckpt_path='runs/default/stopped'" in capsys.readouterr().out
        resumed = fit(ckpt_path="last", callbacks=None)
        assert_same_run(Kept(fit(name="whole").directory), Kept(resumed.directory))

    @pytest.mark.slow
    def test_an_error_leaves_no_process(self):
        class Failing(Callback):
            def on_round_end(self, state):
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            fit(callbacks=[Failing()], workers=2)
        assert multiprocessing.active_children() == []


def composition_told() -> dict:
    return described(CODASCA(gamma=0.5))["init_args"]


def test_a_composition_is_described_by_its_parts():
    told = json.dumps(composition_told())
    assert '"gamma": 0.5' in told
    assert "Scaffold" in told


class Stream(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: fit(Net), "model: expected LightningModule, found the class Net; write Net\\(...\\)"),
        (lambda: fit(torch.nn.Linear(2, 2)), "model: expected LightningModule, found a Linear"),
        (lambda: fit(Untrainable()), "Untrainable has no training_step"),
        (lambda: fit(Tied()), "Tied: its parameters head.weight and tail.weight share memory"),
        (lambda: fit(net(), {}), "clients: expected at least one, such as {'north': .*found none"),
        (lambda: fit(net(), [part(), part()]), "clients: expected .*found \\[a TensorDataset, a TensorDataset\\]"),
        (lambda: fit(net(), {"north": part(), "North ": part()}), "'north' and 'North ' are the same in files"),
        (lambda: fit(net(), {1: part()}), "clients: expected names that are texts, found 1; write '1'"),
        (lambda: fit(net(), {"north": 3}), "client 'north', training: expected a data set .* found a int; it has no"),
        (lambda: fit(net(), {"north": part().tensors}), "client 'north', training: .* found a Tensor; .*TensorDataset"),
        (lambda: fit(net(), {"north": DataLoader(part())}), "found a DataLoader; give its data set"),
        (lambda: fit(net(), {"north": Stream()}), "found a Stream; an example is asked for by its index"),
        (lambda: fit(net(), {"north": {"train": part()}}), "found a dict; .* are a tuple"),
        (lambda: fit(net(), {"north": [part(), part()]}), "found a list; .*are a tuple: \\(train, val, test\\)"),
        (lambda: fit(net(), {"north": (part(),) * 4}), "client 'north': expected .*found a tuple of 4"),
        (lambda: fit(net(), {"north": (None, part())}), "client 'north': .*without a training set"),
        (lambda: fit(net(), {"north": (part(), Subset(part(), []))}), "client 'north', validation: .*is empty"),
        (lambda: fit(net(), {"north": part(1)}), "at least 2 training samples.*'north' \\(1\\)"),
        (lambda: fit(aggregators=Scaffold()), "aggregators: expected a list of Aggregator, .*write \\[Scaffold"),
        (lambda: fit(aggregators=[Scaffold]), "found \\[the class Scaffold\\]; write Scaffold\\(...\\)"),
        (lambda: fit(aggregators=["Scaffold"]), "aggregators: expected a list of Aggregator, found \\['Scaffold'\\]"),
        (lambda: fit(rounds="3"), "rounds: expected a whole number, found '3'"),
        (lambda: fit(rounds=0), "federation.rounds: expected at least 1, found 0"),
        (lambda: fit(optimizer_state="drop"), "optimizer_state: expected 'reset' or 'keep', found 'drop'"),
        (lambda: fit(seed=True), "seed: expected a whole number, found True"),
        (lambda: fit(schedule={"window": 1}), "schedule: expected Schedule, found a dict"),
        (lambda: fit(logger="csv"), "logger: expected Tracker or Logger or a list of Tracker or Logger or True or False"),
        (lambda: fit(name="a/b"), "name: expected a name of letters"),
        (lambda: fit(precision="16"), "fabric.precision"),
        (lambda: fit(net(), ToyData()), "batch_size: ToyData has its own"),
    ],
    ids=[
        "class", "module", "untrainable", "tied", "nobody", "a list", "one name", "number as name", "number", "tensors", "loader",
        "stream", "dict", "list of sets", "four sets", "no training set", "empty set", "one example", "one aggregator",
        "aggregator class", "aggregator name", "text", "no rounds", "word", "truth value", "schedule", "logger", "path",
        "precision", "batch size twice",
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words(given, words):
    with pytest.raises(ConfigError, match=words):
        given()
    assert not Path("runs").exists()


def test_predictions_of_something_else():
    fitted = fit()
    with pytest.raises(ConfigError, match=r"predict: expected a data set .*found a Tensor"):
        fitted.predict(torch.zeros(2, 1, 8, 8))
    fitted.model.forward = lambda images: {"logits": images}
    with pytest.raises(TrainingError, match=r"Net.forward returned a dict"):
        fitted.predict(part())


def test_a_model_that_cannot_predict_says_what_it_lacks():
    class Silent(Net):
        forward = LightningModule.forward

        def training_step(self, batch, batch_idx):
            return self.head(batch[0].flatten(1)).square().mean()

        validation_step = LightningModule.validation_step

    fitted = fit(Silent())
    with pytest.raises(TrainingError, match=r"Silent has neither predict_step nor forward, .*def predict_step"):
        fitted.predict(part())


def test_names_of_algorithms_are_for_yaml():
    words = r"aggregators: expected a list of Aggregator, found \['FedBN'\]; a name is for YAML, in Python write FedBN"
    with pytest.raises(ConfigError, match=words):
        fit(aggregators=["FedBN"])


SCRIPT = """\
print("begins")
import sys

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import Dataset

import fedlit
from fedlit.aggregators import Aggregator
from fedlit.testing import check_aggregator


class Numbers(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Mine(Aggregator):
    def on_aggregate_end(self, state, server, mean, rnd):
        server.delta = server.delta / 2


class Number(LightningModule):
    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        assert sys.begun or sys.platform != "linux"
        return ((self.x - batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


sys.begun = True  # on Linux a worker is a copy of this process, and imports nothing
numbers = {"north": Numbers(), "south": Numbers()}
alone, beside = (fedlit.fit(Number(), numbers, aggregators=[Mine()], rounds=2, workers=n) for n in (1, 2))
assert torch.equal(alone.model.x, beside.model.x)
check_aggregator(Mine())
print("ends")
"""


@pytest.mark.slow
def test_a_script_without_a_guard_has_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 workers" in done.stdout
    assert [line for line in done.stdout.splitlines() if line in ("begins", "ends")] == ["begins", "ends"]
