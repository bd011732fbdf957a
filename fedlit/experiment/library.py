"""``fedlit.fit``: a federation from a script or a notebook."""

import random
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch import LightningModule

from fedlit.core.aggregator import Aggregator
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import launch, make_fabric
from fedlit.core.kinds import check_kinds
from fedlit.core.module import check_module, copy_of
from fedlit.core.parts import Parts
from fedlit.core.randomness import seed_process
from fedlit.core.system import documents
from fedlit.data.federated import FederatedDataModule, parts_of
from fedlit.data.given import GivenClients
from fedlit.experiment.described import described, plain
from fedlit.experiment.experiment import Experiment, ready
from fedlit.experiment.fitted import Fitted
from fedlit.experiment.fitting import fit as fit_experiment
from fedlit.experiment.naming import check_names
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.federation import Federation
from fedlit.federation.settings import Settings
from fedlit.metrics.direction import better
from fedlit.schedules import Schedule
from fedlit.tracking.addresses import MARK, marked, without_credentials
from fedlit.tracking.loggers import Chosen, tracker_of


def fit(
    model: LightningModule,
    clients: Mapping[str, Any] | FederatedDataModule,
    *,
    aggregators: Sequence[Aggregator] | None = None,
    rounds: int | None = None,
    schedule: Schedule | None = None,
    participation: float = 1.0,
    weights: Literal["examples", "uniform"] | None = None,
    optimizer_state: Literal["reset", "keep"] = "reset",
    lr_factors: Mapping[str, float] | None = None,
    gradient_clip: float | None = None,
    gradient_clamp: float | None = None,
    measure_batches: int = 32,
    workers: int | Literal["auto"] = "auto",
    threads: int = 1,
    memory_format: Literal["contiguous", "channels_last"] | None = None,
    cuda_graph: bool | Literal["auto"] = "auto",
    compile: bool | None = None,
    eval_every: int = 1,
    test_curves: bool | None = None,
    monitor: str = "auto",
    monitor_mode: Literal["auto", "max", "min"] = "auto",
    patience: int | None = None,
    patience_margin: float | None = None,
    checkpoint_every: int | str = "auto",
    state_memory: int | str = "auto",
    test_sets: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    eval_batch_size: int | None = None,
    seed: int = 0,
    experiment: str = "default",
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    run_dir: str | Path = "runs",
    ckpt_path: str | Path | None = None,
    fast_dev_run: bool = False,
    logger: Chosen = False,
    phases: Sequence[Phase] | None = None,
    callbacks: Sequence[Callback] | None = None,
    accelerator: str = "auto",
    devices: int | list[int] = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
) -> Fitted:
    """Train one model over the data of several clients, test it, and give what came of it.

    It is `fedlit fit` without a YAML, and the arguments have the names of its keys. The model and the data are given as
    objects. Everything that the run leaves is in ``run_dir/experiment/name``. The model that is given stays as it is, and
    so do Python's, NumPy's and torch's generators. Worker processes do not import the script, so that it needs no
    ``if __name__ == "__main__"``.

    Args:
        model: Any LightningModule, with the weights from which the federation starts. Where it has an attribute
            ``classes``, names of classes, and its ``validation_step`` returns scores [B, C], there is AUROC per class.
        clients: The data of each client by its name: a map-style data set to train on, or a tuple of data sets for
            training, validation and test. Or a data module of fedlit, such as ``PhantomCXR``.
        aggregators: The algorithms, composed as a list. By default federated averaging.
        rounds: Number of rounds. By default as many as the schedule describes, and 10 where it has no end.
        schedule: What each round does: its window, unit and learning rate. By default one epoch a round.
        participation: Share of the clients that train in a round, in (0, 1].
        weights: Weights of the clients in every mean, ``examples`` or ``uniform``. By default what the aggregators state,
            and ``examples`` where they state nothing.
        optimizer_state: What happens to a client's optimizer state between its rounds: ``reset`` or ``keep``.
        lr_factors: Factors of the learning rates of single clients by name; those that are left out have 1.
        gradient_clip: Largest norm of a local gradient. By default gradients are not clipped.
        gradient_clamp: Largest absolute value of each element of a local gradient. By default they are not clamped.
        measure_batches: Number of batches of each client that a measuring round looks at.
        workers: Number of processes that train clients side by side. By default the cores of a CPU, and 1 on an
            accelerator.
        threads: Number of threads of each worker. Another number gives other bits.
        memory_format: Order in which convolutions find images in memory: ``contiguous``, or ``channels_last``, which gives
            other bits. By default ``channels_last`` for ImageClassifier where that is faster.
        cuda_graph: Whether local steps are recorded once, as a CUDA graph, and replayed for every client: ``true``, or
            ``false``. By default (``auto``) they are not.
        compile: Whether torch.compile compiles the model's forward pass, which gives other bits.
        eval_every: Number of rounds between evaluations.
        test_curves: Whether each evaluation scores the test sets too, for the record alone.
        monitor: Metric that says which model is best. By default AUROC on the validation sets, or else their loss.
        monitor_mode: Whether more of the metric is better (``max``) or less (``min``).
        patience: Number of rounds without a better model after which the run stops. By default it never stops early.
        patience_margin: How much worse than the best a round has to be to count for patience. By default every one counts
            that is not better.
        checkpoint_every: Rounds between checkpoints, seconds such as ``60s``, or ``auto``.
        state_memory: Memory for what the clients keep between rounds, such as ``4GB``; more lives in files of the run's
            directory. By default a quarter of the memory that is free.
        test_sets: Test sets that no client has, by name.
        batch_size: Number of examples in a training batch of one client. By default 32; a data module has its own.
        eval_batch_size: Number of examples in a batch of evaluation. By default 128; a data module has its own.
        seed: Seed of everything that is drawn from here on. The weights of the model are drawn before: call
            ``torch.manual_seed`` before you make it.
        experiment: Groups runs, on disk and in MLflow.
        name: Name of the run. By default its method, its seed and the date and time.
        tags: Tags of the run in MLflow.
        run_dir: Folder of all runs.
        ckpt_path: What to continue: ``last``, ``best``, a run directory or a checkpoint. By default a run is new.
        fast_dev_run: Try one round of one step. Nothing is kept.
        logger: Where metrics go beside the run directory: False is nowhere, True is MLflow; or a tracker, a logger of
            ``lightning.pytorch.loggers``, or a list of several.
        phases: Phases that run before the main part, in their order.
        callbacks: Callbacks that follow the rounds.
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: Processes on this machine, one device each (or a list of device indices).
        num_nodes: Number of machines.
        precision: Precision of the arithmetic: ``32-true``, ``64-true`` or ``bf16-mixed``.

    Returns:
        The trained model, the metrics of the rounds, the run's directory, and predictions.

    Raises:
        ConfigError: The arguments do not fit together; nothing has been trained.
        CheckpointError: The checkpoint to continue is missing, or of something else.
        TrainingError: A loss or an update is not finite, no client's weights move, or a process died.
        KeyboardInterrupt: Ctrl-C; the last completed round is checkpointed, and ``ckpt_path`` goes on from there.
    """
    check_kinds(fit, locals())
    settings = {key: value for key, value in locals().items() if key in SETTINGS}
    check_names(Namespace(experiment=experiment, name=name))
    check_module(model)
    data = _data(clients, model, test_sets, batch_size, eval_batch_size)
    with _generators_left_alone(), ExitStack() as held:
        federation = Federation(**settings)
        fabric = make_fabric(accelerator, devices, num_nodes, precision)
        launch(fabric)
        # The given one is somebody's, who may change it, as in a callback, before a later phase begins.
        start = copy_of(model) if phases or fabric.world_size > 1 else model
        if fabric.world_size > 1:  # ranks may have drawn other weights
            start.load_state_dict(fabric.broadcast(model.state_dict()))
        whole = {
            "seed": seed,
            "experiment": experiment,
            "name": name,
            "tags": {key: without_credentials(str(value), MARK) for key, value in (tags or {}).items()},
            "run_dir": str(Path(run_dir).expanduser()),
            "ckpt_path": ckpt_path if ckpt_path is None else str(ckpt_path),
            "fast_dev_run": fast_dev_run,
            "logger": logger,
            "phases": list(phases or []),
            "callbacks": callbacks if callbacks is None else list(callbacks),
            "fabric": {
                "accelerator": accelerator, "devices": devices, "num_nodes": num_nodes, "precision": precision
            },
            "model": _of_model(model),
            "federation": _settled(federation),
        }  # fmt: skip
        config = marked(yaml.safe_dump(plain(whole) | {"data": _of_data(data)}, sort_keys=False))
        seed_process(seed, "initial weights")
        made = Experiment(
            config,
            documents.parse(config),
            seed,
            experiment,
            name,
            Path(run_dir).expanduser(),
            whole["ckpt_path"],
            fast_dev_run,
            fabric,
            data,
            start,
            federation,
            tracker_of(logger),
            whole["tags"],
            whole["phases"],
            list(callbacks or []),
        )
        return _fitted(held.enter_context(ready(made)))


