"""``fedlit.fit``: a federation in a script or a notebook."""

import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from difflib import get_close_matches
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningModule
from rich.console import Console
from typing_extensions import Unpack

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import launch, make_fabric
from fedlit.core.module import copy_of
from fedlit.core.parts import Parts
from fedlit.core.randomness import seed_process
from fedlit.core.system import documents
from fedlit.core.system.argument_types import check_arguments
from fedlit.core.system.output import lasting_output
from fedlit.data.clients import parts_of
from fedlit.data.federated import FederatedDataModule
from fedlit.data.in_memory import GivenClients
from fedlit.experiment.experiment import Experiment, ready
from fedlit.experiment.given_objects import described, fingerprints, plain
from fedlit.experiment.mistakes import named_errors
from fedlit.experiment.naming import check_names
from fedlit.experiment.phases import Phase
from fedlit.experiment.result import Fitted
from fedlit.experiment.run import fit as fit_experiment
from fedlit.federation.callbacks import Callback
from fedlit.federation.examinations import OF_MODULES, examine
from fedlit.federation.federation import Federation
from fedlit.federation.settings import Options, RoundSettings, Settings
from fedlit.tracking.addresses import masked
from fedlit.tracking.loggers import LoggerSetting
from fedlit.tracking.names import DEFAULT_EXPERIMENT, better

Function = TypeVar("Function", bound=Callable[..., Any])


def _spelled_out(function: Function) -> Function:
    """Add the settings to the signature of a function, and their descriptions to its docstring."""
    declared, options = signature(function), [o for o in fields(Settings) if o.name in Options.__annotations__]
    model, clients, *others, _ = declared.parameters.values()
    shown = [Parameter(o.name, Parameter.KEYWORD_ONLY, default=o.default, annotation=o.type) for o in options]
    vars(function)["__signature__"] = declared.replace(parameters=[model, clients, *shown, *others])
    function.__annotations__ = {**{o.name: o.type for o in options}, **function.__annotations__}
    # Since Python 3.13, __doc__ has lost the indentation that earlier versions keep.
    docs = [
        (getdoc(cls) or "").partition("Args:")[2].partition("\n\n")[0].rstrip() for cls in (RoundSettings, Settings)
    ]
    texts = [text for each in docs for text in re.split(r"\n {4}(?=\w+: )", each)]
    described = "".join(f"\n    {text}" for text in texts if text.partition(":")[0] in Options.__annotations__)
    line = "\n    settings: Settings of the federation, see :class:`fedlit.federation.settings.Settings`."
    function.__doc__ = (getdoc(function) or "").replace(line, described)
    return function


