"""A lead's configuration at the server: its objects are built from classes in the server's own table."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from lightning.pytorch import LightningModule

from fedlit.core.errors import ConfigError
from fedlit.core.fabric import PRECISIONS, launch, make_fabric
from fedlit.core.randomness import seed_process
from fedlit.core.system import documents
from fedlit.core.system.environment import resolve
from fedlit.core.system.typed import Mistyped, Table, built, made
from fedlit.data.federated import FederatedDataModule
from fedlit.experiment.experiment import Experiment, ready
from fedlit.experiment.naming import OF_RUNS, check_name
from fedlit.experiment.phases import Phase
from fedlit.federation.callbacks import Callback
from fedlit.federation.federation import Federation
from fedlit.sites.plan import check_size, lacking, line_to_add, table_of, with_classes
from fedlit.tracking.addresses import absolute, store_address
from fedlit.tracking.base import Tracker
from fedlit.tracking.mlflow import MLflowTracker

RESERVED = ("mlflow.", "fedlit.")
"""Beginnings of the names of tags that the server writes; a sweep names its method."""


@dataclass
class ServerSettings:
    """Settings of a server, from its own file, which no job changes."""

    # Folder from which relative paths start, and which has `mlflow.db`. By default the working directory.
    home: str = "."
    run_dir: str = "runs"  # Folder of all runs.
    logger: bool = True  # Whether runs are logged to MLflow.
    tracking_uri: str | None = None  # MLflow's store. By default that of the environment, or `mlflow.db` in `home`.
    # Files from which a model may start, by the names that leads use.
    weights: dict[str, str] = field(default_factory=dict)
    # Paths of classes that a configuration may name, in addition to those of fedlit and `torch.optim`.
    allow: list[str] = field(default_factory=list)
    accelerator: str = "auto"  # Device of the server.
    parameters: int = 1_000_000_000  # Largest number of weights of a model.
    models: bool = True  # Whether sites get the best model when a run ends.

    @classmethod
    def read(cls, file: Path | None) -> "ServerSettings":
        """Read the server's file, if there is one.

        Raises:
            ConfigError: If a value is not valid; names the key.
        """
        values = (documents.load(file) if file is not None and file.exists() else None) or {}
        try:
            values = resolve(values)
            settings = made(cls, values, "")
        except (Mistyped, ConfigError) as error:
            raise ConfigError(f"{file} at the server: {error}") from error
        if not Path(settings.home).is_dir():
            raise ConfigError(f"{file} at the server: home: expected an existing folder, found {settings.home!r}")
        return settings

    def tracker(self) -> Tracker:
        """Return the tracker of metrics."""
        if not self.logger:
            return Tracker()
        return MLflowTracker(absolute(store_address(self.tracking_uri)))


@dataclass(frozen=True)
class Described:
    """Description of a lead's data, which the server does not read."""

    classes: list[str]  # Their classes, in order.
    # batch_size, eval_batch_size: Examples in a batch.
    batch_size: int
    eval_batch_size: int


@dataclass(frozen=True)
class Submitted:
    """A lead's whole configuration. Its data, folders and loggers are only recorded: they are not built."""

    data: Described  # Description of the lead's data.
    settings: dict[str, Any]  # The resolved configuration.


@dataclass(frozen=True)
class Wanted:
    """Keys of a configuration that a server uses."""

    seed: int
    experiment: str
    name: str | None
    tags: dict[str, str]
    ckpt_path: Literal["last", "best"] | None
    fast_dev_run: bool
    model: dict[str, Any]
    federation: dict[str, Any]
    phases: list[dict[str, Any]] | None
    phase: str | None
    callbacks: list[dict[str, Any]] | None
    precision: str


def to_json(experiment: Experiment, weights: str | None = None) -> str:
    """Return a lead's configuration as JSON, with the name of the server's weights from which the model starts.

    Raises:
        ConfigError: If it holds a value that JSON does not have, such as infinity.
    """
    data, settings = experiment.data, json.loads(json.dumps(experiment.settings, default=str))
    if weights is not None:
        settings["model"]["init_args"]["weights"] = weights
    described = {"classes": list(data.classes), "batch_size": data.batch_size, "eval_batch_size": data.eval_batch_size}
    try:
        return json.dumps({"data": described, "settings": settings}, indent=1, allow_nan=False)
    except ValueError as error:
        raise ConfigError(
            f"--sites: the configuration holds NaN or infinity, which cannot be sent ({error}); use a finite number"
        ) from error