OF_SITES = ("quorum", "deadline", "on_site_error")
"""Settings of clients that are not in this process, as they are here."""

SETTINGS = tuple(setting.name for setting in fields(Settings) if setting.name not in ("clients", *OF_SITES))
"""Arguments that are settings of the federation; ``clients`` are data here, and all of them take part."""


def _fitted(experiment: Experiment) -> Fitted:
    console = experiment.console()
    outcome = fit_experiment(experiment, console.print)
    if outcome.signum:
        console.print(f"stopped by a signal; to continue: ckpt_path='{outcome.directory}'")
        raise KeyboardInterrupt if outcome.signum == signal.SIGINT else SystemExit(128 + outcome.signum)
    if not experiment.fast_dev_run:
        console.print(f"run directory: {outcome.directory}")
    if experiment.fabric.is_global_zero and experiment.tracker.summary():
        console.print(experiment.tracker.summary())
    return Fitted.of(outcome, copy_of(experiment.model))


def _data(
    clients: Any, model: LightningModule, test_sets: Any, batch_size: int | None, eval_batch_size: int | None
) -> FederatedDataModule:
    """The data of the clients as a data module; a data module has its own arguments."""
    options = {"test_sets": test_sets, "batch_size": batch_size, "eval_batch_size": eval_batch_size}
    chosen = {key: value for key, value in options.items() if value is not None}
    if not isinstance(clients, FederatedDataModule):
        return GivenClients(clients, Parts.of(model).classes, **chosen)
    if chosen:
        name = type(clients).__name__
        raise ConfigError(f"{next(iter(chosen))}: {name} has its own; give it to {name}(...), or leave it out")
    return clients


def _of_model(model: LightningModule) -> dict[str, Any]:
    """The model in the words of a YAML, which has no classes there: they are those of the data."""
    told = described(model)
    return told | {"init_args": {key: value for key, value in told["init_args"].items() if key != "classes"}}


def _of_data(data: FederatedDataModule) -> dict[str, Any]:
    """The data in the words of a YAML; of data sets that were given, their sizes."""
    if not isinstance(data, GivenClients):
        return described(data)
    told = described(data)
    clients = {name: {split: len(part) for split, part in parts_of(client)} for name, client in data.clients.items()}
    tests = {name: len(part) for name, part in data.test_sets.items()}
    return told | {"init_args": told["init_args"] | {"clients": clients, "test_sets": tests}}


def _settled(federation: Federation) -> dict[str, Any]:
    """The settings, with the monitor's mode as its value: a run is the same whether chosen or by default."""
    told = {setting.name: getattr(federation, setting.name) for setting in fields(Settings)}
    if told["monitor_mode"] == "auto":
        told["monitor_mode"] = better(federation.monitor) or "auto"
    return told


@contextmanager
def _generators_left_alone() -> Iterator[None]:
    """Within, generators and the number of threads may change; afterwards they are the caller's again."""
    threads, of_python, of_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
