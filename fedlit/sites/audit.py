"""Scores of a site's own images by the model that came home, for an audit at the site: nothing is sent."""

from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch import LightningModule
from safetensors.torch import load_file

from fedlit.core.checkpoints.manifest import sha256
from fedlit.core.errors import ConfigError
from fedlit.core.fabric import make_fabric
from fedlit.core.local_training import LocalTraining
from fedlit.core.messages import Broadcast
from fedlit.core.system.typed import Mistyped, built
from fedlit.data.clients import parts_of
from fedlit.federation.engines.base import Program, Worker
from fedlit.federation.engines.scores import View
from fedlit.predictions.notes import recipe
from fedlit.reports.audit import image_table
from fedlit.sites.own_data import OwnData, SiteSettings
from fedlit.sites.plan import lacking, line_to_add, table_of, with_classes, without_start
from fedlit.sites.storage import find_models


def site_images(settings: SiteSettings, run: str | None) -> tuple[str, str, pd.DataFrame]:
    """Return the id of a run, a hash of its model, and the table of a site's images, see ``image_table``.

    A client that keeps a part of the model is scored by its own model.

    Raises:
        ConfigError: If no run has a model, or it needs a class that the site does not allow.
    """
    run, models = find_models(settings.folder, run)
    settings.data.augment = False  # the loss of an altered image says little about the image
    data, tables = OwnData(settings), []
    for file, notes in models.items():
        worker = _worker(file, notes, data)
        down = Broadcast(worker.local.flat.w.clone(), worker.local.flat.stats.clone(), [])
        names = [notes["client"]] if "client" in notes else list(data.module.clients)
        views = [View(None, name, part) for name in names for part, _ in parts_of(worker.program.data[name])]
        scored = [worker.evaluate(view, None, down) for view in views]
        for each in scored:
            each.mask_classes([not learned for learned in notes["learned"]])
        tables.append(image_table(scored, worker.program.dataset, data.module, notes["classes"], notes["exclusive"]))
    return run, ", ".join(map(sha256, models)), pd.concat(tables, ignore_index=True)


def _worker(file: Path, notes: dict[str, Any], data: OwnData) -> Worker:
    """Return a worker with the model of a file, made of classes that the site allows."""
    model, precision = recipe(file, notes)
    table, classes = table_of(data.policy.allow), notes["classes"]
    if odd := lacking(model, table):
        raise ConfigError(
            f"{file}: needs {', '.join(odd)}; write {line_to_add([*data.policy.allow, *odd])} under policy"
        )
    try:
        module = built(LightningModule, with_classes(without_start(model), classes, table), "model", table)
    except Mistyped as error:
        raise ConfigError(f"{file}: its model cannot be built here: {error}") from error
    module.load_state_dict(load_file(file))
    fabric, held = make_fabric(data.settings.accelerator, precision=precision), data.for_run(classes)
    program = Program(
        module=module, aggregators=[], clients={}, data=held.clients, test_sets={}, training=LocalTraining(),
        batch_size=held.batch_size, eval_batch_size=held.eval_batch_size, seed=0,
    )  # fmt: skip
    return Worker(program, fabric)
