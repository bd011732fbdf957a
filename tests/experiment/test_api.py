"""``fedlit.fit``: a federation from a script, with the results of the command line."""

import gc
import inspect
import json
import multiprocessing
import os
import random
import signal
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.loggers import CSVLogger
from refusals import refused
from runs import Kept, assert_same_run, assert_same_tensors
from scripted import STEPS, Net, fit, net, part, two
from torch.utils.data import TensorDataset
from toys import ToyData, ToyNet

import fedlit
from fedlit.aggregators import CODASCA, FedBN, Scaffold
from fedlit.core.errors import CheckpointError, ConfigError
from fedlit.core.randomness import seed_process
from fedlit.data import ClientData
from fedlit.experiment.given_objects import described
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.settings import Settings
from fedlit.schedules import ConstantSchedule
from fedlit.tracking.base import Tracker

pytestmark = pytest.mark.usefixtures("folder")


class TestWhatItGives:
    def test_the_best_model_the_metrics_the_directory_and_predictions(self):
        model = net()
        before = model.head.weight.clone()
        fitted = fit(model, name="mine", logger=CSVLogger("logs", name="", version="mine"))
        assert "val/auroc" in Path("logs/mine/metrics.csv").read_text()
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
        with refused(ConfigError, "FedBN", "model_of(client)"):
            fitted.predict(part())
        own = [fitted.predict(part(), client) for client in ("north", "south")]
        assert own[0].shape == (12, 2)
        assert not torch.equal(*own)
        with refused(ConfigError, "'west'", "north, south"):
            fitted.model_of("west")

    def test_names_of_numpy(self):
        names, classes = np.array(["north", "south"]), np.array(["Edema", "Mass"])
        parts = (part(12, 1), part(12, 2))
        fitted = fit(net(), {name: ClientData(name, classes, data) for name, data in zip(names, parts, strict=True)})
        assert yaml.safe_load((fitted.directory / "config.yaml").read_text())["data"]["init_args"][
            "clients"
        ].keys() == {"north", "south"}
        for name, mistake in ((np.str_("west"), ConfigError), (names[0], ConfigError)):
            with refused(mistake, f"'{name}'"):
                fit(lr_factors={name: -1.0 if name in names else 0.5})

    def test_a_client_that_labels_a_part_of_the_classes_and_a_test_set_that_none_has(self, capsys):
        clients = {"north": ClientData("x", ("Edema",), part(12, 1), None, None), "south": part(12, 2)}
        assert "test/Zurich/auroc_macro" in fit(net(), clients, test_sets={"Zurich": part(20, 8)}).test
        assert "north labels Edema; south labels Edema, Mass" in capsys.readouterr().out

    def test_phases_callbacks_and_a_tracker(self):
        seen, tracked = [], []

        class Counting(Callback):
            def on_round_end(self, state):
                seen.append((state.run.directory.name == "first", state.done))

        class Noting(Tracker):
            def log_metrics(self, metrics, step):
                tracked.append(step)

            def of_phase(self):
                return self

        fitted = fit(phases=[Phase("first", rounds=1, keep="all")], callbacks=[Counting()], logger=Noting())
        assert seen == [(True, 1), (False, 1), (False, 2)]
        assert tracked == [1, 1, 1, 2, 2]  # each run ends with its test
        assert list(fitted.metrics.index) == [1, 2]

    def test_a_callback_may_change_the_given_model_between_phases(self):
        class Emptying(Callback):
            def on_round_end(self, state):
                torch.nn.init.zeros_(model.head.weight)

        phases, model = [Phase("first", rounds=1, keep="body")], net()  # the head starts afresh
        options = {"phases": phases, "rounds": 1, "figures": False}
        plain, emptied = fit(**options), fit(model, two(), callbacks=[Emptying()], **options)
        assert not model.head.weight.any()
        assert torch.equal(plain.model.head.weight, emptied.model.head.weight)

    def test_figures_are_drawn_unless_they_are_not_wanted(self):
        drawn, bare = (fit(figures=wanted, rounds=1).directory for wanted in (True, False))
        names = [{file.name for file in run.iterdir()} for run in (drawn, bare)]
        assert names[0] - names[1] == {"roc_federation.png"}

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
            "federation": {"rounds": 2, "workers": 1, "schedule": steps, "aggregators": [scaffold]},
        }

    def test_bit_for_bit(self, fedlit_cli):
        Path("typed.yaml").write_text(yaml.safe_dump(self.config()))
        fedlit_cli("fit --config typed.yaml").succeeded()
        seed_process(3, "initial weights")
        model, data = ToyNet(ToyData().classes), ToyData()
        options = {"seed": 3, "rounds": 2, "workers": 1, "schedule": STEPS, "aggregators": [Scaffold(0.9)]}
        fitted = fedlit.fit(model, data, name="called", **options)
        kept = [Kept(Path("runs/default") / name) for name in ("typed", "called")]
        assert_same_run(*kept)
        clients = {name: (client.train, client.val, client.test) for name, client in data.clients.items()}
        again = fedlit.fit(model, clients, name="given", batch_size=data.batch_size, **options)
        assert torch.equal(again.model.head.weight, fitted.model.head.weight)

    def test_other_commands_make_the_data_of_a_run_that_was_made_in_python(self, fedlit_cli):
        """The argument ``clients`` is written down, although setup() fills an attribute of that name."""
        data = ToyData(clients=2)
        data.setup()
        fedlit.fit(ToyNet(data.classes), data, name="one", rounds=1, logger=False, figures=False)
        config = "runs/default/one/config.yaml"
        assert yaml.safe_load(Path(config).read_text())["data"]["init_args"]["clients"] == 2
        fedlit_cli(f"test --config {config} --ckpt_path runs/default/one").succeeded()

    @pytest.mark.slow
    def test_compare_reads_its_runs(self, fedlit_cli):
        for seed, name in enumerate(("one", "two")):
            fit(name=name, seed=seed, rounds=1, figures=False)
        out = fedlit_cli("compare runs/default").succeeded()
        assert "FedAvg" in out

    def test_a_run_that_was_made_in_python_is_refused_in_words_by_other_commands(self, fedlit_cli):
        fit(ToyNet(classes=("Edema", "Mass")), name="one", rounds=1, figures=False)
        code, _, err = fedlit_cli("test --config runs/default/one/config.yaml --ckpt_path runs/default/one")
        assert code == 1, err
        assert "client 'north'" in err
        assert "data sets that were given to fedlit.fit" in " ".join(err.split())