@_spelled_out
def fit(
    model: LightningModule,
    clients: Mapping[str, Any] | FederatedDataModule,
    *,
    test_sets: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    eval_batch_size: int | None = None,
    seed: int = 0,
    experiment: str = DEFAULT_EXPERIMENT,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    run_dir: str | Path = "runs",
    ckpt_path: str | Path | None = None,
    fast_dev_run: bool = False,
    figures: bool = True,
    logger: LoggerSetting = False,
    phases: Sequence[Phase] | None = None,
    callbacks: Sequence[Callback] | None = None,
    accelerator: str = "auto",
    devices: int | list[int] = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
    **settings: Unpack[Options],
) -> Fitted:
    """Train one model over the data of several clients, test it, and return the results.

    This is `fedlit fit` with objects for the model and the data; the arguments have the names of its keys. The results
    are also in ``run_dir/experiment/name``. Neither ``model`` nor the generators of Python, NumPy and torch are
    changed. Worker processes do not import the script, so it needs no ``if __name__ == "__main__"``. All threads of a
    process share these generators: a second call waits until the first one, in another thread, has ended, and other
    threads must not draw meanwhile.

    Args:
        model: Any LightningModule, with the weights from which the federation starts. If it has an attribute
            ``classes``, the names of C classes, and its ``validation_step`` returns scores [B, C], fedlit computes the
            AUROC of each class.
        clients: The data of each client by its name: a map-style data set to train on, or a tuple of data sets for
            training, validation and test. Or a data module of fedlit, such as ``PhantomCXR``.
        settings: Settings of the federation, see :class:`fedlit.federation.settings.Settings`.
        test_sets: Test sets of the server, by name.
        batch_size: Number of examples in a training batch of one client. By default 32, or that of a data module.
        eval_batch_size: Number of examples in an evaluation batch. By default 128, or that of a data module.
        seed: Seed of all randomness from here on. The caller initialises the model: call ``torch.manual_seed`` before.
        experiment: Name of a group of runs, on disk and in MLflow.
        name: Name of the run. By default its method, its seed and the date and time.
        tags: Tags of the run in MLflow.
        run_dir: Folder of all runs.
        ckpt_path: Checkpoint to continue: ``last``, ``best``, a run directory or a file. By default the run is new.
        fast_dev_run: Whether to try one round of one step, without keeping any results.
        figures: Whether to draw the partition and the ROC curves.
        logger: Logger besides the run directory: True for MLflow, False for none, a tracker, a logger of
            ``lightning.pytorch.loggers``, or a list of several.
        phases: Phases before the main part, in order: each is a run of its own in ``phases/NAME`` of the run's
            directory, from whose best model the next one starts.
        callbacks: Your own callbacks, which follow the rounds.
        accelerator: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``mps``.
        devices: Number of processes on this machine, one device each, or a list of device indices.
        num_nodes: Number of machines.
        precision: Precision of the arithmetic: ``32-true``, ``64-true`` or ``bf16-mixed``.

    Returns:
        The trained model, the metrics of the rounds, the run's directory, and predictions.

    Raises:
        ConfigError: The arguments contradict each other; nothing has been trained.
        ValueError: A custom class raised it; the message begins with the class, the method, the file and the line.
        CheckpointError: The checkpoint to continue is missing, or belongs to another run.
        TrainingError: A loss or an update is not finite, no client's weights change, or a process died.
        KeyboardInterrupt: Ctrl-C; the last completed round is checkpointed, and ``ckpt_path`` continues from there.
        SystemExit: SIGTERM, SIGHUP, SIGUSR1 or SIGUSR2, as with Ctrl-C, unless the script handles the signal itself.
    """
    arguments = {name: value for name, value in locals().items() if name != "settings"}
    if unknown := settings.keys() - Options.__annotations__:
        near = get_close_matches(min(unknown), signature(fit).parameters, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"fit() got an unexpected keyword argument {min(unknown)!r}{meant}")
    check_arguments(fit, arguments | settings)
    check_names(Namespace(experiment=experiment, name=name))
    with lasting_output(), _one_at_a_time(), named_errors(), _unchanged_generators(), ExitStack() as open_things:
        examine(model, OF_MODULES)
        data = _data(clients, model, test_sets, batch_size, eval_batch_size)
        federation = Federation(**settings)  # type: ignore[arg-type]  # its constructor checks them
        fabric = make_fabric(accelerator, devices, num_nodes, precision)
        launch(fabric)
        # A copy, because the caller may change the model, for example in a callback, before a later phase starts.
        start = copy_of(model) if phases or fabric.world_size > 1 else model
        if fabric.world_size > 1:  # ranks may have drawn other weights
            start.load_state_dict(fabric.broadcast(model.state_dict()))
        section = described(model)  # the classes are those of the data
        options = {
            "seed": seed,
            "experiment": experiment,
            "name": name,
            "tags": {key: str(value) for key, value in (tags or {}).items()},
            "run_dir": str(Path(run_dir).expanduser()),
            "ckpt_path": ckpt_path if ckpt_path is None else str(ckpt_path),
            "fast_dev_run": fast_dev_run,
            "figures": figures,
            "logger": logger,
            "phases": list(phases or []),
            "phase": None,
            "callbacks": callbacks if callbacks is None else list(callbacks),
            "fabric": {
                "accelerator": accelerator, "devices": devices, "num_nodes": num_nodes, "precision": precision
            },
            "model": section | {"init_args": {k: v for k, v in section["init_args"].items() if k != "classes"}},
            "federation": _settled(federation),
        }  # fmt: skip
        written = {"data": _of_data(data), "phases": [described(phase)["init_args"] for phase in phases or []]}
        config = documents.dump(masked(plain(options) | written))
        seed_process(seed, "initial weights")
        prints = fingerprints(start, data, fabric)
        objects = {"fabric": fabric, "data": data, "model": start, "federation": federation, "fingerprints": prints}
        return _fitted(open_things.enter_context(ready(Experiment.of(config, options, **objects))))


