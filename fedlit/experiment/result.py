"""The result of ``fedlit.fit``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fedlit.core.checkpoints import checkpoint
from fedlit.core.checkpoints.checkpoint import Contents
from fedlit.core.errors import ConfigError, TrainingError
from fedlit.core.examples import IMAGE, fetch, part_of
from fedlit.core.module import copy_of, overrides, step_of
from fedlit.data.in_memory import data_set
from fedlit.experiment.run import Outcome
from fedlit.federation.session import Session
from fedlit.predictions.export import kept_parts
from fedlit.tracking.base import MetricsFile

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Fitted:
    """A finished run: the trained model, the metrics, the run's directory, and predictions.

    Attributes:
        directory: The run's directory, with checkpoints, predictions of the test sets and ``metrics.csv``.
        test: The test metrics by name, such as ``test/federation/auroc_macro``.
        best_round: Number of completed rounds of the best model.
    """

    directory: Path
    test: dict[str, float] = field(repr=False)
    best_round: int
    _session: Session = field(repr=False)
    _loaded: Contents = field(repr=False)
    _start: LightningModule = field(repr=False)
    _logged: list[tuple[int, str, float]] = field(repr=False)

    @classmethod
    def of(cls, outcome: Outcome, start: LightningModule) -> Fitted:
        """Collect the results of a run; ``start`` is a model with the same layers."""
        session = outcome.session
        names = [type(aggregator).__name__ for aggregator in session.federation.aggregators]
        loaded = checkpoint.load(outcome.best, session.layout, names)
        logged = list(MetricsFile(outcome.directory / "metrics.csv").rows())
        return cls(outcome.directory, outcome.metrics, outcome.rounds, session, loaded, _start=start, _logged=logged)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The metrics: one row per round and one column per metric, such as ``val/auroc_macro``; NaN if not logged.

        Test metrics are in the last row.
        """
        from pandas import DataFrame, Index

        rows: dict[int, dict[str, float]] = {}
        for step, key, value in self._logged:
            rows.setdefault(step, {})[key] = value
        columns = list(dict.fromkeys(key for _, key, _ in self._logged))
        index = Index(sorted(rows), name="round")
        return DataFrame([rows[step] for step in index], index=index, columns=columns)

    @cached_property
    def model(self) -> LightningModule:
        """The best model, on the CPU and in evaluation mode.

        Raises:
            ConfigError: Clients keep a part of the model; use :meth:`model_of`.
        """
        if self._session.personal:
            kept = kept_parts(self._session)
            reasons = "; ".join(f"{name} keeps {' and '.join(p)} at the clients" for name, p in kept.items())
            raise ConfigError(
                f"there is no single global model: {reasons}. Use model_of(client) or predict(data, client=NAME); "
                f"clients are {', '.join(self._session.clients)}"
            )
        return self._model(None)

    def model_of(self, client: str) -> LightningModule:
        """Return the best model of a client, with the part that it keeps.

        Raises:
            ConfigError: There is no such client.
        """
        if client not in self._session.clients:
            raise ConfigError(f"there is no client {client!r}; clients are {', '.join(self._session.clients)}")
        return self._model(client)

    @torch.no_grad()
    def predict(self, data: Any, client: str | None = None) -> Tensor:
        """Return the predictions for a data set, in its order.

        They are the outputs of ``predict_step``, or else of ``forward`` on the batch or its images.

        Args:
            data: A map-style data set; labels in its examples are ignored.
            client: Client whose model predicts. By default the federation's model.

        Returns:
            The predictions on the CPU, one row per example.

        Raises:
            ConfigError: ``data`` is not a data set, there is no such client, or ``client`` is missing if clients keep a
                part of the model.
            TrainingError: The module has neither method, or its output is not a tensor.
        """
        data = data_set("predict", data)
        model = self.model if client is None else self.model_of(client)
        fabric, rows = self._session.fabric, []
        if not overrides(model, "predict_step") and not overrides(model, "forward"):
            raise TrainingError(
                f"{type(model).__name__} has neither predict_step nor forward, which predict calls: add "
                "`def predict_step(self, batch, batch_idx)`, which returns one row per example of the batch"
            )
        precision, name = fabric.strategy.precision, "predict_step" if overrides(model, "predict_step") else "forward"
        step = step_of(model, name) if name == "predict_step" else lambda batch, _: model(batch)
        model.to(fabric.device)
        for number, indices in enumerate(torch.arange(len(data)).split(self._session.data.eval_batch_size)):
            batch = fabric.to_device(precision.convert_input(fetch(data, indices)))
            if name == "forward" and (images := part_of(batch, 0, IMAGE)) is not None:
                batch = images
            with fabric.autocast():
                output = step(batch, number)
            if not torch.is_tensor(output):
                raise TrainingError(
                    f"{type(model).__name__}.{name} returned a {type(output).__name__}; expected a tensor with one row "
                    "per example"
                )
            rows.append(output.float().cpu())
        model.cpu()
        return torch.cat(rows)

    def _model(self, client: str | None) -> LightningModule:
        trained = self._session.model(self._loaded.server, client, self._loaded.clients.get(client))
        model = copy_of(self._start)
        for aggregator in self._session.federation.aggregators:
            aggregator.configure_model(model)
        model = self._session.fabric.strategy.precision.convert_module(model)
        with torch.no_grad():
            for part, other in zip(model.modules(), trained.modules(), strict=True):
                for name, value in other._parameters.items():
                    if value is not None:
                        part._parameters[name].copy_(value)
                for name, value in other._buffers.items():
                    part._buffers[name] = None if value is None else value.detach().clone()
        return model.cpu().eval()