class TestOneAfterTheOther:
    @pytest.fixture(scope="class")
    def begun(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        """The directory of a run after its first round, which no test of refusals changes."""
        return str(fit(rounds=1, figures=False, run_dir=tmp_path_factory.mktemp("begun")).directory)

    def test_the_same_call_gives_the_same_numbers_in_a_run_of_its_own_and_leaves_generators_and_threads(self):
        model = net()
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        threads = torch.get_num_threads()
        states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        torch.set_num_threads(2)
        runs = [fit(model, two(), name="mine", rounds=1) for _ in range(2)]
        assert [run.directory.name for run in runs] == ["mine", "mine-2"]
        assert torch.equal(*(run.model.head.weight for run in runs))
        assert torch.get_num_threads() == 2
        torch.set_num_threads(threads)
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.random.get_state()[1].tolist() == states[1]
        assert random.getstate() == states[2]

    def test_a_run_goes_on(self):
        whole = fit(rounds=2, name="whole", figures=False)
        fit(rounds=1, name="part", figures=False)
        resumed = fit(rounds=2, ckpt_path="runs/default/part")
        assert resumed.directory.name == "part"
        assert list(resumed.metrics.index) == [1, 2]
        assert_same_tensors(Kept(whole.directory).tensors(), Kept(resumed.directory).tensors())

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"batch_size": 5}, "data.init_args.batch_size: 4 there, 5 now"),
            ({"schedule": ConstantSchedule(3, "steps")}, "federation.schedule.init_args.window: 2 there"),
            ({"aggregators": [Scaffold()]}, "federation.aggregators"),
        ],
        ids=["batch", "window", "algorithm"],
    )
    def test_a_run_goes_on_as_it_began(self, changed, said, begun):
        with refused(CheckpointError, said):
            fit(rounds=3, ckpt_path=begun, **changed)

    @pytest.mark.parametrize("what", ["rate", "labels", "pixels"])
    def test_a_run_goes_on_with_the_rate_and_the_data_that_it_began_with(self, what, begun, monkeypatch):
        model, clients = net(), two()
        if what == "rate":
            monkeypatch.setattr(Net, "configure_optimizers", lambda self: torch.optim.SGD(self.parameters(), lr=0.2))
        else:
            images, labels = clients["south"][0].tensors
            (labels if what == "labels" else images)[0] = 0 if what == "pixels" else 1 - labels[0]
        with refused(CheckpointError, *["(lr 0.1", "found SGD (lr 0.2"] if what == "rate" else ["the data"]):
            fit(model, clients, rounds=2, ckpt_path=begun)

    def test_a_rate_of_zero_is_another_rate_too(self, monkeypatch):
        with monkeypatch.context() as still:
            still.setattr(Net, "configure_optimizers", lambda self: torch.optim.SGD(self.parameters(), lr=0.0))
            fit(rounds=1, name="part", figures=False)
        with refused(CheckpointError, "(lr 0.0", "found SGD (lr 0.1"):
            fit(rounds=2, ckpt_path="last")

    def test_data_that_are_augmented_go_on(self):
        class Noisy(TensorDataset):
            def __getitem__(self, index):
                image, labels = super().__getitem__(index)
                return image + 0.1 * torch.randn(image.shape), labels

        clients = {"north": Noisy(*part(12, 1).tensors)}
        fit(net(), clients, rounds=1, name="part", figures=False)
        assert list(fit(net(), clients, rounds=2, ckpt_path="last").metrics.index) == [1, 2]

    def test_the_federations_own_test_set_keeps_its_name(self):
        with refused(ConfigError, "test_sets", "'federation'"):
            fit(test_sets={"federation": part()})

    def test_ctrl_c_leaves_a_run_that_can_go_on(self, capsys: pytest.CaptureFixture):
        class Stop(Callback):
            def on_round_end(self, state):
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            fit(callbacks=[Stop()], name="stopped")
        assert "stopped by Ctrl-C after round 1; to continue: ckpt_path='runs/default/stopped'" in (
            capsys.readouterr().out
        )
        resumed = fit(ckpt_path="last", callbacks=None)
        assert_same_run(Kept(fit(name="whole").directory), Kept(resumed.directory))

    def test_a_terminal_that_is_closed_loses_no_round(self, monkeypatch: pytest.MonkeyPatch):
        """It sends SIGHUP, often twice, and can be written to no more."""
        terminal, ours = os.openpty()
        with os.fdopen(ours, "w", buffering=1) as stream:
            for name in ("stdout", "__stdout__"):
                monkeypatch.setattr(sys, name, stream)

            class HangUp(Callback):
                def on_round_start(self, state):
                    if state.done == 1:
                        os.close(terminal)
                        for _ in range(2):
                            signal.raise_signal(signal.SIGHUP)

            with pytest.raises(SystemExit) as raised:
                fit(callbacks=[HangUp()], name="stopped", checkpoint_every=1000)
        assert raised.value.code == 128 + signal.SIGHUP
        assert Kept(Path("runs/default/stopped")).rounds[-1] == 1

    def test_a_signal_handler_of_the_script_loses_no_round(self, capsys: pytest.CaptureFixture):
        def leave(*_):
            raise SystemExit("mine")

        class Signal(Callback):
            def on_round_start(self, state):
                if state.done == 1:
                    signal.raise_signal(signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, leave)
        try:
            with pytest.raises(SystemExit, match="mine"):
                fit(callbacks=[Signal()], name="stopped", checkpoint_every=1000)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert Kept(Path("runs/default/stopped")).rounds[-1] == 1

    @pytest.mark.slow
    def test_an_error_leaves_no_process(self):
        class Failing(Callback):
            def on_round_end(self, state):
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            fit(callbacks=[Failing()], workers=2)
        assert multiprocessing.active_children() == []


