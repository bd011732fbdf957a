"""Runs above others in MLflow, which have the means over the seeds of the runs below them."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlit.tracking.base import MetricsFile, RunGroup
from fedlit.tracking.names import CHOSEN, IS_PARENT, STAGE, is_count, shown_name
from fedlit.tracking.store import PARENT_ID, active_run, connect, import_mlflow, noted_run, user

METRICS_PER_REQUEST = 1000

OF_ONE_RUN = ("mlflow.", "fedlit.group", "fedlit.seed")
"""Beginnings of the tags that a parent does not share. With the group of its runs, it would count as one of them."""


def log_parents(uri: str, groups: Sequence[RunGroup]) -> None:
    """Put the runs of each group below one run with their means; a parent with other means is replaced.

    MLflow cannot change values that it has, and the seeds or rounds of a group may have become more.
    """
    noted = {run: noted_run(run, uri) for group in groups for run in group.runs}
    ids = {run: found[1] for run, found in noted.items() if found and found[0] == uri}
    if not ids:
        return
    client = connect(uri)
    for group in groups:
        found = {run: active_run(client, ids[run]) for run in group.runs if run in ids}
        _log_parent(client, group, {directory: run for directory, run in found.items() if run is not None})


def means(runs: Sequence[Path], names: set[str]) -> dict[tuple[str, int], float]:
    """Return the means over runs by name and step, of the named metrics for which every run has a number.

    Metrics of single clients are left out, because the clients of one draw of the data are not those of another.
    """
    tables = [
        {
            (name, step): value
            for step, key, value in MetricsFile(run / "metrics.csv").rows()
            if (name := shown_name(key)) in names and not is_count(key) and not key.startswith("client/")
        }
        for run in runs
    ]
    averages = {point: fmean(table.get(point, math.nan) for table in tables) for point in tables[0]}
    return dict(sorted((point, value) for point, value in averages.items() if not math.isnan(value)))


def _log_parent(client: Any, group: RunGroup, runs: dict[Path, Any]) -> None:
    averaged = {seed: runs[directory] for seed, directory in group.averaged.items() if directory in runs}
    if not averaged:
        return
    for directory, run in runs.items():
        stage = run.data.tags.get(STAGE)
        if (now := CHOSEN if directory in group.averaged.values() else "try") != stage and stage in ("try", CHOSEN):
            client.set_tag(run.info.run_id, STAGE, now)
    names = set.intersection(*(set(run.data.metrics) for run in averaged.values()))
    values = means([group.averaged[seed] for seed in averaged], names)
    of_seeds = f"mean over seed{'s' * (len(averaged) > 1)} {', '.join(map(str, averaged))}"
    above = [run.data.tags.get(PARENT_ID) for run in runs.values()]
    parents = [client.get_run(parent) for parent in {*above} - {None}]
    if any(IS_PARENT not in parent.data.tags for parent in parents):
        return  # a parent of the user's own
    if len(parents) == 1 and None not in above:
        latest = {name: value for (name, _), value in values.items()}
        if parents[0].data.metrics == latest and parents[0].data.tags.get("mlflow.note.content") == of_seeds:
            return
    common = dict(reduce(and_, (run.data.tags.items() for run in averaged.values())))
    tags = {key: value for key, value in common.items() if not key.startswith(OF_ONE_RUN)}
    tags |= {IS_PARENT: "true", "mlflow.user": user(), "mlflow.source.name": "fedlit", "mlflow.note.content": of_seeds}
    infos = [run.info for run in averaged.values()]
    options = {"start_time": min(info.start_time for info in infos), "run_name": group.name, "tags": tags}
    parent = client.create_run(infos[0].experiment_id, **options).info.run_id
    for run in runs.values():
        client.set_tag(run.info.run_id, PARENT_ID, parent)
    entities, end = import_mlflow().entities, max(info.end_time for info in infos)
    metrics = [entities.Metric(name, value, end, step) for (name, step), value in values.items()]
    for start in range(0, len(metrics), METRICS_PER_REQUEST):
        client.log_batch(parent, metrics=metrics[start : start + METRICS_PER_REQUEST])
    params = reduce(and_, (run.data.params.items() for run in averaged.values()))
    client.log_batch(parent, params=[entities.Param(key, value) for key, value in sorted(params)])
    for before in parents:
        if before.info.lifecycle_stage == "active":
            client.delete_run(before.info.run_id)
    client.set_terminated(parent, end_time=end)