def _fitted(experiment: Experiment) -> Fitted:
    outcome, console = fit_experiment(experiment), experiment.console
    if outcome.signum:
        console.print(f"{outcome.stopped}; to continue: ckpt_path='{outcome.directory}'")
        raise KeyboardInterrupt if outcome.signum == signal.SIGINT else SystemExit(128 + outcome.signum)
    if not experiment.fast_dev_run:
        console.print(f"run directory: {outcome.directory}")
    if experiment.fabric.is_global_zero and experiment.tracker.summary():
        console.print(experiment.tracker.summary())
    return Fitted.of(outcome, copy_of(experiment.model))


def _data(
    clients: Any, model: LightningModule, test_sets: Any, batch_size: int | None, eval_batch_size: int | None
) -> FederatedDataModule:
    """Return the data of the clients as a data module."""
    options = {"test_sets": test_sets, "batch_size": batch_size, "eval_batch_size": eval_batch_size}
    options = {key: value for key, value in options.items() if value is not None}
    if not isinstance(clients, FederatedDataModule):
        return GivenClients(clients, Parts.of(model).classes, **options)
    if options:
        name = type(clients).__name__
        raise ConfigError(f"{next(iter(options))}: {name} has its own; pass it to {name}(...), or leave it out")
    return clients


def _of_data(data: FederatedDataModule) -> dict[str, Any]:
    """Return the data as in a YAML; of data sets that are objects, the sizes."""
    section = described(data)
    if not isinstance(data, GivenClients):
        return section
    clients = {name: {split: len(part) for split, part in parts_of(client)} for name, client in data.clients.items()}
    tests = {name: len(part) for name, part in data.test_sets.items()}
    return section | {"init_args": section["init_args"] | {"clients": clients, "test_sets": tests}}


def _settled(federation: Federation) -> dict[str, Any]:
    """Return the settings, with ``monitor_mode`` resolved: a default and the same value give the same run."""
    settings = {setting.name: getattr(federation, setting.name) for setting in fields(Settings)}
    if settings["monitor_mode"] == "auto":
        settings["monitor_mode"] = better(federation.monitor) or "auto"
    return settings


_turn = threading.RLock()  # a callback may call fedlit.fit, and gets its generators back


def _renew_turn() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):  # a copy of this process lacks the thread that would give its turn back
    os.register_at_fork(after_in_child=_renew_turn)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Context manager that threads enter one after another, because they draw from the same generators."""
    turn = _turn
    if not turn.acquire(blocking=False):
        Console(highlight=False, soft_wrap=True).print(
            "fedlit.fit waits until the fedlit.fit of another thread has ended, because both draw from the generators "
            "of this process; to train at the same time, use processes"
        )
        turn.acquire()
    try:
        yield
    finally:
        turn.release()


@contextmanager
def _unchanged_generators() -> Iterator[None]:
    """Context manager that restores the generators and the number of threads at the end."""
    threads, of_python, of_numpy = torch.get_num_threads(), random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