def test_a_composition_is_described_by_its_parts():
    told = json.dumps(described(CODASCA(gamma=0.5))["init_args"])
    assert '"gamma": 0.5' in told
    assert "Scaffold" in told


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_leaves_no_copy_of_the_model_in_memory(workers: int):
    model = net()
    gc.collect()
    gc.disable()  # in a notebook it may be long until it comes round
    try:
        fitted = fit(model, two(), rounds=1, workers=workers)
        fitted.predict(part())
        del fitted
        left = [found for found in gc.get_objects() if isinstance(found, Net)]
    finally:
        gc.enable()
    assert left == [model]


def test_each_setting_is_spelled_once_and_shown_to_who_asks_for_help():
    shown = inspect.signature(fedlit.fit).parameters
    settings = {s.name: s for s in fields(Settings) if s.name not in ("clients", "quorum", "deadline", "on_site_error")}
    assert settings.keys() < shown.keys()
    assert [n for n, s in settings.items() if (shown[n].default, shown[n].annotation) != (s.default, s.type)] == []
    assert list(shown)[:3] == ["model", "clients", "aggregators"]
    told = inspect.getdoc(fedlit.fit)
    assert [name for name in shown if f"\n    {name}: " not in told] == []
    assert "see :class:`fedlit" not in told


def test_what_is_public_is_listed_and_there():
    assert {"fit", "aggregators", "data", "errors", "testing"} <= set(dir(fedlit))
    assert [name for name in dir(fedlit) if not hasattr(fedlit, name)] == []
    assert "sys" not in dir(fedlit)