@contextmanager
def experiment_of(text: str, own: ServerSettings, name: str) -> Iterator[Experiment]:
    """Context manager that builds the experiment of a lead's configuration from the result of :func:`to_json`.

    Raises:
        ConfigError: If the server does not allow a class or a file, or a value is not valid; names the key.
    """
    table = table_of(own.allow)
    try:
        try:
            content = documents.parse_json(text)
        except ValueError as error:
            raise Mistyped(f"expected JSON that fedlit has written: {error}") from error
        submitted = made(Submitted, content, "")
        settings = {**submitted.settings, "run_dir": own.run_dir, "logger": own.logger}
        wanted = _wanted(settings)
        if odd := lacking([wanted.model, wanted.federation, wanted.phases, wanted.callbacks], table):
            raise Mistyped(
                f"the server does not allow {', '.join(odd)}; its administrator may add "
                f"{line_to_add([*own.allow, *odd])} to its file"
            )
        with ready(_made(submitted, settings, wanted, own, table, name)) as experiment:
            yield experiment
    except (Mistyped, RecursionError) as error:
        raise ConfigError(f"the configuration at the server: {str(error) or 'nested too deeply'}") from error


def _wanted(settings: Mapping[str, Any]) -> Wanted:
    keys = [each.name for each in fields(Wanted) if each.name != "precision"]
    if missing := [key for key in keys if key not in settings]:
        raise Mistyped(f"{missing[0]} is missing")
    precision = built(dict[str, Any], settings.get("fabric", {}), "fabric").get("precision", "32-true")
    wanted = made(Wanted, {key: settings[key] for key in keys} | {"precision": precision}, "")
    check_name("experiment", wanted.experiment, OF_RUNS)
    if reserved := [tag for tag in wanted.tags if tag != "fedlit.method" and tag.startswith(RESERVED)]:
        raise Mistyped(f"tags: expected names that do not begin with {' or '.join(RESERVED)}, found {reserved[0]!r}")
    if wanted.precision not in PRECISIONS:
        raise Mistyped(f"fabric.precision: expected one of {', '.join(PRECISIONS)}, found {wanted.precision!r}")
    return wanted


def _made(
    submitted: Submitted, settings: dict[str, Any], wanted: Wanted, own: ServerSettings, table: Table, name: str
) -> Experiment:
    described = submitted.data
    data = FederatedDataModule(None, batch_size=described.batch_size, eval_batch_size=described.eval_batch_size)
    data.classes = described.classes
    model = with_classes(_with_weights(wanted.model, own), submitted.data.classes, table)
    check_size(model, table, own.parameters)
    fabric = make_fabric(own.accelerator, precision=wanted.precision)
    launch(fabric)
    seed_process(wanted.seed, "initial weights")
    check_name("name", wanted.name or name, OF_RUNS)
    return Experiment(
        config=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
        settings=settings,
        seed=wanted.seed,
        experiment=wanted.experiment,
        name=wanted.name or (None if wanted.ckpt_path else name),  # without a name, last and best search all runs
        run_dir=Path(own.run_dir),
        ckpt_path=wanted.ckpt_path,
        fast_dev_run=wanted.fast_dev_run,
        fabric=fabric,
        data=data,
        model=built(LightningModule, model, "model", table),
        federation=made(Federation, wanted.federation, "federation", table),
        tracker=own.tracker(),
        tags=wanted.tags,
        phases=built(list[Phase], wanted.phases or [], "phases", table),
        callbacks=built(list[Callback], wanted.callbacks or [], "callbacks", table),
        phase=wanted.phase,
    )


def _with_weights(model: Mapping[str, Any], own: ServerSettings) -> dict[str, Any]:
    """Return a model's configuration with the file of the server's weights in place of their name."""
    options = dict(model.get("init_args") or {})
    asked = options.get("weights")
    if asked is not None and asked not in own.weights:
        known = ", ".join(own.weights) or "none"
        raise Mistyped(
            f"model.weights: expected a name that the server's file lists ({known}), found {str(asked)[:60]!r}"
        )
    options |= {} if asked is None else {"weights": Path(own.weights[asked])}
    return {**model, "init_args": options}
